"""Moves money between accounts until it is killed, and writes down what it did and what it was answered, as
`percolator history check` reads it: recorder.py NAME THREADS FILE. A balance has the transfer that wrote it, so that none is written twice.

Every second transfer has a participant, at another proxy, that reads and writes the account that gets the money; its balances have
a `+`."""

import json
import os
import random
import sys
import threading
import time
from typing import List, Optional, Tuple

import percolator

ACCOUNTS = [f"a{number}" for number in range(8)]


def work(client: percolator.Client, other: percolator.Client, name: str, file: "File") -> None:
    number = 0
    while True:
        number += 1
        try:
            transfer(client, other if number % 2 else None, f"{name}-{number}", file)
        except percolator.OutcomeUnknown:
            pass
        except (percolator.Aborted, percolator.Unavailable):
            time.sleep(random.uniform(0, 0.05))


def transfer(client: percolator.Client, other: Optional[percolator.Client], name: str, file: "File") -> None:
    rows = random.sample(ACCOUNTS, 2)
    cells = [("accounts", row, "balance") for row in rows]
    mark = "+" if other else ""
    tx = client.begin(cells=cells[:1] if other else cells)
    try:
        part = join(other, tx.token, cells[1:]) if other else None
        ops = []
        balances = []
        for row, value in zip(rows, tx.values + (part.values if part else [])):
            assert value is not None
            ops.append({"r": [f"accounts/{row}:balance", value.decode()]})
            balances.append(int(value.split()[0]))
        amount = min(balances[0], random.randint(1, 10))
        for by, row, balance in zip((tx, part or tx), rows, (balances[0] - amount, balances[1] + amount)):
            value = f"{balance} {name}{mark}"
            by.put("accounts", row, "balance", value)
            ops.append({"w": [f"accounts/{row}:balance", value]})
        if part:
            part.finish()
    except percolator.Error as failed:
        # Nobody has asked for the commit.
        try:
            tx.rollback()
        except percolator.Error:
            pass
        if isinstance(failed, percolator.OutcomeUnknown):
            raise percolator.Aborted(str(failed)) from failed
        raise
    line = {"client": name.rpartition("-")[0], "start_ts": str(tx.start_ts), "outcome": "unknown", "ops": ops}
    # It may be killed before it hears of its end.
    file.write(line)
    try:
        line.update(commit_ts=str(tx.commit()), outcome="committed")
    except (percolator.Aborted, percolator.Unavailable):
        line.update(outcome="aborted")
        file.write(line)
        raise
    file.write(line)


def join(other: percolator.Client, token: str, cells: List[Tuple[str, str, str]]) -> percolator.Participant:
    try:
        return other.join(token, cells=cells, here=True)
    except percolator.FailedPrecondition as failed:
        # The proxy of the transaction was killed in between.
        if failed.reason == "SESSION_UNKNOWN":
            raise percolator.Aborted(str(failed)) from failed
        raise


class File:
    def __init__(self, path: str):
        self._file = open(path, "a")
        self._lock = threading.Lock()

    def write(self, line: object) -> None:
        with self._lock:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


def main() -> None:
    name, threads, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    client, other, file = percolator.connect(), percolator.connect(os.environ["OTHER_PROXY"]), File(path)
    for thread in range(threads):
        threading.Thread(target=work, args=(client, other, f"{name}.{thread}", file)).start()


if __name__ == "__main__":
    main()
