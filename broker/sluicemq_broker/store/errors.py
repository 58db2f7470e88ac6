"""Errors of the store, and the driver's errors translated into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Final

from bson.errors import BSONError
from pymongo import errors as mongo_errors

from sluicemq.protocol.errors import TooLargeError, UnavailableError


class ServerCode(IntEnum):
    """Codes of MongoDB's errors by which a statement goes on otherwise; the names are MongoDB's."""

    UNAUTHORIZED = 13
    TYPE_MISMATCH = 14
    AUTHENTICATION_FAILED = 18
    ILLEGAL_OPERATION = 20
    NAMESPACE_NOT_FOUND = 26
    PATH_NOT_VIABLE = 28
    NAMESPACE_EXISTS = 48
    MAX_TIME_EXPIRED = 50
    INVALID_OPTIONS = 72
    INDEX_OPTIONS_CONFLICT = 85
    INDEX_KEYS_CONFLICT = 86
    WRITE_CONFLICT = 112
    COMMAND_NOT_SUPPORTED = 115
    NOT_A_REPLICA_SET = 123
    READ_CONCERN_MAJORITY_NOT_ENABLED = 148
    NO_SUCH_SESSION = 206
    INCOMPLETE_TRANSACTION_HISTORY = 217
    TRANSACTION_TOO_OLD = 225
    SNAPSHOT_TOO_OLD = 239
    SNAPSHOT_UNAVAILABLE = 246
    NO_SUCH_TRANSACTION = 251
    TRANSACTION_TOO_LARGE = 257
    TIME_LIMIT_EXCEEDED = 262
    TRANSACTION_LIFETIME_EXCEEDED = 290
    TRANSACTION_TOO_LARGE_FOR_CACHE = 388
    OF_ATLAS = 8000
    DUPLICATE_KEY = 11000
    BACKGROUND_OPERATION_IN_PROGRESS = 12587
    OUT_OF_DISK_SPACE = 14031


#: The server's codes for a statement, or a document, that is at fault itself: repeating it is of no use.
AT_FAULT: Final = {
    2,  # BadValue
    9,  # FailedToParse
    14,  # TypeMismatch
    15,  # Overflow: nested too deep
    22,  # InvalidBSON
    52,  # DollarPrefixedFieldName
    73,  # InvalidNamespace
    121,  # DocumentValidationFailure
    10334,  # BSONObjectTooLarge
    17419,  # a document that an update makes too large
    17420,  # a document that an upsert makes too large
    *(171, 16755, 16766, 17261, 17262, 17280),  # not possible in an index that somebody has made
}


#: The server's codes for its own trouble: it may take the statement later.
TROUBLE: Final = {
    *(6, 7, 89, 9001),  # a host, or the network
    *(91, 189, 10058, 10107, 11600, 11602, 13435, 13436),  # shutting down, stepping down, no primary
    *(13, 18, 8000),  # rights that somebody is changing
    *(24, 46, 50, 112, 202, 225, 237, 251, 262, 290),  # locks, time, conflicts, cursors, transactions
    *(63, 70, 133, 134, 150, 234, 249, 279, 13388),  # shards
    *(64, 79, 100, 238, 263),  # durability
    *(14031, 39, 76, 96, 117, 146, 159, 175, 216, 276, 320, 365, 462),  # disk, memory, builds, queues
}


#: Where the driver's settings, or the JSON of a reply, begin in the text of an error.
_SETTINGS: Final = (", Timeout:", " (configured timeouts:", ", full error:")


class Unclear(UnavailableError):
    """A write may have happened or not: its reply was lost, or its durability is not known."""


class Doubtful(Unclear):
    """The server refused a statement with an unknown code: the document may be at fault, or the server."""


class Refused(TooLargeError):
    """The statement itself is at fault, so waiting is of no use: with checked jobs, only by their size."""


class UnsafeStore(UnavailableError):
    """The MongoDB can't keep the promise that a confirmed job survives."""


@contextmanager
def applied() -> Iterator[None]:
    """Translate the errors behind a write of a verb: they are unclear, even where nothing was sent."""
    try:
        yield
    except mongo_errors.ServerSelectionTimeoutError as error:
        raise Unclear(f"no MongoDB primary any more: {brief(error)}") from error


@contextmanager
def translated() -> Iterator[None]:
    """Raise the store's errors for the driver's, with the cause kept.

    :class:`Unavailable`: the statement was not sent. :class:`Unclear`: it may have been applied.
    :class:`Refused`: repeating it is of no use.
    """
    try:
        yield
    except mongo_errors.ServerSelectionTimeoutError as error:
        raise UnavailableError(f"no MongoDB primary: {brief(error)}") from error
    except (BSONError, OverflowError, mongo_errors.InvalidName) as error:  # the driver can't encode it
        raise Refused(f"MongoDB can't take it: {brief(error)}") from error
    except mongo_errors.PyMongoError as error:
        if isinstance(error, mongo_errors.OperationFailure) and _lacks_an_index(error):
            raise UnavailableError("an index is missing, or not ready yet: it is made again") from error
        kind = Refused if isinstance(error, mongo_errors.OperationFailure) and _definite(error) else Unclear
        raise kind(f"{type(error).__name__}: {brief(error)}") from error


def _lacks_an_index(error: mongo_errors.OperationFailure) -> bool:
    """Return True if a hint named an index that is not there: an election may have taken it back."""
    # MongoDB has no code of its own for that
    return "hint provided does not correspond to an existing index" in str(error)


def _definite(error: mongo_errors.OperationFailure) -> bool:
    details = error.details or {}
    if details.get("writeConcernError") or details.get("writeConcernErrors"):
        return False
    codes = {failure.get("code") for failure in details.get("writeErrors", ())} or {error.code}
    return codes <= AT_FAULT


def in_trouble(error: mongo_errors.OperationFailure) -> bool:
    """Return True if the server, or the network, is at fault: not the statement."""
    return error.code in TROUBLE or error.has_error_label("RetryableWriteError")


def brief(error: Exception) -> str:
    """Return the first 200 characters of a driver's error, without its settings and its JSON.

    A full disk is named as such.
    """
    code, text = getattr(error, "code", None), str(error)
    if isinstance(error, mongo_errors.OperationFailure) and error.details:
        wrong = _first_wrong(error.details)
        code, text = wrong.get("code", code), str(wrong.get("errmsg") or text)
    for mark in _SETTINGS:
        text = text.split(mark)[0]
    full = "the disk of MongoDB is full, make room there: " if code == ServerCode.OUT_OF_DISK_SPACE else ""
    return f"{full}{text}"[:200]


def _first_wrong(details: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first error of a reply with several; otherwise the reply."""
    for kind in ("writeErrors", "writeConcernErrors"):
        if details.get(kind):
            first: Mapping[str, Any] = details[kind][0]
            return first
    wrong: Mapping[str, Any] = details.get("writeConcernError") or details
    return wrong
