"""Connections to MongoDB: clients whose writes are durable, and a check of the server."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable
from typing import Any, Final

import pymongo
from bson.codec_options import DatetimeConversion
from gevent.thread import LockType
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

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.config import MongoUri
from sluicemq_broker.store.errors import UnsafeStore, brief, translated
from sluicemq_broker.store.logins import LoginWatch

log = logging.getLogger("broker.mongo")

# A condition asks for it at each notice, of which the driver makes two when it gives a connection back. With
# gevent's locks it would try to acquire one that is taken, and so let all others run before it goes on.
setattr(LockType, "_is_owned", LockType.locked)  # noqa: B010 - a name that threading looks for


Documents = Database[dict[str, Any]]


Client = pymongo.MongoClient[dict[str, Any]]


#: Seconds after which a reply is given up; the outcome of the statement is unclear then.
REPLY_TIMEOUT = 15.0


#: Seconds that a statement waits for a primary before it is given up as not sent.
PRIMARY_TIMEOUT = 5.0


#: Options of a URI that would change the broker's promises, or its time-outs: it sets its own. Reads from a
#: secondary took running jobs from a live broker.
_OURS: Final = {
    *("readpreference", "readpreferencetags", "maxstalenessseconds", "readconcernlevel"),
    *("w", "wtimeout", "wtimeoutms", "journal", "j", "fsync", "retrywrites", "retryreads"),
    *("timeoutms", "sockettimeoutms", "connecttimeoutms", "serverselectiontimeoutms"),
    *("waitqueuetimeoutms", "maxpoolsize"),
    *("tz_aware", "datetimeconversion", "unicode_decode_error_handler"),
}


def connect(uri: str, answered: Callable[[str, float], None] | None = None) -> Client:
    """Return a client that reads from the primary and whose writes wait for the majority and its journal.

    It connects when it is first used. Options of the URI that contradict this are left out, with a warning
    that names them. ``answered`` is called after each command with its name and the seconds that its answer
    took. Raises :class:`Unavailable` for a URI that can't be used, without its secrets.
    """
    kept, left_out = promised(uri)
    if left_out:
        log.warning("mongodb_uri: %s left out: the broker has its own", ", ".join(left_out))
    return _client(kept, REPLY_TIMEOUT, PRIMARY_TIMEOUT, pool=64, answered=answered)


def connect_for_leases(uri: str, lease: float) -> Client:
    """Return a client for heartbeats alone, so that they wait for no other statement.

    The driver repeats nothing: a try without an answer within a fifth of a lease is given up, and the caller
    tries again.
    """
    # A heartbeat is tried several times within a lease, so each try may take this share of it; and these
    # seconds at least, or a busy machine would never get its answer in time.
    timeout = max(lease * (1 / 5), 0.1)
    most = min(timeout, PRIMARY_TIMEOUT)
    return _client(promised(uri)[0], most, most, pool=16, repeat=False)


def connect_for_copies(uri: str) -> Client:
    """Return a client for statements on whole collections, such as making an index of millions of jobs."""
    # Seconds that a statement on a whole collection may take.
    # Seconds that such a statement waits for a primary: an election on a busy machine takes longer than 5.
    return _client(promised(uri)[0], 3600.0, 30.0, pool=4)


def promised(uri: str) -> tuple[str, list[str]]:
    """Return the URI without the options that the broker sets itself, and the names of those left out."""
    hosts, mark, options = uri.partition("?")
    parts = re.split("([&;])", options)
    pairs, marks = parts[::2], parts[1::2]
    ours = [pair for pair in pairs if pair.partition("=")[0].lower() in _OURS]
    kept = (marks or ["&"])[0].join(pair for pair in pairs if pair not in ours)
    return hosts + (mark if kept else "") + kept, [option.partition("=")[0] for option in ours]


def options_left_out(uri: str) -> list[str]:
    """Return the names of the options of a URI that :func:`connect` leaves out."""
    return promised(uri)[1]


def _client(
    uri: str,
    reply: float,
    primary: float,
    *,
    pool: int,
    repeat: bool = True,
    answered: Callable[[str, float], None] | None = None,
) -> Client:
    logins = LoginWatch()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # for options that it would ignore
            client: Client = pymongo.MongoClient(
                uri,
                w="majority",
                retryWrites=repeat,
                retryReads=repeat,
                serverSelectionTimeoutMS=int(primary * 1000),
                socketTimeoutMS=int(reply * 1000),
                connectTimeoutMS=int(min(primary, 5.0) * 1000),
                maxPoolSize=pool,
                appname="sluicemq",
                event_listeners=[logins, *([_Answers(answered)] if answered else [])],
                # One document with a strange date must not keep all others from being read.
                datetime_conversion=DatetimeConversion.DATETIME_AUTO,
                unicode_decode_error_handler="replace",
            )
    except (mongo_errors.ConfigurationError, ValueError, TypeError, OSError, UserWarning) as error:
        # Not "from error": the driver's text, which a traceback shows, may quote the URI.
        raise UnavailableError(f"mongodb_uri can't be used: {_why(uri, error)}") from None
    logins.of(client)
    return client


def _why(text: str, error: Exception) -> str:
    """Return what is wrong with a URI: the number of the option, or the driver's text without secrets."""
    try:
        uri = MongoUri.read(text)
    except ValueError as wrong:
        return f"expected {wrong}"
    by_dns = uri.parts.scheme != "mongodb://"
    for number, (name, value) in enumerate(uri.parts.options, 1):
        if by_dns and name.lower().startswith("srv"):
            continue  # no other scheme has it
        alone = f"mongodb://localhost/?{name}={value}"
        try:
            parse_uri(alone)
        except Exception as wrong:  # noqa: BLE001 - the driver raises many kinds
            shown = uri.shown_option(name, value)
            return f"option no. {number}, {shown}: {_harmless(uri, wrong)}"
    if by_dns:
        return (
            f"the hosts of {uri.parts.hosts} could not be looked up in DNS, as mongodb+srv:// needs it: "
            f"{_harmless(uri, error)} Where there is no DNS name them: mongodb://HOST,HOST/?replicaSet=NAME"
        )
    return _harmless(uri, error)


def _harmless(uri: MongoUri, error: Exception) -> str:
    text = str(error)
    known = not any(secret in text for secret in uri.secrets)
    return brief(error) if text and known else f"the driver says {type(error).__name__}"


class _Answers(CommandListener):
    """Reports how long the answer to each command took, also to one that failed."""

    def __init__(self, answered: Callable[[str, float], None]) -> None:
        self._answered = answered

    def started(self, event: CommandStartedEvent) -> None:
        """Not reported."""

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Report an answer."""
        self._answered(event.command_name, event.duration_micros / 1e6)

    def failed(self, event: CommandFailedEvent) -> None:
        """Report a command that was refused or given up."""
        self._answered(event.command_name, event.duration_micros / 1e6)


def require_safe(client: Client, *, allow_unsafe: bool) -> str | None:
    """Check that writes can be majority-committed and journaled.

    Raise :class:`UnsafeStore`, or return a warning instead if ``allow_unsafe``; None if all is well.
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
    """Return the database with majority writes; ``j`` is left out, since ``j: false`` waits 100 ms."""
    return database.with_options(write_concern=WriteConcern("majority"))
