"""A secondary index that is unique: users, and who has which address of mail.

A user and the entry of the index are written by one transaction, so that they agree at every snapshot. An address is
read for update: of two users who take the same one at a time, one is told that it is taken.

    percolator up &
    PYTHONPATH=python python3 python/examples/unique_index.py
"""

import threading
from typing import List, Optional

import percolator

USERS, INDEX = "users", "users-by-mail"


class Taken(Exception):
    """Another user has the address."""


def set_mail(tx: percolator.Transaction, user: str, mail: str) -> None:
    owner = tx.get_for_update(INDEX, mail, "user")
    if owner is not None and owner != user.encode():
        raise Taken(mail)
    before = tx.get(USERS, user, "mail")
    if before is not None:
        tx.delete(INDEX, before, "user")
    tx.put(USERS, user, "mail", mail)
    tx.put(INDEX, mail, "user", user)


def user_of(tx: percolator.Transaction, mail: str) -> Optional[str]:
    user = tx.get(INDEX, mail, "user")
    return None if user is None else user.decode()


def check(client: percolator.Client) -> int:
    """How many users there are; the index says the same as they do."""
    with client.transaction() as tx:
        by_user = {(cell.row, cell.value) for cell in tx.scan(USERS)}
        by_mail = {(cell.value, cell.row) for cell in tx.scan(INDEX)}
    assert by_user == by_mail, by_user ^ by_mail
    return len(by_user)


def main() -> None:
    with percolator.connect() as client:
        for table in (USERS, INDEX):
            client.create_table(table, exist_ok=True)
        change = client.transactional(set_mail)
        change("ann", "ann@a.example")
        change("ann", "ann@b.example")
        with client.transaction() as tx:
            print("ann@a.example:", user_of(tx, "ann@a.example"))
            print("ann@b.example:", user_of(tx, "ann@b.example"))

        # Many want the same address at the same time.
        refused: List[str] = []

        def take(user: str) -> None:
            try:
                change(user, "all@a.example")
            except Taken:
                refused.append(user)

        threads = [threading.Thread(target=take, args=(f"user-{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print("refused:", len(refused))
        print("users:", check(client))


if __name__ == "__main__":
    main()
