"""The way to MongoDB: connecting, refusing an unsafe one, its clock, and its errors translated."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

import pymongo
from bson.codec_options import DatetimeConversion
from pymongo import errors as mongo_errors
from pymongo.database import Database
from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
)
from pymongo.uri_parser import parse_uri
from pymongo.write_concern import WriteConcern

from sluicemq.protocol.errors import Unavailable
from sluicemq_broker.config import MongoUri
from sluicemq_broker.store.errors import UnsafeStore, brief, translated

log = logging.getLogger("broker.mongo")


Documents = Database[dict[str, Any]]


Client = pymongo.MongoClient[dict[str, Any]]


#: A reply that takes longer than this is given up; what the statement did is then unclear.
REPLY_TIMEOUT = 15.0


#: How long a statement waits for a primary before it is given up as not sent.
PRIMARY_TIMEOUT = 5.0


#: A heartbeat must be tried several times within a lease, so each try has this share of it, at most;
#: and at least so many seconds, or a busy machine would never have its answer in time.
_LEASE_SHARE: Final = 1 / 5


_LEAST_LEASE_TIMEOUT: Final = 0.1


#: Options of a URI that would change what is promised, or when a statement is given up: the broker has its
#: own. Reads elsewhere than at the primary took running jobs from a live broker.
_OURS: Final = {
    *("readpreference", "readpreferencetags", "maxstalenessseconds", "readconcernlevel"),
    *("w", "wtimeout", "wtimeoutms", "journal", "j", "fsync", "retrywrites", "retryreads"),
    *("timeoutms", "sockettimeoutms", "connecttimeoutms", "serverselectiontimeoutms"),
    *("waitqueuetimeoutms", "maxpoolsize"),
    *("tz_aware", "datetimeconversion", "unicode_decode_error_handler"),
}


def connect(uri: str, answered: Callable[[str, float], None] | None = None) -> Client:
    """A client that reads from the primary and whose writes wait for the majority and its journal.

    It connects when first used. What the URI says otherwise is left out, with a warning that names the
    option. ``answered`` is told of each command, by its name, how many seconds its answer took. Raises
    :class:`Unavailable` for a URI that can't be used, without a word of it that is secret.
    """
    kept, left_out = promised(uri)
    if left_out:
        log.warning("mongodb_uri: %s left out: the broker has its own", ", ".join(left_out))
    return _client(kept, REPLY_TIMEOUT, PRIMARY_TIMEOUT, pool=64, answered=answered)


def connect_for_leases(uri: str, lease: float) -> Client:
    """A client of their own for heartbeats, so that they wait for no other statement.

    Nothing is repeated by the driver: a try that is not answered within a fifth of a lease is given up,
    and the next one is the caller's.
    """
    timeout = max(lease * _LEASE_SHARE, _LEAST_LEASE_TIMEOUT)
    most = min(timeout, PRIMARY_TIMEOUT)
    return _client(promised(uri)[0], most, most, pool=16, repeat=False)


def promised(uri: str) -> tuple[str, list[str]]:
    """The URI without the options that are the broker's own; and the names of those left out."""
    hosts, mark, options = uri.partition("?")
    parts = re.split("([&;])", options)
    pairs, marks = parts[::2], parts[1::2]
    ours = [each for each in pairs if each.partition("=")[0].lower() in _OURS]
    kept = (marks or ["&"])[0].join(each for each in pairs if each not in ours)
    return hosts + (mark if kept else "") + kept, [each.partition("=")[0] for each in ours]


def _client(
    uri: str,
    reply: float,
    primary: float,
    *,
    pool: int,
    repeat: bool = True,
    answered: Callable[[str, float], None] | None = None,
) -> Client:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # of options that it would leave out
            return pymongo.MongoClient(
                uri,
                w="majority",
                retryWrites=repeat,
                retryReads=repeat,
                serverSelectionTimeoutMS=int(primary * 1000),
                socketTimeoutMS=int(reply * 1000),
                connectTimeoutMS=int(min(primary, 5.0) * 1000),
                maxPoolSize=pool,
                appname="sluicemq",
                event_listeners=[_Answers(answered)] if answered else [],
                # One document that somebody wrote by hand must not keep all others from being read.
                datetime_conversion=DatetimeConversion.DATETIME_AUTO,
                unicode_decode_error_handler="replace",
            )
    except (mongo_errors.ConfigurationError, ValueError, TypeError, OSError, UserWarning) as error:
        # Not "from error": the driver's words, which a traceback shows, may quote the URI.
        raise Unavailable(f"mongodb_uri can't be used: {_why(uri, error)}") from None


def _why(text: str, error: Exception) -> str:
    """What is wrong with a URI that the driver refuses: the option by number, or its harmless words."""
    try:
        uri = MongoUri.read(text)
    except ValueError as wrong:
        return f"expected {wrong}"
    for number, (name, value) in enumerate(uri.parts.options, 1):
        alone = f"mongodb://localhost/?{name}={value}"
        try:
            parse_uri(alone)
        except Exception as wrong:  # noqa: BLE001 - whatever the driver makes of it
            shown = str(MongoUri.read(alone)).partition("?")[2]
            return f"option no. {number}, {shown}: {_harmless(uri, wrong)}"
    return _harmless(uri, error)


def _harmless(uri: MongoUri, error: Exception) -> str:
    text = str(error)
    known = not any(secret in text for secret in uri.secrets)
    return brief(error) if text and known else f"the driver says {type(error).__name__}"


#: Told of the answers to what the greenlet that has set it sends, before the driver is done with them: giving
#: connection and session back takes it a tenth of a statement. Must neither raise nor send anything.
on_answer: ContextVar[Callable[[Mapping[str, Any]], None] | None] = ContextVar("on_answer", default=None)


class _Answers(CommandListener):
    """Tells of each command how long its answer took, that of one which failed too."""

    def __init__(self, answered: Callable[[str, float], None]) -> None:
        self._answered = answered

    def started(self, event: CommandStartedEvent) -> None:
        """Of no use yet."""

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """It was answered."""
        if heard := on_answer.get():
            heard(event.reply)
        self._answered(event.command_name, event.duration_micros / 1e6)

    def failed(self, event: CommandFailedEvent) -> None:
        """It was refused, or given up."""
        self._answered(event.command_name, event.duration_micros / 1e6)


def require_safe(client: Client, *, allow_unsafe: bool) -> str | None:
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


def _problem(client: Client, hello: dict[str, Any]) -> str | None:
    if hello.get("msg") == "isdbgrid":
        return None  # a mongos: its shards are replica sets
    if "setName" not in hello and hello.get("isreplicaset"):
        return "its replica set has not been initiated"
    if "setName" not in hello:
        return "it is a stand-alone server, which has neither majority writes nor transactions"
    try:
        settings = client.admin.command("replSetGetConfig")["config"]
    except mongo_errors.PyMongoError:
        return None  # not allowed to look; the default is safe
    if settings.get("writeConcernMajorityJournalDefault", True) is False:
        return "its replica set has writeConcernMajorityJournalDefault: false, so majority is not durable"
    return None


def durable(database: Documents) -> Documents:
    """The same database with majority writes; ``j`` is left out, since ``j: false`` waits 100 ms."""
    return database.with_options(write_concern=WriteConcern("majority"))
