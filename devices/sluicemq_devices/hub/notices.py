"""Counters of what went wrong, and log lines of it that a flood can't multiply."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

import gevent

About = Mapping[str, object]

_QUIET = 1.0  # seconds between two lines of one kind


class Notices:
    """Counts by name; :meth:`notice` also logs, at most one line a second for each name.

    Notices within that second are counted in the next line, which is written when the second is over.
    """

    def __init__(self, log: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.values: Counter[str] = Counter()
        self._log = log
        self._quiet_until: dict[str, float] = {}
        self._unsaid: Counter[str] = Counter()
        self._latest: dict[str, tuple[str, About | None]] = {}  # of those unsaid
        self._waiting = False

    def add(self, name: str, count: int = 1) -> None:
        """Count something that is not worth a log line."""
        self.values[name] += count

    def notice(
        self, name: str, text: str, error: BaseException | None = None, about: About | None = None
    ) -> None:
        """Count something and log it; an error is logged with its traceback.

        ``about``: fields of the log line (``queue``, ``job``, …).
        """
        self.values[name] += 1
        now = self._now()
        if now < self._quiet_until.get(name, 0.0):
            self._unsaid[name] += 1
            self._latest[name] = text, about
            self._say_later()
            return
        self._say(name, text, self._unsaid.pop(name, 0), now, error, about)

    def say_rest(self) -> None:
        """Log what was counted and not logged yet; called at the end."""
        for name in list(self._unsaid):
            self._say_latest(name, self._now())

    def _say(
        self,
        name: str,
        text: str,
        more: int,
        now: float,
        error: BaseException | None = None,
        about: About | None = None,
    ) -> None:
        self._quiet_until[name] = now + _QUIET
        level = logging.ERROR if error else logging.WARNING
        count = f" (and {more} more like it)" if more else ""
        self._log.log(level, "%s: %s%s", name, text, count, exc_info=error, extra=about)

    def _say_latest(self, name: str, now: float) -> None:
        text, about = self._latest.pop(name)
        self._say(name, text, self._unsaid.pop(name) - 1, now, about=about)

    def _say_later(self) -> None:
        if not self._waiting:
            self._waiting = True
            gevent.spawn_later(_QUIET, self._say_in_time)

    def _say_in_time(self) -> None:
        """Log the kinds whose second is over, and come again while there are others."""
        now = self._now()
        self._waiting = False
        for name in list(self._unsaid):
            if now >= self._quiet_until[name]:
                self._say_latest(name, now)
            else:
                self._say_later()
