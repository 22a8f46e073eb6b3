"""Distributed transactions with Percolator, through its proxy. See ``connect``."""

from ._client import Cell, Client, Outcome, Participant, Transaction, connect
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
)

__all__ = [
    "Aborted",
    "AlreadyExists",
    "Cell",
    "Client",
    "Error",
    "FailedPrecondition",
    "InvalidArgument",
    "NotFound",
    "Outcome",
    "OutcomeUnknown",
    "Participant",
    "ResourceExhausted",
    "Transaction",
    "Unavailable",
    "connect",
]
