"""Moves money between accounts until it is killed, and writes down what it did and what it was answered, as
`percolator history check` reads it: recorder.py NAME THREADS FILE. A balance has the transfer that wrote it, so that none is written twice."""

import json
import random
import sys
import threading
import time

import percolator

ACCOUNTS = [f"a{number}" for number in range(8)]


def work(client: percolator.Client, name: str, file: "File") -> None:
    number = 0
    while True:
        number += 1
        try:
            transfer(client, name, number, file)
        except percolator.OutcomeUnknown:
            pass
        except (percolator.Aborted, percolator.Unavailable):
            time.sleep(random.uniform(0, 0.05))


def transfer(client: percolator.Client, name: str, number: int, file: "File") -> None:
    rows = random.sample(ACCOUNTS, 2)
    tx = client.begin(cells=[("accounts", row, "balance") for row in rows])
    ops = []
    balances = []
    for row, value in zip(rows, tx.values):
        assert value is not None
        ops.append({"r": [f"accounts/{row}:balance", value.decode()]})
        balances.append(int(value.split()[0]))
    amount = min(balances[0], random.randint(1, 10))
    for row, balance in zip(rows, (balances[0] - amount, balances[1] + amount)):
        value = f"{balance} {name}-{number}"
        tx.put("accounts", row, "balance", value)
        ops.append({"w": [f"accounts/{row}:balance", value]})
    line = {"client": name, "start_ts": str(tx.start_ts), "outcome": "unknown", "ops": ops}
    # It may be killed before it hears of its end.
    file.write(line)
    try:
        line.update(commit_ts=str(tx.commit()), outcome="committed")
    except (percolator.Aborted, percolator.Unavailable):
        line.update(outcome="aborted")
        file.write(line)
        raise
    file.write(line)


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
    client, file = percolator.connect(), File(path)
    for thread in range(threads):
        threading.Thread(target=work, args=(client, f"{name}.{thread}", file)).start()


if __name__ == "__main__":
    main()
