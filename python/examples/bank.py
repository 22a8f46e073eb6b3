"""The bank: clients move money between accounts, and a reader checks at snapshots that none is lost or made.

    percolator up &
    PYTHONPATH=python python3 python/examples/bank.py
"""

import argparse
import random
import threading

import percolator

TABLE, COLUMN = "accounts", "balance"
FIRST_BALANCE = 100


def account(number: int) -> str:
    return f"account-{number:04}"


def total(client: percolator.Client) -> int:
    with client.transaction() as tx:
        return sum(int(cell.value) for cell in tx.scan(TABLE, prefix="account-"))


def main() -> None:
    options = parse()
    with percolator.connect(options.proxy) as client:
        run(client, options)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proxy", help="HOST:PORT; default: PERCOLATOR_PROXY, or 127.0.0.1:7490")
    parser.add_argument("--accounts", type=int, default=20)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--transfers", type=int, default=50, help="of each client")
    return parser.parse_args()


def run(client: percolator.Client, options: argparse.Namespace) -> None:
    attempts = [0] * options.clients
    failures = []

    client.create_table(TABLE, exist_ok=True)
    with client.transaction() as tx:
        for number in range(options.accounts):
            tx.put(TABLE, account(number), COLUMN, str(FIRST_BALANCE))
    expected = options.accounts * FIRST_BALANCE

    @client.transactional
    def transfer(tx: percolator.Transaction, by: int, giver: str, taker: str, amount: int) -> None:
        attempts[by] += 1
        has, gets = tx.batch_get([(TABLE, giver, COLUMN), (TABLE, taker, COLUMN)])
        assert has is not None and gets is not None
        amount = min(amount, int(has))
        tx.put(TABLE, giver, COLUMN, str(int(has) - amount))
        tx.put(TABLE, taker, COLUMN, str(int(gets) + amount))

    def work(by: int) -> None:
        try:
            for _ in range(options.transfers):
                giver, taker = random.sample(range(options.accounts), 2)
                transfer(by, account(giver), account(taker), random.randint(1, 10))
        except Exception as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(by,)) for by in range(options.clients)]
    for worker in workers:
        worker.start()
    checks = 0
    while any(worker.is_alive() for worker in workers):
        found = total(client)
        assert found == expected, f"{found} at a snapshot, not {expected}"
        checks += 1
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    found = total(client)
    assert found == expected, f"{found} in the end, not {expected}"
    transfers = options.clients * options.transfers
    print(f"transfers {transfers}, attempts {sum(attempts)}, checks {checks + 1}: no money was lost or made")


if __name__ == "__main__":
    main()
