"""Whether MongoDB answers: asked twice a second, and told at once, whoever wants to know."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from sluicemq.protocol.errors import Unavailable
from sluicemq_broker.store.connection import Client
from sluicemq_broker.store.errors import translated

#: Seconds between two questions; and after so many without an answer MongoDB is told to be away. Together
#: under three seconds, which is how soon a probe of the broker's readiness hears of it.
EVERY: Final = 0.5
SILENCE: Final = 2.0
#: Seconds: a MongoDB whose answers all take longer is said to be slow, and no more so at half of that.
_SLOW: Final = 0.025
#: So many answers in a row: a busy moment is none.
_ANSWERS: Final = 6

log = logging.getLogger("broker.store")


class StoreAvailability:
    """What is known of MongoDB. :meth:`watch` asks; nothing else here waits.

    A MongoDB that is stopped refuses nothing: it does not answer. So what counts is for how long the last
    question has had no answer, and not whether it has failed by now.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, why: Callable[[], str] = lambda: ""
    ) -> None:
        """``why``: what is known of a MongoDB of the broker's own, which says more than its silence."""
        self._now = now
        self._why = why
        self._asked: float | None = None  # since when an answer is awaited
        self._failed = ""
        self._took: deque[float] = deque(maxlen=_ANSWERS)
        self._slow = False
        self._on_return: list[Callable[[float], None]] = []

    @property
    def silent(self) -> float:
        """Seconds without an answer to a question that was asked; 0 if all were answered."""
        return 0.0 if self._asked is None else self._now() - self._asked

    @property
    def reachable(self) -> bool:
        """True if MongoDB answers, or may do so in a moment."""
        return self.silent < SILENCE

    @property
    def problem(self) -> str:
        """What is wrong, in a sentence; empty if it is reachable."""
        if self.reachable:
            return ""
        why = self._why() or self._failed
        return f"MongoDB has not answered for {self.silent:.1f} s{': ' if why else ''}{why}"

    def on_return(self, tell: Callable[[float], None]) -> None:
        """Call this when it answers again after more than a moment, with how many seconds it was silent."""
        self._on_return.append(tell)

    def watch(self, client: Client) -> None:
        """Ask once, and note the answer; a question that fails is counted from when it was asked first."""
        if self._asked is None:
            self._asked = self._now()
        sent = self._now()
        try:
            with translated():
                client.admin.command("ping")
        except Unavailable as error:
            self._failed = str(error)
        else:
            silent, lost = self.silent, not self.reachable
            self._took.append(self._now() - sent)
            self._judge_pace()
            self._asked, self._failed = None, ""
            if lost:
                for tell in self._on_return:
                    tell(silent)

    def _judge_pace(self) -> None:
        """Say, once, that every answer takes long, and that it does no more: by the quickest of the last."""
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
