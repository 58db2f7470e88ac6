"""By when everything that waits together must be done, and how all of it is hurried."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import gevent

_LOOK: Final = 0.01


class Deadline:
    """Never, until it has begun; :meth:`hurry` makes it now, also for those who wait already."""

    def __init__(self) -> None:
        self._end = float("inf")
        self._hurried = False

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return 0.0 if self._hurried else max(0.0, self._end - time.monotonic())

    def begin(self, seconds: float) -> None:
        """It is so many seconds from now."""
        self._end = time.monotonic() + seconds

    def hurry(self) -> None:
        """It is now."""
        self._hurried = True

    def until(
        self, condition: Callable[[], bool], *, within: float = float("inf"), at_least: float = 0.0
    ) -> bool:
        """Wait until ``condition`` holds; False if time is up first.

        ``within``: seconds after which this one wait is over before the deadline; ``at_least``: seconds
        that it gets even where the deadline has passed.
        """
        began = time.monotonic()
        while not condition():
            waited = time.monotonic() - began
            if waited >= at_least and (waited >= within or not self.left):
                return False
            gevent.sleep(_LOOK)
        return True
