"""A transaction that several clients share: workers, in processes of their own, count the words of a text each, and all of their counts
are committed at once, or none.

    percolator up &
    PYTHONPATH=python python3 python/examples/shared.py
    PYTHONPATH=python python3 python/examples/shared.py --worker 'go run -C go ./examples/worker'

A worker is a command that gets --join TOKEN --text NAME. Without --worker it is this program.
"""

import argparse
import shlex
import subprocess
import sys
from typing import List

import percolator

TEXTS = {"blue": "the sky and the sea", "green": "grass", "red": "a rose is a rose is a rose"}


def count(client: percolator.Client, token: str, text: str, here: bool) -> None:
    """What a worker does."""
    with client.join(token, here=here) as part:
        found = part.get_for_update("texts", text, "text") or b""
        part.put("counts", text, "words", str(len(found.split())))


def main() -> None:
    options = parse()
    with percolator.connect() as client:
        if options.join:
            count(client, options.join, options.text, options.here)
        else:
            run(client, options.worker or [shlex.join([sys.executable, __file__])])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", action="append", help="command of a worker; of several, each has its turn")
    parser.add_argument("--join", help="token of a transaction: be a worker of it")
    parser.add_argument("--text", help="the worker's")
    parser.add_argument("--here", action="store_true", help="work at the proxy of PERCOLATOR_PROXY")
    return parser.parse_args()


def run(client: percolator.Client, workers: List[str]) -> None:
    for table in ("texts", "counts"):
        client.create_table(table, exist_ok=True)
    with client.transaction() as tx:
        for name, text in TEXTS.items():
            tx.put("texts", name, "text", text)
    with client.transaction() as tx:
        processes = []
        for number, name in enumerate(TEXTS):
            command = shlex.split(workers[number % len(workers)])
            processes.append(subprocess.Popen([*command, "--join", tx.token, "--text", name]))
        failed = [process.args for process in processes if process.wait() != 0]
        if failed:
            raise SystemExit(f"a worker failed, so that nothing is committed: {failed[0]}")
        tx.put("counts", "all", "texts", str(len(TEXTS)))
    with client.transaction() as tx:
        for cell in tx.scan("counts"):
            print(cell.row.decode(), cell.column.decode(), cell.value.decode())


if __name__ == "__main__":
    main()
