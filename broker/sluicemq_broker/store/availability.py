"""Availability of MongoDB: it is asked twice a second, and a change is reported at once."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from sluicemq.protocol.errors import Unavailable
from sluicemq_broker.store.connection import Client
from sluicemq_broker.store.errors import translated

#: Seconds between two pings, and seconds without an answer after which MongoDB counts as away. Together under
#: three seconds, which is how soon a probe of the broker's readiness sees it.
EVERY: Final = 0.5
SILENCE: Final = 2.0
#: Seconds: MongoDB is slow if all answers take longer, and no longer slow at half of that.
_SLOW: Final = 0.025
#: Answers in a row that count for that, so that one busy moment does not.
_ANSWERS: Final = 6

log = logging.getLogger("broker.store")


class StoreAvailability:
    """The availability of MongoDB. :meth:`watch` asks; nothing else here waits.

    A MongoDB that is stopped refuses nothing: it does not answer. So what counts is how long the last ping
    has had no answer, and not whether it has failed.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, why: Callable[[], str] = lambda: ""
    ) -> None:
        """``why``: called for the state of the broker's own MongoDB, which explains its silence."""
        self._now = now
        self._why = why
        self._asked: float | None = None  # since when a ping has no answer
        self._failed = ""
        self._took: deque[float] = deque(maxlen=_ANSWERS)
        self._slow = False
        self._on_return: list[Callable[[float], None]] = []

    @property
    def silent(self) -> float:
        """Seconds that a ping has been without an answer; 0 if all were answered."""
        return 0.0 if self._asked is None else self._now() - self._asked

    @property
    def reachable(self) -> bool:
        """True if MongoDB answers, or may do so in a moment."""
        return self.silent < SILENCE

    @property
    def problem(self) -> str:
        """The problem, in a sentence; empty if MongoDB is reachable."""
        if self.reachable:
            return ""
        why = self._why() or self._failed
        return f"MongoDB has not answered for {self.silent:.1f} s{': ' if why else ''}{why}"

    def on_return(self, tell: Callable[[float], None]) -> None:
        """Call ``tell`` with the seconds of silence when MongoDB answers again after more than a moment."""
        self._on_return.append(tell)

    def watch(self, client: Client) -> None:
        """Ping once, and note the answer; silence counts from the first ping that failed."""
        if self._asked is None:
            self._asked = self._now()
        sent = self._now()
        try:
            with translated():
                client.admin.command("ping")
        except Unavailable as error:
            self._failed = str(error)
        else:
            silent, was_away = self.silent, not self.reachable
            self._took.append(self._now() - sent)
            self._judge_pace()
            self._asked, self._failed = None, ""
            if was_away:
                for tell in self._on_return:
                    tell(silent)

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
