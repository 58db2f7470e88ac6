"""Clock of the MongoDB server, by which all brokers decide when jobs are due and expire."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.runtime import Measure, better
from sluicemq_broker.store.connection import Client
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.values import seconds as as_seconds

log = logging.getLogger("broker.mongo")


class ServerClock:
    """The MongoDB server's time, measured by :meth:`measure` and carried on by a monotonic clock.

    All brokers use the server's time for ``eligible_at`` and ``expires_at``, so that no machine's own clock,
    nor a step in it, decides when a job is due. It does not go back: after a better measure it stands still
    until it is right. Only a server whose clock was set back by more is followed.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.ahead = time.time() - monotonic()
        self._best: Measure | None = None
        self._latest = 0.0
        self._on_jump: Callable[[float], None] = lambda _seconds: None

    def on_jump(self, act: Callable[[float], None]) -> None:
        """Call ``act`` with the seconds by which the server's clock was set, forward or (negative) back."""
        self._on_jump = act

    def now(self) -> float:
        """Return the server's time in Unix seconds, in whole milliseconds as MongoDB keeps them."""
        now = int((self._monotonic() + self.ahead) * 1000) / 1000
        self._latest = max(self._latest, now)
        return self._latest

    @property
    def error(self) -> float:
        """Seconds by which the time may be wrong."""
        return self._best.error_at(self._monotonic()) if self._best else float("inf")

    def set(self, client: Client, tries: int = 8) -> None:
        """Measure the time at the start, several times if answers are slow; raise Unavailable without any."""
        for left in reversed(range(tries)):
            try:
                self.measure(client)
            except UnavailableError:
                if not left and self._best is None:
                    raise
            # Seconds of error up to which the server's time is not measured again at the start.
            if self.error <= 0.025:
                return
        # Seconds of error above which there is a warning
        if self.error > 0.25:
            log.warning("the MongoDB server's time is known to %.2f s only: its answers are slow", self.error)

    def measure(self, client: Client) -> None:
        """Ask the server for its time; the best of the answers so far counts."""
        sent = self._monotonic()
        with translated():
            hello = client.admin.command("hello")
        self.learn(Measure.of(sent, self._monotonic(), as_seconds(hello["localTime"])))

    def learn(self, measure: Measure) -> None:
        """Take in one measure of the server's time."""
        known = self._best
        first = known is None
        self._best = better(known, measure)
        self.ahead = self._best.ahead
        if known is not None and not known.agrees(measure):
            self._look_at_jump(measure.ahead - known.ahead)
        back = self._latest - self._monotonic() - self.ahead
        # Seconds for which the time stands still, at most, rather than go back.
        if first or back > 10.0:  # until now it was this machine's clock, or the server's clock was set
            self._latest = 0.0

    def _look_at_jump(self, seconds: float) -> None:
        # Seconds by which the server's clock must be set at once for a warning.
        if abs(seconds) < 1.0:
            return
        log.warning(
            "the MongoDB server's clock was set %s by %.1f s: jobs and schedules that were planned by its "
            'former time come %s than meant (docs/trouble.md, "MongoDB\'s clock was wrong")',
            "forward" if seconds > 0 else "back",
            abs(seconds),
            "sooner" if seconds > 0 else "later",
        )
        self._on_jump(seconds)
