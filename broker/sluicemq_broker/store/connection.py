"""The way to MongoDB: connecting, refusing an unsafe one, its clock, and its errors translated."""

from __future__ import annotations

import logging
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final

import pymongo
from bson.codec_options import DatetimeConversion
from bson.errors import BSONError
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

from sluicemq.errors import TooLarge, Unavailable
from sluicemq_broker.config import MongoUri
from sluicemq_broker.runtime import Measure, better

log = logging.getLogger("broker.mongo")

Documents = Database[dict[str, Any]]
Client = pymongo.MongoClient[dict[str, Any]]

#: A reply that takes longer than this is given up; what the statement did is then unclear.
REPLY_TIMEOUT = 15.0
#: How long a statement waits for a primary before it is given up as not sent.
PRIMARY_TIMEOUT = 5.0
#: With less error than this the server's time is not asked for again at the start; with more than that
#: it is worth a warning.
_CLOSE_ENOUGH: Final = 0.025
_TOLERATED: Final = 0.25
#: Seconds by which the server's clock is set at once so that people hear of it.
_JUMP: Final = 1.0
#: The time stands still for so many seconds, at most, rather than go back.
_STANDS_STILL: Final = 10.0
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

#: The server's codes for a statement, or a document, that is itself at fault: repeating it is of no use.
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
    *(171, 16755, 16766, 17261, 17262, 17280),  # one that an index which somebody made can't take
}

#: The server's codes for its own trouble: what it refused then, it may take later.
TROUBLE: Final = {
    *(6, 7, 89, 9001),  # a host, or the network
    *(91, 189, 10058, 10107, 11600, 11602, 13435, 13436),  # shutting down, stepping down, no primary
    *(13, 18, 8000),  # rights that somebody is changing
    *(24, 46, 50, 112, 202, 225, 237, 251, 262, 290),  # locks, time, conflicts, cursors, transactions
    *(63, 70, 133, 134, 150, 234, 249, 279, 13388),  # shards
    *(64, 79, 100, 238, 263),  # durability
    *(14031, 39, 76, 96, 117, 146, 159, 175, 216, 276, 320, 365, 462),  # disk, memory, builds, queues
}


_DISK_FULL: Final = 14031
#: Where the settings of a driver, or the JSON of a reply, begin in the words of an error.
_SETTINGS: Final = (", Timeout:", " (configured timeouts:", ", full error:")


class Unclear(Unavailable):
    """A write may or may not have happened: its reply was lost or its durability is not known."""


class Doubtful(Unclear):
    """The server refused it with a code that is listed nowhere: the document's fault, or its own."""


class Refused(TooLarge):
    """The statement itself is at fault, so waiting can't cure it: with checked jobs, only by their size."""


class UnsafeStore(Unavailable):
    """The MongoDB can't keep the promise that a confirmed job survives."""


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


class ServerClock:
    """The MongoDB server's time, measured by :meth:`measure` and carried on by a monotonic clock.

    All brokers use the server's time for ``eligible_at`` and ``expires_at``, so that no machine's
    own clock, nor a step in it, decides when a job is due. It does not go back: after a better measure
    it stands still until it is right; only a server whose clock was set back by more is followed.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ahead = time.time() - monotonic()
        self._best: Measure | None = None
        self._latest = 0.0
        self._on_jump: Callable[[float], None] = lambda _seconds: None

    def on_jump(self, act: Callable[[float], None]) -> None:
        """Call ``act`` with the seconds by which the server's clock was set, forward or (negative) back."""
        self._on_jump = act

    def now(self) -> float:
        """The server's time in Unix seconds, whole milliseconds as MongoDB keeps them."""
        now = int((self._monotonic() + self._ahead) * 1000) / 1000
        self._latest = max(self._latest, now)
        return self._latest

    @property
    def error(self) -> float:
        """Seconds by which it may be wrong."""
        return self._best.error_at(self._monotonic()) if self._best else float("inf")

    def set(self, client: Client, tries: int = 8) -> None:
        """Measure it at the start, again if the answer was slow; raises :class:`Unavailable` without any."""
        for left in reversed(range(tries)):
            try:
                self.measure(client)
            except Unavailable:
                if not left and self._best is None:
                    raise
            if self.error <= _CLOSE_ENOUGH:
                return
        if self.error > _TOLERATED:
            log.warning("the MongoDB server's time is known to %.2f s only: its answers are slow", self.error)

    def measure(self, client: Client) -> None:
        """Ask the server for its time; the best of the answers so far holds."""
        sent = self._monotonic()
        with translated():
            hello = client.admin.command("hello")
        self.learn(Measure.of(sent, self._monotonic(), _unix(hello["localTime"])))

    def learn(self, measure: Measure) -> None:
        """The server's time was asked for."""
        known = self._best
        first = known is None
        self._best = better(known, measure)
        self._ahead = self._best.ahead
        if known is not None and not known.agrees(measure):
            self._look_at_jump(measure.ahead - known.ahead)
        back = self._latest - self._monotonic() - self._ahead
        if first or back > _STANDS_STILL:  # until here it was this machine's own; or the server's was set
            self._latest = 0.0

    def _look_at_jump(self, seconds: float) -> None:
        if abs(seconds) < _JUMP:
            return
        log.warning(
            "the MongoDB server's clock was set %s by %.1f s: jobs and schedules that were planned by its "
            'former time come %s than meant (docs/operations.md, "MongoDB\'s clock was wrong")',
            "forward" if seconds > 0 else "back",
            abs(seconds),
            "sooner" if seconds > 0 else "later",
        )
        self._on_jump(seconds)


def _unix(when: datetime) -> float:
    return when.replace(tzinfo=UTC).timestamp()


def durable(database: Documents) -> Documents:
    """The same database with majority writes; ``j`` is left out, since ``j: false`` waits 100 ms."""
    return database.with_options(write_concern=WriteConcern("majority"))


@contextmanager
def applied() -> Iterator[None]:
    """What follows a write in the same verb: that this was not sent does not mean that nothing was."""
    try:
        yield
    except mongo_errors.ServerSelectionTimeoutError as error:
        raise Unclear(f"no MongoDB primary any more: {brief(error)}") from error


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


def in_trouble(error: mongo_errors.OperationFailure) -> bool:
    """True if the server, or the way to it, is to blame: not the statement."""
    return error.code in TROUBLE or error.has_error_label("RetryableWriteError")


def brief(error: Exception) -> str:
    """The first 200 characters of a driver error, which can run to pages, without its settings and its JSON.

    A full disk is named as such.
    """
    code, text = getattr(error, "code", None), str(error)
    if isinstance(error, mongo_errors.OperationFailure) and error.details:
        wrong = _first_wrong(error.details)
        code, text = wrong.get("code", code), str(wrong.get("errmsg") or text)
    for mark in _SETTINGS:
        text = text.split(mark)[0]
    full = "the disk of MongoDB is full, make room there: " if code == _DISK_FULL else ""
    return f"{full}{text}"[:200]


def _first_wrong(details: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first error of a reply with several; else the reply."""
    for each in ("writeErrors", "writeConcernErrors"):
        if details.get(each):
            first: Mapping[str, Any] = details[each][0]
            return first
    wrong: Mapping[str, Any] = details.get("writeConcernError") or details
    return wrong
