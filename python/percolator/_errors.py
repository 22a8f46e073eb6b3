"""What can go wrong, by the code that says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Type

if TYPE_CHECKING:
    from ._client import Transaction


class Error(Exception):
    """A call that failed.

    ``reason`` is one of those in docs/proxy.md, ``metadata`` has what it is about.
    """

    def __init__(self, message: str, reason: str = "", metadata: Optional[Mapping[str, str]] = None):
        super().__init__(message)
        self.reason = reason
        self.metadata: Dict[str, str] = dict(metadata or {})


class Aborted(Error):
    """Nothing is committed, and the whole transaction may be tried again."""


class NotFound(Error):
    """There is no such table."""


class AlreadyExists(Error):
    """There is such a table already."""


class InvalidArgument(Error):
    """The call has no meaning, or breaks a limit of the data."""


class FailedPrecondition(Error):
    """The transaction has ended, or the proxy doesn't know it."""


class ResourceExhausted(Error):
    """A limit of the proxy's is reached."""


class Unavailable(Error):
    """The proxy, or the cluster behind it, doesn't answer. Of a commit: nothing is committed."""


class OutcomeUnknown(Error):
    """The answer to the commit was lost: the transaction may be committed, or not.

    ``transaction.outcome()`` asks for it.
    """

    def __init__(
        self,
        message: str,
        reason: str = "OUTCOME_UNKNOWN",
        metadata: Optional[Mapping[str, str]] = None,
        transaction: Optional["Transaction"] = None,
    ):
        super().__init__(message, reason, metadata)
        self.transaction = transaction


_BY_STATUS: Dict[str, Type[Error]] = {
    "ABORTED": Aborted,
    "NOT_FOUND": NotFound,
    "ALREADY_EXISTS": AlreadyExists,
    "INVALID_ARGUMENT": InvalidArgument,
    "FAILED_PRECONDITION": FailedPrecondition,
    "RESOURCE_EXHAUSTED": ResourceExhausted,
    "UNAVAILABLE": Unavailable,
}


def of_answer(answer: Any) -> Error:
    """The error that the proxy has answered."""
    try:
        error = answer["error"]
        status, message = error["status"], error["message"]
        details = error["details"][0]
        reason, metadata = details["reason"], details["metadata"]
    except (KeyError, IndexError, TypeError):
        return Error(f"this is no answer of a proxy: {answer!r}")
    if reason == "OUTCOME_UNKNOWN":
        return OutcomeUnknown(message, reason, metadata)
    return _BY_STATUS.get(status, Error)(message, reason, metadata)
