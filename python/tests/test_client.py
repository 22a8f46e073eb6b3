"""The client against a proxy: PERCOLATOR_PROXY says where, and has a table t. `cargo test -p percolator-cli --test python`
runs it on a cluster of its own."""

import os
import threading
import unittest
import uuid

import percolator


def row() -> str:
    """One that no other test has."""
    return uuid.uuid4().hex


class ClientTest(unittest.TestCase):
    def setUp(self) -> None:
        self.client = percolator.connect()
        self.addCleanup(self.client.close)

    def value(self, of: str):
        with self.client.transaction() as tx:
            return tx.get("t", of, "c")

    def test_a_block_commits_at_its_end_and_rolls_back_at_an_exception(self) -> None:
        a = row()
        with self.client.transaction() as tx:
            tx.put("t", a, "c", "1")
            self.assertEqual(tx.get("t", a, "c"), b"1")
            self.assertIsNone(self.value(a))
        self.assertEqual(self.value(a), b"1")
        self.assertEqual(tx.outcome().outcome, "committed")
        with self.assertRaises(ZeroDivisionError):
            with self.client.transaction() as tx:
                tx.put("t", a, "c", "2")
                1 / 0
        self.assertEqual(self.value(a), b"1")
        self.assertEqual(tx.outcome().outcome, "rolled back")

    def test_an_address_may_be_written_as_up_prints_it(self) -> None:
        address = os.environ["PERCOLATOR_PROXY"]
        with percolator.connect(f"http://{address}/") as client, client.transaction() as tx:
            self.assertIsNone(tx.get("t", row(), "c"))
        for wrong in ["My Proxy", "localhost", "localhost:", "https://localhost:x"]:
            with self.assertRaises(ValueError):
                percolator.connect(wrong)

    def test_a_table_is_made_once(self) -> None:
        table = row()
        self.client.create_table(table, split_at=["m", b"\xff"])
        with self.client.transaction() as tx:
            tx.put(table, "z", "c", "1")
        self.client.create_table(table, exist_ok=True)
        with self.assertRaises(percolator.AlreadyExists) as made:
            self.client.create_table(table)
        self.assertIn(table, str(made.exception))
        with self.assertRaises(percolator.InvalidArgument):
            self.client.create_table("No Name")
        with self.assertRaises(percolator.InvalidArgument):
            self.client.create_table(row(), split_at=["m", "m"])
        with self.assertRaises(TypeError):
            self.client.create_table(row(), split_at="mz")

    def test_bytes_come_back_as_they_were(self) -> None:
        a = uuid.uuid4().bytes + b"\xff\x00"
        values = [b"", b"\x00\xff", "\u00e4".encode(), b"plain", bytes(range(256)) * 500]
        for value in values:
            with self.client.transaction() as tx:
                tx.put("t", a, b"\xff", value)
                self.assertEqual(tx.get("t", a, b"\xff"), value)
            with self.client.transaction() as tx:
                self.assertEqual(tx.batch_get([("t", a, b"\xff"), ("t", a, "no")]), [value, None])
                self.assertEqual(list(tx.scan("t", prefix=a)), [percolator.Cell(a, b"\xff", value)])
        with self.client.transaction() as tx:
            tx.delete("t", a, b"\xff")
        with self.client.transaction() as tx:
            self.assertIsNone(tx.get("t", a, b"\xff"))

    def test_cells_are_read_with_the_beginning(self) -> None:
        a, b = row(), uuid.uuid4().bytes
        with self.client.transaction() as tx:
            self.assertEqual(tx.values, [])
            tx.put("t", b, "c", b"\xff")
        with self.client.transaction(cells=[("t", a, "c"), ("t", b, "c")]) as tx:
            self.assertEqual(tx.values, [None, b"\xff"])
        before = self.client.begin(snapshot=tx.start_ts - 1, cells=[("t", a, "c")])
        self.assertEqual(before.values, [None])
        with self.assertRaises(percolator.NotFound):
            self.client.begin(cells=[("nowhere", a, "c")])

    def test_a_scan_is_in_order_and_may_be_left(self) -> None:
        prefix = row()
        rows = [f"{prefix}-{number:04}".encode() for number in range(1500)]
        with self.client.transaction() as tx:
            for each in rows:
                tx.put("t", each, "c", each)
        with self.client.transaction() as tx:
            found = [cell.row for cell in tx.scan("t", prefix=prefix)]
            self.assertEqual(found, rows)
            found = [cell.row for cell in tx.scan("t", start=rows[3], end=rows[7], reverse=True)]
            self.assertEqual(found, rows[3:7][::-1])
            self.assertEqual(len(list(tx.scan("t", prefix=prefix, limit=5))), 5)
            for cell in tx.scan("t", prefix=prefix):
                self.assertEqual(cell.row, rows[0])
                break
            # In the middle of a scan.
            for cell in tx.scan("t", prefix=prefix, limit=3):
                self.assertEqual(tx.get("t", cell.row, "c"), cell.value)

    def test_a_conflict_is_tried_again(self) -> None:
        a = row()
        runs = []

        @self.client.transactional
        def add(tx: percolator.Transaction, number: int) -> int:
            runs.append(tx.start_ts)
            has = int(tx.get("t", a, "c") or 0)
            if len(runs) == 1:
                with self.client.transaction() as other:
                    other.put("t", a, "c", "10")
            tx.put("t", a, "c", str(has + number))
            return has + number

        self.assertEqual(add(5), 15)
        self.assertEqual(len(runs), 2)
        self.assertEqual(self.value(a), b"15")

    def test_a_conflict_is_not_tried_for_ever(self) -> None:
        a = row()

        def conflicts(tx: percolator.Transaction) -> None:
            tx.put("t", a, "c", "1")
            with self.client.transaction() as other:
                other.put("t", a, "c", "2")

        with self.assertRaises(percolator.Aborted) as raised:
            self.client.run(conflicts, retry_for=0)
        self.assertEqual(raised.exception.reason, "CONFLICT")
        self.assertTrue(raised.exception.metadata["cell"].endswith(f"/{a}:c"))

    def test_get_for_update_conflicts_with_writers(self) -> None:
        a = row()
        tx = self.client.begin()
        self.assertIsNone(tx.get_for_update("t", a, "c"))
        tx.put("t", row(), "c", "1")
        with self.client.transaction() as other:
            other.put("t", a, "c", "2")
        with self.assertRaises(percolator.Aborted):
            tx.commit()

    def test_an_earlier_snapshot_only_reads(self) -> None:
        a = row()
        with self.client.transaction() as tx:
            tx.put("t", a, "c", "1")
        before = tx.start_ts
        with self.client.transaction(snapshot=before) as tx:
            self.assertIsNone(tx.get("t", a, "c"))
        tx = self.client.begin(snapshot=before)
        tx.put("t", a, "c", "2")
        with self.assertRaises(percolator.InvalidArgument):
            tx.commit()
        self.assertEqual(self.value(a), b"1")

    def test_writes_are_sent_together(self) -> None:
        prefix = row()
        large = b"x" * (3 << 20)
        rows = [f"{prefix}-{number:04}" for number in range(600)]
        calls = []
        with self.client.transaction() as tx:
            send = tx._proxy.call
            tx._proxy.call = lambda method, *rest, **more: calls.append(method) or send(method, *rest, **more)
            self.addCleanup(setattr, tx._proxy, "call", send)
            for each in rows:
                tx.put("t", each, "c", each)
            tx.put("t", rows[0], "large", large)
            tx.delete("t", rows[1], "c")
            tx.put("t", rows[2], "c", "last")
            self.assertEqual(tx.get("t", rows[2], "c"), b"last")
            tx.delete("t", rows[2], "c")
        self.assertEqual(calls, ["write"] * 5 + ["get", "commit"])
        with self.client.transaction() as tx:
            found = {cell.row.decode(): cell.value for cell in tx.scan("t", prefix=prefix) if cell.column == b"c"}
            self.assertEqual(found, {each: each.encode() for each in rows if each not in rows[1:3]})
            self.assertEqual(tx.get("t", rows[0], "large"), large)

    def test_long_texts_are_counted_as_they_are_sent(self) -> None:
        prefix = row()
        texts = ["\u4e2d" * 9_000] * 120 + ["\U0001f600" * 500_000, "\x00" * 200_000, "\"" * 700_000, "\n" * (3 << 20)]
        with self.client.transaction() as tx:
            for number, text in enumerate(texts):
                tx.put("t", f"{prefix}-{number:03}", "c", text)
        with self.client.transaction() as tx:
            found = [cell.value.decode() for cell in tx.scan("t", prefix=prefix)]
        self.assertTrue(found == texts)

    def test_a_write_that_is_refused_keeps_all_from_being_committed(self) -> None:
        a, b = row(), row()
        for wrong, kind in (
            (lambda tx: tx.put("t", "", "c", "1"), percolator.InvalidArgument),
            (lambda tx: tx.put("nowhere", a, "c", "1"), percolator.NotFound),
        ):
            tx = self.client.begin()
            tx.put("t", a, "c", "1")
            wrong(tx)
            tx.put("t", b, "c", "1")
            with self.assertRaises(kind) as raised:
                tx.get("t", a, "c")
            self.assertEqual(raised.exception.metadata["write"], "1")
            with self.assertRaises(kind):
                tx.commit()
            self.assertEqual(tx.outcome().outcome, "rolled back")
            self.assertEqual([self.value(a), self.value(b)], [None, None])

    def test_a_value_may_have_all_of_its_bytes(self) -> None:
        a, texts = row(), ["x" * (4 << 20), "\\" * (4 << 20)]
        for text in texts:
            with self.client.transaction() as tx:
                tx.put("t", a, "c", text)
            self.assertTrue(self.value(a) == text.encode())

    def test_errors_have_classes(self) -> None:
        with self.client.transaction() as tx:
            with self.assertRaises(percolator.NotFound) as raised:
                tx.get("nowhere", "a", "c")
            self.assertEqual(raised.exception.metadata, {"table": "nowhere"})
            with self.assertRaises(percolator.NotFound):
                list(tx.scan("nowhere"))
            with self.assertRaises(TypeError):
                tx.put("t", "a", "c", 1)  # type: ignore[arg-type]
        with self.assertRaises(percolator.FailedPrecondition) as ended:
            tx.get("t", "a", "c")
        self.assertEqual(ended.exception.reason, "SESSION_ENDED")
        with self.assertRaises(percolator.FailedPrecondition):
            tx.put("t", "a", "c", "1")
        # A commit whose answer was lost may be asked for again.
        self.assertEqual(tx.commit(), tx.start_ts)
        with self.assertRaises(percolator.Unavailable):
            percolator.connect("127.0.0.1:1").begin()

    def test_threads_share_a_client(self) -> None:
        a = row()
        errors = []

        @self.client.transactional
        def add(tx: percolator.Transaction) -> None:
            tx.put("t", a, "c", str(int(tx.get("t", a, "c") or 0) + 1))

        def work() -> None:
            try:
                for _ in range(5):
                    add()
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        self.assertEqual(self.value(a), b"20")


if __name__ == "__main__":
    unittest.main()
