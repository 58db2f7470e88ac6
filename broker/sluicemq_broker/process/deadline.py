"""One deadline for all waits of a stop, which a second signal moves to now."""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent


class Deadline:
    """A deadline: never, until it begins; :meth:`hurry` makes it now, for waits under way, too."""

    def __init__(self) -> None:
        self._end = float("inf")
        self._hurried = False

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return 0.0 if self._hurried else max(0.0, self._end - time.monotonic())

    def begin(self, seconds: float) -> None:
        """Set the deadline to ``seconds`` from now."""
        self._end = time.monotonic() + seconds

    def hurry(self) -> None:
        """Set the deadline to now."""
        self._hurried = True

    def until(
        self, condition: Callable[[], bool], *, within: float = float("inf"), at_least: float = 0.0
    ) -> bool:
        """Wait until ``condition()`` holds; False if the deadline comes first.

        ``within``: seconds for this wait, if the deadline is later; ``at_least``: seconds for this wait, even
        if the deadline has passed.
        """
        began = time.monotonic()
        while not condition():
            waited = time.monotonic() - began
            if waited >= at_least and (waited >= within or not self.left):
                return False
            gevent.sleep(0.01)
        return True
