"""Distributed transactions with Percolator, through its proxy. See ``connect``."""

from ._client import Cell, Client, Outcome, Transaction, connect
from ._errors import (
    Aborted,
    Error,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutcomeUnknown,
    ResourceExhausted,
    Unavailable,
)

__all__ = [
    "Aborted",
    "Cell",
    "Client",
    "Error",
    "FailedPrecondition",
    "InvalidArgument",
    "NotFound",
    "Outcome",
    "OutcomeUnknown",
    "ResourceExhausted",
    "Transaction",
    "Unavailable",
    "connect",
]
