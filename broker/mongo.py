"""The way to MongoDB: connecting, refusing an unsafe one, its clock, and its errors translated."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import pymongo
from bson.errors import BSONError
from pymongo import errors as mongo_errors
from pymongo.database import Database
from pymongo.write_concern import WriteConcern

from sluicemq.errors import TooLarge, Unavailable

Documents = Database[dict[str, Any]]

#: A reply that takes longer than this is given up; what the statement did is then unclear.
REPLY_TIMEOUT = 15.0
#: How long a statement waits for a primary before it is given up as not sent.
PRIMARY_TIMEOUT = 5.0

#: The server's codes for a statement that is itself at fault. They are listed, and not those of a server
#: in trouble (a full disk, missing rights, an election): to take one of those for a refusal loses jobs.
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
    17420,  # the same, of an upsert
}


class Unclear(Unavailable):
    """A write may or may not have happened: its reply was lost or its durability is not known."""


class Refused(TooLarge):
    """The statement itself is at fault, so waiting can't cure it: with checked jobs, only by their size."""


class UnsafeStore(Unavailable):
    """The MongoDB can't keep the promise that a confirmed job survives."""


def connect(uri: str) -> pymongo.MongoClient[dict[str, Any]]:
    """A client whose writes wait for the majority and its journal; it connects when first used.

    Raises :class:`Unavailable` for a URI that can't be read.
    """
    try:
        return pymongo.MongoClient(
            uri,
            w="majority",
            retryWrites=True,
            retryReads=True,
            serverSelectionTimeoutMS=int(PRIMARY_TIMEOUT * 1000),
            socketTimeoutMS=int(REPLY_TIMEOUT * 1000),
            connectTimeoutMS=5000,
            maxPoolSize=64,
            appname="sluicemq",
        )
    except (mongo_errors.ConfigurationError, ValueError) as error:
        raise Unavailable(
            f"mongodb_uri can't be used: {brief(error)}. Write mongodb://USER:PASSWORD@HOST:27017; "
            "in user and password, the characters @ : / % are written %40 %3A %2F %25"
        ) from error


def require_safe(client: pymongo.MongoClient[dict[str, Any]], *, allow_unsafe: bool) -> str | None:
    """Check that writes can be majority-committed and journaled.

    Returns a warning instead of raising :class:`UnsafeStore` if ``allow_unsafe``; None if all is well.
    """
    with translated():
        hello = client.admin.command("hello")
    problem = _problem(client, hello)
    if problem is None:
        return None
    if allow_unsafe:
        return f"MongoDB is not safe: {problem}; confirmed jobs may be lost (--allow-unsafe-store)"
    raise UnsafeStore(
        f"this MongoDB is refused: {problem}. Run it as a replica set (one node is enough: "
        "mongod --replSet rs0, then rs.initiate()), or pass --allow-unsafe-store if jobs may be lost"
    )


def _problem(client: pymongo.MongoClient[dict[str, Any]], hello: dict[str, Any]) -> str | None:
    if hello.get("msg") == "isdbgrid":
        return None  # a mongos: its shards are replica sets
    if "setName" not in hello:
        return "it is a stand-alone server, which has neither majority writes nor transactions"
    try:
        settings = client.admin.command("replSetGetConfig")["config"]
    except mongo_errors.PyMongoError:
        return None  # not allowed to look; the default is safe
    if settings.get("writeConcernMajorityJournalDefault", True) is False:
        return "its replica set has writeConcernMajorityJournalDefault: false, so majority is not durable"
    return None


class ServerClock:
    """The MongoDB server's time, measured by :meth:`measure` and carried on by a monotonic clock.

    All brokers use the server's time for ``eligible_at`` and ``expires_at``, so that no machine's
    own clock, nor a step in it, decides when a job is due.
    """

    def __init__(self) -> None:
        self._ahead = time.time() - time.monotonic()

    def now(self) -> float:
        """The server's time in Unix seconds, whole milliseconds as MongoDB keeps them."""
        return int((time.monotonic() + self._ahead) * 1000) / 1000

    def measure(self, client: pymongo.MongoClient[dict[str, Any]]) -> None:
        """Ask the server for its time; half the round trip is taken off."""
        before = time.monotonic()
        with translated():
            hello = client.admin.command("hello")
        middle = (before + time.monotonic()) / 2
        self._ahead = _unix(hello["localTime"]) - middle


def _unix(when: datetime) -> float:
    return when.replace(tzinfo=UTC).timestamp()


def durable(database: Documents) -> Documents:
    """The same database with majority writes; ``j`` is left out, since ``j: false`` waits 100 ms."""
    return database.with_options(write_concern=WriteConcern("majority"))


@contextmanager
def translated() -> Iterator[None]:
    """Raise this package's errors for the driver's, with the cause kept.

    :class:`Unavailable`: the statement was not sent. :class:`Unclear`: it may have been applied.
    :class:`Refused`: repeating it is of no use.
    """
    try:
        yield
    except mongo_errors.ServerSelectionTimeoutError as error:
        raise Unavailable(f"no MongoDB primary: {brief(error)}") from error
    except (BSONError, OverflowError, mongo_errors.InvalidName) as error:  # the driver could not write it
        raise Refused(f"MongoDB can't take it: {brief(error)}") from error
    except mongo_errors.PyMongoError as error:
        kind = Refused if isinstance(error, mongo_errors.OperationFailure) and _definite(error) else Unclear
        raise kind(f"{type(error).__name__}: {brief(error)}") from error


def _definite(error: mongo_errors.OperationFailure) -> bool:
    details = error.details or {}
    if details.get("writeConcernError") or details.get("writeConcernErrors"):
        return False
    codes = {each.get("code") for each in details.get("writeErrors", ())} or {error.code}
    return codes <= AT_FAULT


def brief(error: Exception) -> str:
    """The first 200 characters of a driver error, which can run to pages."""
    return str(error).split(", Timeout:")[0][:200]
