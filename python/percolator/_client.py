"""The client: transactions over the proxy's door of HTTP and JSON."""

from __future__ import annotations

import base64
import functools
import http.client
import json
import os
import random
import threading
import time
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar, Union

from ._errors import (
    Aborted,
    AlreadyExists,
    Error,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutcomeUnknown,
    ResourceExhausted,
    Unavailable,
    of_answer,
)

BytesLike = Union[bytes, str]
#: A table, a row and a column.
CellName = Tuple[str, BytesLike, BytesLike]
T = TypeVar("T")

#: Where the proxy of ``percolator up`` listens.
DEFAULT_ADDRESS = "127.0.0.1:7490"
#: Where else it may be named.
ADDRESS_VARIABLE = "PERCOLATOR_PROXY"
# Between two attempts of a transaction, in seconds: the first pause and the longest.
_PAUSE_FIRST, _PAUSE_MAX = 0.002, 0.2
# Writes are sent together: so many, or so many bytes of them, at the most. A larger one is sent alone.
_WRITES_MAX, _WRITES_BYTES = 256, 1 << 20
# What a cell may have, in bytes. The proxy may close the connection of a request that is too large, and its answer is lost then.
_CELL_BYTES = {"row": 4096, "column": 1024, "value": 4 << 20}
# How long a proxy is tried at its own address, and for how long it is remembered that it isn't reached there, in seconds.
_REACH, _REACH_AGAIN = 1.0, 30.0
# When a proxy is forgotten at which no session has begun, in seconds.
_FORGET = 7200.0
# Of an answer with many lines, at a time.
_READ_BYTES = 1 << 18
_LOST = (OSError, http.client.HTTPException)


class Cell(NamedTuple):
    """A cell that a scan has found."""

    row: bytes
    column: bytes
    value: bytes


class Outcome(NamedTuple):
    """How a transaction ended: "pending", "committed", "rolled back" or "forgotten"."""

    outcome: str
    #: Of one that is committed.
    commit_ts: Optional[int]


def connect(address: Optional[str] = None, *, timeout: float = 30.0) -> "Client":
    """A client of the proxy at this address, HOST:PORT; ``http://`` before it is left out.

    Without an address it is PERCOLATOR_PROXY, or where ``percolator up`` has its proxy. Nothing is sent before the
    first transaction. ``timeout`` is that of one call, in seconds.
    """
    address = address or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    address = address.removeprefix("http://").rstrip("/")
    _, found, port = address.rpartition(":")
    if not found or not port.isdecimal():
        raise ValueError(f"{address!r} is not HOST:PORT, as {DEFAULT_ADDRESS}")
    return Client(address, timeout=timeout)


class _Proxy:
    """A proxy at its address, and connections to it that aren't in use."""

    def __init__(self, address: str, timeout: float):
        self.address = address
        self.timeout = timeout
        self._idle: List[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def is_reached(self) -> bool:
        """Whether there is anything at the address, for a new connection."""
        connection = http.client.HTTPConnection(self.address, timeout=min(_REACH, self.timeout))
        try:
            connection.connect()
        except _LOST:
            return False
        connection.timeout = self.timeout
        connection.sock.settimeout(self.timeout)
        with self._lock:
            self._idle.append(connection)
        return True

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def call(self, method: str, fields: Dict[str, Any], *, again: bool = True) -> Any:
        """Calls a method; once more if the connection is lost, unless the caller has to know of that."""
        connection, response = self._send(method, fields, again)
        try:
            text = response.read()
        except _LOST as lost:
            connection.close()
            raise Unavailable(f"the answer of the proxy at {self.address} was lost: {lost}") from lost
        self._give_back(connection, response)
        return self._checked(response, text)

    def lines(self, method: str, fields: Dict[str, Any]) -> Iterator[Any]:
        """Calls a method that answers many lines."""
        connection, response = self._send(method, fields, True)
        try:
            if response.status != 200:
                self._checked(response, response.read())
            rest = b""
            # Not by `readline`: that takes a connection which ends between two chunks for the end of the answer.
            while more := response.read1(_READ_BYTES):
                *lines, rest = (rest + more).split(b"\n")
                for line in lines:
                    answer = json.loads(line)
                    if "error" in answer:
                        raise of_answer(answer)
                    yield answer
            if rest:
                raise http.client.IncompleteRead(rest)
        except _LOST as lost:
            raise Unavailable(f"the answer of the proxy at {self.address} was lost: {lost}") from lost
        finally:
            if response.isclosed():
                self._give_back(connection, response)
            else:
                connection.close()

    def _send(
        self, method: str, fields: Dict[str, Any], again: bool
    ) -> Tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        body = _json(fields)
        headers = {"Content-Type": "application/json"}
        lost: Optional[BaseException] = None
        for fresh in (False, True) if again else (False,):
            connection = self._connection(fresh)
            try:
                connection.request("POST", f"/v1/{method}", body, headers)
                return connection, connection.getresponse()
            except _LOST as error:
                connection.close()
                lost = error
        raise Unavailable(f"the proxy at {self.address} doesn't answer: {lost}") from lost

    def _connection(self, fresh: bool) -> http.client.HTTPConnection:
        with self._lock:
            if self._idle and not fresh:
                return self._idle.pop()
        return http.client.HTTPConnection(self.address, timeout=self.timeout)

    def _give_back(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        if response.will_close:
            connection.close()
            return
        with self._lock:
            self._idle.append(connection)

    def _checked(self, response: http.client.HTTPResponse, text: bytes) -> Any:
        try:
            answer = json.loads(text)
        except ValueError:
            raise Error(f"{self.address} is no proxy: it answers {text[:200]!r}") from None
        if response.status != 200:
            raise of_answer(answer)
        return answer


class Client:
    """A proxy, or several behind one address. It may be used by many threads; each transaction by one at a time.

    ``with`` closes its connections at the end.
    """

    def __init__(self, address: str, *, timeout: float = 30.0):
        self._proxy = _Proxy(address, timeout)
        self._lock = threading.Lock()
        # Those that sessions are on, by their own addresses, and when one was begun there last; and those that can't be reached there,
        # until when.
        self._named: Dict[str, Tuple[_Proxy, float]] = {}
        self._unreachable: Dict[str, float] = {}

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    def create_table(self, table: str, *, split_at: Sequence[BytesLike] = (), exist_ok: bool = False) -> None:
        """Makes a table, cut into tablets at these rows; without any it has one, which is split when it grows.

        ``AlreadyExists`` if there is one; also after a call that was not answered and made it. With ``exist_ok`` a table that is
        there is left as it is.
        """
        if isinstance(split_at, (str, bytes)):
            raise TypeError("split_at is a list of rows")
        fields: Dict[str, Any] = {"table": table}
        if split_at:
            rows: List[Dict[str, Any]] = [{} for _ in split_at]
            for named, row in zip(rows, split_at):
                _insert(named, "row", row)
            fields["split_at"] = rows
        try:
            self._proxy.call("create_table", fields)
        except AlreadyExists:
            if not exist_ok:
                raise

    def begin(self, *, snapshot: Optional[int] = None, cells: Sequence[CellName] = ()) -> "Transaction":
        """Begins a transaction at a snapshot of now; or one that only reads, at a timestamp of an earlier one.

        The values of these cells come along, in ``values``, which saves the call of a ``batch_get``.
        """
        fields: Dict[str, Any] = {}
        if snapshot is not None:
            fields["snapshot"] = str(snapshot)
        if cells:
            fields["cells"] = [_cell(*cell) for cell in cells]
        begun = self._proxy.call("begin", fields)
        values = [_value(value) for value in begun.get("values", ())]
        return Transaction(self._proxy_of(begun["session"]), begun["session"], int(begun["start_ts"]), values)

    def join(self, token: str, *, cells: Sequence[CellName] = (), here: bool = False) -> "Participant":
        """Joins a transaction that another client has begun: ``token`` is that of its transaction.

        The participant has a snapshot with the others, and sees of their writes nothing. For ``with``: it finishes at the end of the
        block, and aborts the whole transaction at an exception. It is at the proxy that the token names; with ``here`` at this
        client's, which has to be one that may reach that proxy.
        """
        fields: Dict[str, Any] = {"session": token}
        if cells:
            fields["cells"] = [_cell(*cell) for cell in cells]
        joined = (self._proxy if here else self._proxy_of(token)).call("join", fields, again=False)
        values = [_value(value) for value in joined.get("values", ())]
        return Participant(self._proxy_of(joined["session"]), joined["session"], int(joined["start_ts"]), values)

    def transaction(self, *, snapshot: Optional[int] = None, cells: Sequence[CellName] = ()) -> "Transaction":
        """A transaction for ``with``: commits at the end of the block, and rolls back at an exception."""
        return self.begin(snapshot=snapshot, cells=cells)

    def run(self, function: Callable[["Transaction"], T], *, retry_for: float = 30.0) -> T:
        """Calls the function with a transaction and commits it.

        It is called again with a new one after ``Aborted`` and ``Unavailable``, which say that nothing is committed;
        after ``retry_for`` seconds these are raised. So it should do nothing beside the transaction that may not happen
        twice. ``OutcomeUnknown`` is raised at once.
        """
        give_up = time.monotonic() + retry_for
        pause = _PAUSE_FIRST
        while True:
            try:
                with self.transaction() as tx:
                    return function(tx)
            except (Aborted, Unavailable):
                if time.monotonic() >= give_up:
                    raise
            # Those that were in each other's way don't meet again at the same time.
            time.sleep(random.uniform(0, pause))
            pause = min(pause * 2, _PAUSE_MAX)

    def transactional(self, function: Callable[..., T]) -> Callable[..., T]:
        """A decorator: the function gets a transaction as its first argument, as by ``run``."""

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> T:
            return self.run(lambda tx: function(tx, *args, **kwargs))

        return wrapper

    def close(self) -> None:
        """Closes the connections that aren't in use."""
        with self._lock:
            named, self._named = self._named, {}
        for proxy in (self._proxy, *(proxy for proxy, _ in named.values())):
            proxy.close()

    def _proxy_of(self, session: str) -> _Proxy:
        """The proxy that has a session: at its own address if the token names one that can be reached."""
        # START_TS.PROXY.SECRET.
        address = session.partition(".")[2].rpartition(".")[0]
        if ":" not in address or address == self._proxy.address:
            return self._proxy
        now = time.monotonic()
        with self._lock:
            if address in self._named:
                proxy, _ = self._named[address]
                self._named[address] = (proxy, now)
                return proxy
            if now < self._unreachable.get(address, 0):
                return self._proxy
        proxy = _Proxy(address, self._proxy.timeout)
        is_reached = proxy.is_reached()
        with self._lock:
            if not is_reached:
                self._unreachable[address] = time.monotonic() + _REACH_AGAIN
                return self._proxy
            self._unreachable.pop(address, None)
            # No session lasts so long: pods come and go, each with an address of its own.
            for gone in [name for name, (_, used) in self._named.items() if now - used > _FORGET]:
                self._named.pop(gone)[0].close()
            return self._named.setdefault(address, (proxy, now))[0]


class Transaction:
    """A transaction. Its reads see one snapshot, and its own writes.

    Writes are sent together: with the next read, with the commit, or when they are many. That call raises what is wrong with
    them, and the transaction is rolled back then.
    """

    def __init__(self, proxy: _Proxy, session: str, start_ts: int, values: Sequence[Optional[bytes]] = ()):
        self._proxy = proxy
        self._session = session
        self._ended = False
        # Not sent yet, and their bytes as they are sent.
        self._writes: List[Dict[str, Any]] = []
        self._writes_bytes = 0
        # Why it can't be committed.
        self._failed: Optional[Error] = None
        # A commit was sent whose end is not known; and the end of one that is.
        self._may_be_committed = False
        self._commit_ts: Optional[int] = None
        #: The snapshot, and the transaction's name.
        self.start_ts = start_ts
        #: Of the cells that were read with the beginning, in their order.
        self.values = list(values)

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if error is None:
            # One whose writes were refused has ended, and says so.
            if not self._ended or self._failed is not None:
                self._end()
        elif not self._ended:
            self._roll_back_quietly()

    def _end(self) -> None:
        self.commit()

    @property
    def token(self) -> str:
        """For ``Client.join`` of other clients. A client that has it can use the transaction."""
        return self._session

    def get(self, table: str, row: BytesLike, column: BytesLike) -> Optional[bytes]:
        """The value of a cell; ``None`` if it has none."""
        return _value(self._read("get", _cell(table, row, column)))

    def get_for_update(self, table: str, row: BytesLike, column: BytesLike) -> Optional[bytes]:
        """The value of a cell. The commit fails if another transaction changes it meanwhile."""
        return _value(self._read("get_for_update", _cell(table, row, column)))

    def batch_get(self, cells: Sequence[CellName]) -> List[Optional[bytes]]:
        """The values of several cells, each a table, a row and a column, in the same order."""
        names = [_cell(*cell) for cell in cells]
        return [_value(value) for value in self._read("batch_get", {"cells": names})["values"]]

    def scan(
        self,
        table: str,
        *,
        start: BytesLike = b"",
        end: BytesLike = b"",
        prefix: BytesLike = b"",
        reverse: bool = False,
        limit: int = 0,
        limit_rows: int = 0,
    ) -> Iterator[Cell]:
        """The cells of a range of rows, in order: from ``start`` on, before ``end``, or of rows that begin with ``prefix``.

        An empty ``end`` is the end of the table, and a limit of 0 is none.
        """
        fields: Dict[str, Any] = {"table": table, "reverse": reverse, "limit": limit, "limit_rows": limit_rows}
        for name, edge in (("start", start), ("end", end), ("prefix", prefix)):
            if edge:
                _insert(fields, name, edge)
        self._send_writes()
        for line in self._proxy.lines("scan", {"session": self._session, **fields}):
            yield Cell(_bytes(line, "row"), _bytes(line, "column"), _bytes(line, "value"))

    def put(self, table: str, row: BytesLike, column: BytesLike, value: BytesLike) -> None:
        """Sets a cell at the commit. A row has 4,096 bytes at the most, a column 1,024, and a value 4 MiB."""
        self._write(table, row, column, value)

    def delete(self, table: str, row: BytesLike, column: BytesLike) -> None:
        """Deletes a cell at the commit."""
        self._write(table, row, column, delete=True)

    def commit(self) -> int:
        """Commits, and returns the commit_ts.

        ``Aborted`` and ``Unavailable`` say that nothing of it is committed, ``OutcomeUnknown`` that it may be.
        """
        if self._failed is not None:
            raise self._failed
        if self._commit_ts is not None:
            return self._commit_ts
        self._ended = True
        was_sent, self._may_be_committed = self._may_be_committed, True
        writes = self._writes
        try:
            self._commit_ts = self._commit(was_sent, writes)
            return self._commit_ts
        except OutcomeUnknown:
            raise
        except Error as failed:
            self._may_be_committed = was_sent
            # It has not begun, because of a write: nobody has to wait until the proxy ends the transaction.
            if _is_of_write(failed, self._writes):
                self._fail(failed)
            raise

    def _commit(self, is_lost: bool, writes: List[Dict[str, Any]]) -> int:
        give_up = time.monotonic() + self._proxy.timeout
        fields: Dict[str, Any] = {"session": self._session}
        if writes:
            fields["writes"] = writes
        while True:
            try:
                return int(self._proxy.call("commit", fields, again=False)["commit_ts"])
            except OutcomeUnknown as unknown:
                unknown.transaction = self
                raise
            except FailedPrecondition as gone:
                if gone.reason == "OTHER_PROXY" and is_lost:
                    # The connection leads to another one now.
                    if time.monotonic() >= give_up:
                        raise self._unknown(str(gone)) from gone
                    time.sleep(0.05)
                    continue
                if gone.reason != "SESSION_UNKNOWN":
                    raise
                if is_lost:
                    raise self._unknown(str(gone)) from gone
                raise _restarted(gone) from gone
            except ResourceExhausted as full:
                # Of a commit that was sent before, this says nothing, unless that can be rolled back still.
                if not is_lost or (writes and self._roll_back_quietly()):
                    raise
                if time.monotonic() >= give_up:
                    raise self._unknown(str(full)) from full
                time.sleep(0.05)
            except Error as away:
                # An answer of the proxy has a reason; without one the connection was lost, or something between has answered in its
                # place, and the commit may go on.
                if away.reason in ("", "COMMITTING"):
                    is_lost = True
                    self._proxy.close()
                # A write was refused, which says nothing of a commit that was sent before, unless that can be rolled back still.
                elif not is_lost or not _is_of_write(away, writes) or self._roll_back_quietly():
                    raise
                if time.monotonic() >= give_up:
                    raise self._unknown(str(away)) from away
                time.sleep(0.05)

    def rollback(self) -> None:
        """Ends the transaction without writing anything."""
        self._ended = True
        # If that isn't answered, it may be open still: a commit that is asked for again says why not, or has all that was written.
        self._call("rollback", {})
        self._failed, self._writes = None, []

    def outcome(self) -> Outcome:
        """How the transaction ended, as far as that is known."""
        answer = self._call("outcome", {})
        commit_ts = answer.get("commit_ts")
        return Outcome(answer["outcome"], None if commit_ts is None else int(commit_ts))

    def _write(self, table: str, row: BytesLike, column: BytesLike, value: BytesLike = b"", *, delete: bool = False) -> None:
        try:
            write = _cell(table, row, column)
            if delete:
                write["delete"] = True
            else:
                _insert(write, "value", value)
        except InvalidArgument as failed:
            # As any write that is refused.
            if not self._ended:
                self._fail(failed)
            raise
        if self._ended:
            # The proxy says how.
            self._call("write", {"writes": [write]})
            return
        size = len(_json(write))
        if len(self._writes) == _WRITES_MAX or self._writes_bytes + size > _WRITES_BYTES:
            self._send_writes()
        self._writes.append(write)
        self._writes_bytes += size

    def _send_writes(self) -> None:
        if not self._writes or self._ended:
            return
        try:
            self._call("write", {"writes": self._writes}, again=False)
        except Error as failed:
            # A program that goes on all the same would commit without them. And where the connection was lost they may still arrive,
            # behind later ones of the same cells: there must be none.
            self._fail(failed)
            raise
        self._writes, self._writes_bytes = [], 0

    def _read(self, method: str, fields: Dict[str, Any]) -> Any:
        self._send_writes()
        return self._call(method, fields)

    def _fail(self, failed: Error) -> None:
        """Ends the transaction, and says so if it is used all the same."""
        self._roll_back_quietly()
        self._failed = failed

    def _roll_back_quietly(self) -> bool:
        try:
            self.rollback()
            return True
        except Error:
            # The proxy does it by itself; the reason is the exception that is raised already.
            return False

    def _call(self, method: str, fields: Dict[str, Any], *, again: bool = True) -> Any:
        try:
            return self._proxy.call(method, {"session": self._session, **fields}, again=again)
        except FailedPrecondition as gone:
            if gone.reason == "SESSION_UNKNOWN" and not self._ended:
                raise _restarted(gone) from gone
            raise

    def _unknown(self, why: str) -> OutcomeUnknown:
        metadata = {"start_ts": str(self.start_ts)}
        message = f"the answer was lost: the transaction may be committed ({why})"
        return OutcomeUnknown(message, metadata=metadata, transaction=self)


class Participant(Transaction):
    """A client that has joined a transaction. Its reads see the snapshot, and what it has written itself.

    The transaction is committed with what all participants have written that have finished, by the client that began it. A participant that
    ends otherwise, or has not finished then, aborts it; as do two that write one cell.
    """

    _finished = False

    def finish(self) -> None:
        """Hands over what was written: the transaction that was joined commits it.

        ``OutcomeUnknown`` says that it may be handed over, and that nothing was heard of it; any other error, that it isn't, and that
        the transaction can't be committed.
        """
        if self._failed is not None:
            raise self._failed
        if self._finished:
            return
        try:
            self._finish()
        except Error as failed:
            if not isinstance(failed, OutcomeUnknown):
                self._fail(failed)
            self._ended, self._failed = True, failed
            raise
        self._ended, self._finished, self._writes = True, True, []

    def _finish(self) -> None:
        give_up = time.monotonic() + self._proxy.timeout
        is_lost = False
        fields: Dict[str, Any] = {"session": self._session}
        if self._writes:
            fields["writes"] = self._writes
        while True:
            try:
                self._proxy.call("finish", fields, again=False)
                return
            except FailedPrecondition as gone:
                if gone.reason == "SESSION_UNKNOWN":
                    raise (self._unknown(str(gone)) if is_lost else _restarted(gone)) from gone
                if gone.reason != "OTHER_PROXY" or not is_lost:
                    raise
                failed: Error = gone
            except ResourceExhausted as full:
                if not is_lost:
                    raise
                failed = full
            except Error as away:
                # Without a reason it is no answer of the proxy. It may be sent again: what comes twice is carried out once.
                if away.reason and not isinstance(away, Unavailable):
                    raise
                is_lost, failed = True, away
                self._proxy.close()
            if time.monotonic() >= give_up:
                # Where it can be rolled back, it was not handed over.
                if self._roll_back_quietly():
                    raise failed
                raise self._unknown(str(failed)) from failed
            time.sleep(0.05)

    def commit(self) -> int:
        """Refused: ``finish``."""
        raise InvalidArgument("a participant finishes, and the client that began the transaction commits it")

    def _end(self) -> None:
        self.finish()


def _is_of_write(failed: Error, writes: List[Dict[str, Any]]) -> bool:
    """Whether a commit was refused because of a write that came with it: it has not begun."""
    return bool(writes) and isinstance(failed, (InvalidArgument, NotFound, ResourceExhausted, Unavailable))


def _restarted(gone: Error) -> Aborted:
    """A proxy that doesn't know a session whose commit was never asked for."""
    return Aborted("the proxy was started again: nothing of the transaction is committed", gone.reason, gone.metadata)


def _json(value: Union[Dict[str, Any], str]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _cell(table: str, row: BytesLike, column: BytesLike) -> Dict[str, Any]:
    fields: Dict[str, Any] = {"table": table}
    _insert(fields, "row", row)
    _insert(fields, "column", column)
    return fields


def _insert(fields: Dict[str, Any], name: str, value: BytesLike) -> None:
    if isinstance(value, str):
        raw = value.encode()
    elif isinstance(value, (bytes, bytearray, memoryview)):
        raw = bytes(value)
    else:
        raise TypeError(f"{name} is {type(value).__name__}: bytes or str are expected")
    most = _CELL_BYTES.get(name, len(raw))
    if len(raw) > most:
        raise InvalidArgument(f"the {name} is {len(raw)} bytes long, the limit is {most}", "INVALID")
    encoded = base64.b64encode(raw).decode()
    # Escapes may make a text longer than that, and than a request may be.
    if isinstance(value, str) and len(_json(value)) <= len(encoded) + len('""'):
        fields[name] = value
    else:
        fields[f"{name}_base64"] = encoded


def _bytes(answer: Dict[str, Any], name: str) -> bytes:
    text = answer.get(name)
    if text is not None:
        return str(text).encode()
    return base64.b64decode(answer[f"{name}_base64"])


def _value(answer: Dict[str, Any]) -> Optional[bytes]:
    if "value" in answer and answer["value"] is None:
        return None
    return _bytes(answer, "value")
