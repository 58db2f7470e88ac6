"""Availability of MongoDB: it is asked for what a push needs, time and again; changes are reported."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from pymongo.errors import OperationFailure

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.store.connection import Client
from sluicemq_broker.store.errors import ServerCode, translated

#: Seconds between two questions, and seconds without an answer after which MongoDB counts as away. Together
#: under three seconds, which is how soon a probe of the broker's readiness sees it.
EVERY: Final = 0.5
SILENCE: Final = 2.0
#: Seconds between two confirmations by a majority, each of which writes, and seconds without one after which
#: MongoDB counts as away: longer, as a busy disk takes its time for that.
CONFIRMED_EVERY: Final = 2.0
UNCONFIRMED: Final = 4.0
#: Seconds: MongoDB is slow if all answers take longer, and no longer slow at half of that.
_SLOW: Final = 0.025
#: Answers in a row that count for that, so that one busy moment does not.
_ANSWERS: Final = 6
#: The server's codes where no replica set can confirm a read.
NOT_LINEARIZABLE: Final = (
    ServerCode.ILLEGAL_OPERATION,
    ServerCode.INVALID_OPTIONS,
    ServerCode.COMMAND_NOT_SUPPORTED,
    ServerCode.NOT_A_REPLICA_SET,
    ServerCode.READ_CONCERN_MAJORITY_NOT_ENABLED,
)

log = logging.getLogger("broker.store")


class NoMajority(UnavailableError):
    """A primary answers, and no majority confirms what it writes."""


def confirm(client: Client, database: str, seconds: float = UNCONFIRMED) -> None:
    """Ask for what a push needs: a primary, and a majority of members that confirms what it writes.

    It is a linearizable read, for which the primary has a majority confirm an empty entry of its oplog.
    Raises :class:`NoMajority` where that takes more than these seconds, :class:`Unavailable` without a
    primary. A stand-alone server has nothing to confirm.
    """
    wanted = {"filter": {"_id": "schema"}, "projection": {"_id": 1}, "limit": 1}
    level, milliseconds = {"level": "linearizable"}, max(1, int(seconds * 1000))
    with translated():
        try:
            client[database].command(
                {"find": "meta", **wanted, "readConcern": level, "maxTimeMS": milliseconds}
            )
        except OperationFailure as error:
            if error.code == ServerCode.MAX_TIME_EXPIRED:
                raise NoMajority(no_majority(seconds)) from error
            if error.code not in NOT_LINEARIZABLE:
                raise


def no_majority(seconds: float) -> str:
    """Return the sentence for a primary without a majority for these seconds."""
    return (
        f"MongoDB answers, but no majority of its members has confirmed a write for {seconds:.1f} s, and "
        "nothing can be stored until one does: members with data must be up and see each other (rs.status())"
    )


class StoreAvailability:
    """The availability of MongoDB. :meth:`watch` and :meth:`watch_majority` ask; nothing else here waits.

    A MongoDB that is stopped refuses nothing: it does not answer. So what counts is how long the last
    question has had no answer, and not whether it has failed.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, why: Callable[[], str] = lambda: ""
    ) -> None:
        """``why``: called for the state of the broker's own MongoDB, which explains its silence."""
        self._now = now
        self._why = why
        self._asked: float | None = None  # since when a ping has no answer
        self._unconfirmed: float | None = None  # since when a majority has not confirmed
        self._failed = ""
        self._took: deque[float] = deque(maxlen=_ANSWERS)
        self._slow = False
        self._on_return: list[Callable[[float], None]] = []

    @property
    def silent(self) -> float:
        """Seconds that a question has been without an answer, or confirmation; 0 if all have theirs."""
        return max(self._since(self._asked), self._since(self._unconfirmed))

    @property
    def reachable(self) -> bool:
        """True if MongoDB takes what a push needs, or may do so in a moment."""
        return self._since(self._asked) < SILENCE and self._since(self._unconfirmed) < UNCONFIRMED

    @property
    def problem(self) -> str:
        """The problem, in a sentence; empty if MongoDB is reachable."""
        if self.reachable:
            return ""
        if self._since(self._asked) < SILENCE and not self._failed:
            return no_majority(self.silent)
        why = self._why() or self._failed
        return f"MongoDB has not answered for {self.silent:.1f} s{': ' if why else ''}{why}"

    def on_return(self, tell: Callable[[float], None]) -> None:
        """Call ``tell`` with the seconds of silence when MongoDB is back after more than a moment."""
        self._on_return.append(tell)

    def watch(self, client: Client) -> None:
        """Ping once, and note the answer; silence counts from the first ping that failed."""
        sent = self._now()
        self._asked = sent if self._asked is None else self._asked
        try:
            with translated():
                client.admin.command("ping")
        except UnavailableError as error:
            self._failed = str(error)
        else:
            self._took.append(self._now() - sent)
            self._judge_pace()
            with self._telling_return():
                self._asked, self._failed = None, ""

    def watch_majority(self, client: Client, database: str) -> None:
        """Have a majority confirm something once, and note whether it does."""
        self._unconfirmed = self._now() if self._unconfirmed is None else self._unconfirmed
        with suppress(UnavailableError):
            confirm(client, database)
            with self._telling_return():
                self._unconfirmed = None

    @contextmanager
    def _telling_return(self) -> Iterator[None]:
        """Note an answer in the body, and tell if MongoDB is back by it."""
        silent, was_away = self.silent, not self.reachable
        yield
        if was_away and self.reachable:
            for tell in self._on_return:
                tell(silent)

    def _since(self, began: float | None) -> float:
        return 0.0 if began is None else self._now() - began

    def _judge_pace(self) -> None:
        """Log once that every answer takes long, and once that it no longer does, by the quickest answer."""
        if len(self._took) < _ANSWERS:
            return
        quickest = min(self._took)
        if not self._slow and quickest > _SLOW:
            self._slow = True
            text = "MongoDB is slow: it takes %.0f ms for each answer at least, and a job takes several"
            log.warning(text, quickest * 1000)
        elif self._slow and quickest < _SLOW / 2:
            self._slow = False
            log.warning("MongoDB is not slow any more: it takes %.0f ms for an answer", quickest * 1000)
