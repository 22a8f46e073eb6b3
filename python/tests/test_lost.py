"""The client against something in the place of a proxy, whose answers are lost, or cut."""

import base64
import json
import socket
import threading
import unittest
import unittest.mock
from typing import Any, List

import percolator
from percolator import _client
from percolator._client import Participant, Transaction

LINE = b'{"row":"a","column":"c","value":"1"}\n'
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%s\r\n" % (len(LINE), LINE)


def answer(status: int, body: object) -> bytes:
    text = json.dumps(body).encode()
    return b"HTTP/1.1 %d x\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (status, len(text), text)


def failed(status: int, name: str, reason: str) -> bytes:
    details = [{"reason": reason, "metadata": {}}]
    return answer(status, {"error": {"status": name, "message": "it says so", "details": details}})


class Clock:
    """Time of which a second passes at each pause, and none else."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, _seconds: float) -> None:
        self._now += 1


class LostTest(unittest.TestCase):
    def setUp(self) -> None:
        # What the proxies were asked, each with its path.
        self.asked: List[Any] = []

    def serve(self, answers: List[bytes]) -> str:
        """Where there is a proxy that gives these answers, each to a connection, and closes it."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def serve() -> None:
            for each in answers:
                request = b""
                while not request:
                    connection, _ = listener.accept()
                    with connection:
                        while not request.endswith(b"}"):
                            more = connection.recv(65536)
                            if not more:
                                # Whether there is anybody.
                                break
                            request += more
                        if request:
                            head, _, body = request.partition(b"\r\n\r\n")
                            self.asked.append((head.split()[1].decode(), body))
                            connection.sendall(each)

        threading.Thread(target=serve, daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    def transaction(self, answers: List[bytes]) -> Transaction:
        """One at a proxy that gives these answers."""
        client = percolator.connect(self.serve(answers))
        self.addCleanup(client.close)
        return Transaction(client._proxy, "session", 7)

    def test_a_session_is_used_at_the_proxy_that_it_names(self) -> None:
        secret = "0123456789abcdef" * 2
        named = self.serve([answer(200, {"commit_ts": "9"})])
        balancer = self.serve([answer(200, {"session": f"7.{named}.{secret}", "start_ts": "7"})])
        with percolator.connect(balancer) as client:
            self.assertEqual(client.begin().commit(), 9)
        # From where that can't be reached, at the address that the client has.
        begun = answer(200, {"session": f"7.127.0.0.1:1.{secret}", "start_ts": "7"})
        with percolator.connect(self.serve([begun, answer(200, {"commit_ts": "9"})])) as client:
            self.assertEqual(client.begin().commit(), 9)

    def test_a_scan_that_is_cut_is_no_whole_one(self) -> None:
        whole = self.transaction([HEAD + CHUNK + CHUNK + b"0\r\n\r\n"])
        self.assertEqual([cell.row for cell in whole.scan("t")], [b"a", b"a"])
        # A line may be cut between two chunks.
        parts = b"5\r\n" + LINE[:5] + b"\r\n%x\r\n" % (len(LINE) - 5) + LINE[5:] + b"\r\n0\r\n\r\n"
        self.assertEqual([cell.row for cell in self.transaction([HEAD + parts]).scan("t")], [b"a"])
        for end in (b"", b"24\r\n", b"24\r\n{", b"1\r\n{\r\n0\r\n\r\n"):
            with self.subTest(end=end):
                cut = self.transaction([HEAD + CHUNK + end])
                with self.assertRaises(percolator.Unavailable):
                    list(cut.scan("t"))

    def test_a_full_proxy_says_nothing_of_a_commit_that_was_sent_before(self) -> None:
        full = failed(429, "RESOURCE_EXHAUSTED", "BYTES")
        lost = self.transaction([b"", full, answer(200, {"commit_ts": "9"})])
        self.assertEqual(lost.commit(), 9)
        with self.assertRaises(percolator.ResourceExhausted):
            self.transaction([full]).commit()

    def test_writes_whose_answer_is_lost_are_not_sent_again(self) -> None:
        ended = answer(200, {})
        lost = self.transaction([b"", ended])
        lost.put("t", "a", "c", "1")
        with self.assertRaises(percolator.Unavailable):
            lost.get("t", "a", "c")
        with self.assertRaises(percolator.Unavailable):
            lost.commit()
        # It is raised again at the end of the block.
        with self.assertRaises(percolator.Unavailable):
            with self.transaction([b"", ended]) as lost:
                lost.put("t", "a", "c", "1")
                with self.assertRaises(percolator.Unavailable):
                    lost.get("t", "a", "c")
        with self.transaction([b"", ended, ended]) as lost:
            lost.put("t", "a", "c", "1")
            with self.assertRaises(percolator.Unavailable):
                lost.get("t", "a", "c")
            lost.rollback()

    def test_a_write_that_is_refused_after_a_lost_commit_is_no_unknown_outcome(self) -> None:
        full = failed(429, "RESOURCE_EXHAUSTED", "SESSION_BYTES")
        lost = self.transaction([b"", full, answer(200, {})])
        lost.put("t", "a", "c", "1")
        with self.assertRaises(percolator.ResourceExhausted):
            lost.commit()
        # Its table can't be looked up, and the commit that was sent before has yet to come.
        away = failed(503, "UNAVAILABLE", "UNAVAILABLE")
        lost = self.transaction([b"", away, b"", b"", answer(200, {"commit_ts": "9"})])
        lost.put("t", "a", "c", "1")
        self.assertEqual(lost.commit(), 9)
        lost = self.transaction([b"", away, answer(200, {})])
        lost.put("t", "a", "c", "1")
        with self.assertRaises(percolator.Unavailable):
            lost.commit()
        # It was under way, and is done.
        committing = failed(503, "UNAVAILABLE", "COMMITTING")
        lost = self.transaction([b"", full, committing, answer(200, {"commit_ts": "9"})])
        lost.put("t", "a", "c", "1")
        self.assertEqual(lost.commit(), 9)

    def test_a_commit_whose_answer_is_lost_is_sent_again_with_its_writes(self) -> None:
        lost = self.transaction([b"", failed(503, "UNAVAILABLE", "COMMITTING"), answer(200, {"commit_ts": "9"})])
        lost.put("t", "a", "c", "1")
        self.assertEqual(lost.commit(), 9)

    def test_a_commit_that_is_asked_for_again_has_its_writes(self) -> None:
        away = failed(503, "UNAVAILABLE", "UNAVAILABLE")
        # The rollback is sent twice. Beyond the time of one call the commit is given up.
        lost = self.transaction([b"", away, b"", b"", *[b""] * 40, answer(200, {"commit_ts": "9"})])
        lost.put("t", "a", "c", "1")
        with unittest.mock.patch.object(_client, "time", Clock()):
            with self.assertRaises(percolator.OutcomeUnknown):
                lost.commit()
            self.assertEqual(lost.commit(), 9)
        self.assertEqual(self.asked[2][0], "/v1/rollback")
        writes = [{"table": "t", "row": "a", "column": "c", "value": "1"}]
        commits = [json.loads(body) for path, body in self.asked if path == "/v1/commit"]
        self.assertEqual([each["writes"] for each in commits], [writes] * len(commits))

    def test_a_transaction_whose_rollback_is_lost_does_not_commit_without_its_writes(self) -> None:
        lost = self.transaction([b"", b"", answer(200, {"commit_ts": "9"})])
        lost.put("t", "a", "c", "1")
        with self.assertRaises(percolator.Unavailable):
            lost.rollback()
        self.assertEqual(lost.commit(), 9)
        self.assertEqual(len(json.loads(self.asked[-1][1])["writes"]), 1)
        # Of writes that may be there or not there is nothing to commit.
        lost = self.transaction([b""] * 5)
        lost.put("t", "a", "c", "1")
        with self.assertRaises(percolator.Unavailable):
            lost.get("t", "a", "c")
        with self.assertRaises(percolator.Unavailable):
            lost.rollback()
        with self.assertRaises(percolator.Unavailable):
            lost.commit()

    def test_what_is_too_large_is_refused_at_once(self) -> None:
        value = 4 << 20
        for name, write in (
            ("row", lambda tx: tx.delete("t", "\u00e4" * 2049, "c")),
            ("column", lambda tx: tx.put("t", "a", b"c" * 1025, "1")),
            ("value", lambda tx: tx.put("t", "a", "c", "x" * (value + 1))),
            ("value", lambda tx: tx.put("t", "a", "c", memoryview(bytes(value + 8)).cast("Q"))),
        ):
            with self.subTest(name=name):
                self.asked.clear()
                refused = self.transaction([answer(200, {})])
                refused.put("t", "\u00e4" * 2048, b"c" * 1024, "x" * value)
                with self.assertRaisesRegex(percolator.InvalidArgument, name):
                    write(refused)
                # A program that goes on all the same doesn't commit without it.
                with self.assertRaises(percolator.InvalidArgument):
                    refused.commit()
                self.assertEqual([path for path, _ in self.asked], ["/v1/rollback"])

    def test_a_text_with_many_escapes_is_sent_as_bytes(self) -> None:
        for text in ("\n" * (3 << 20), "\x00" * (4 << 20), '"' * (4 << 20)):
            self.asked.clear()
            tx = self.transaction([answer(200, {}), answer(200, {"value": text})])
            tx.put("t", "a", "c", text)
            self.assertTrue(tx.get("t", "a", "c") == text.encode())
            body = self.asked[0][1]
            # BODY_BYTES_MAX of proxy/src/json.rs.
            self.assertLessEqual(len(body), (4 << 20) // 3 * 4 + (64 << 10))
            sent = json.loads(body)["writes"][0]
            self.assertEqual(sent["row"], "a")
            self.assertTrue(base64.b64decode(sent["value_base64"]) == text.encode())

    def test_what_may_be_committed_is_not_said_to_be_aborted_later(self) -> None:
        unknown = failed(500, "UNKNOWN", "OUTCOME_UNKNOWN")
        # The proxy is another one by now, or has forgotten the transaction.
        forgotten = failed(400, "FAILED_PRECONDITION", "SESSION_UNKNOWN")
        lost = self.transaction([unknown, forgotten])
        for _ in range(2):
            with self.assertRaises(percolator.OutcomeUnknown):
                lost.commit()
        # What is known needs no proxy.
        done = self.transaction([answer(200, {"commit_ts": "9"}), forgotten])
        self.assertEqual([done.commit(), done.commit()], [9, 9])
        part = self.participant([answer(200, {}), forgotten])
        part.finish()
        part.finish()
        # An answer by which nothing has begun is none of a commit that was sent.
        full = self.transaction([failed(429, "RESOURCE_EXHAUSTED", "BYTES"), forgotten])
        with self.assertRaises(percolator.ResourceExhausted):
            full.commit()
        with self.assertRaises(percolator.Aborted):
            full.commit()

    def test_a_gateway_says_nothing_of_a_commit(self) -> None:
        page = b"HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlate"
        own = answer(503, {"message": "no healthy upstream"})
        self.assertEqual(self.transaction([page, own, answer(200, {"commit_ts": "9"})]).commit(), 9)
        with self.assertRaises(percolator.OutcomeUnknown):
            self.transaction([page, failed(400, "FAILED_PRECONDITION", "SESSION_UNKNOWN")]).commit()
        self.participant([page, answer(200, {})]).finish()

    def participant(self, answers: List[bytes]) -> Participant:
        client = percolator.connect(self.serve(answers))
        self.addCleanup(client.close)
        part = Participant(client._proxy, "session", 7)
        part.put("t", "a", "c", "1")
        return part

    def test_a_participant_whose_answer_is_lost_asks_again(self) -> None:
        committing = failed(503, "UNAVAILABLE", "COMMITTING")
        self.participant([b"", committing, answer(200, {})]).finish()
        unknown = failed(400, "FAILED_PRECONDITION", "SESSION_UNKNOWN")
        lost = self.participant([b"", unknown])
        for _ in range(2):
            with self.assertRaises(percolator.OutcomeUnknown):
                lost.finish()
        with self.assertRaises(percolator.Aborted):
            self.participant([unknown, answer(200, {})]).finish()

    def test_a_participant_that_has_failed_finishes_no_more(self) -> None:
        full = failed(429, "RESOURCE_EXHAUSTED", "SESSION_BYTES")
        # The rollback is lost as well.
        failing = self.participant([full, b"", b"", answer(200, {})])
        for _ in range(2):
            with self.assertRaises(percolator.ResourceExhausted):
                failing.finish()


if __name__ == "__main__":
    unittest.main()
