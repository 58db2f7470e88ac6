"""The conduct of a peer: how many of its recent messages could not be used."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

#: A peer is cut when it has sent this many more malformed messages than good ones within ``WITHIN`` seconds.
MOST_MALFORMED: Final = 100
WITHIN: Final = 60.0
#: The limit for a PUSH peer, which hears no error and loses with its connection all that is on the way.
MOST_UNHEARD: Final = 2000


class Conduct:
    """The score of one connection: a good message makes up for a malformed one.

    A producer that errs now and then is never cut; a peer that sends little else soon is.
    ``now``: monotonic seconds.
    """

    __slots__ = ("_malformed", "_now", "_refused", "_score", "_since", "is_bad", "most")

    def __init__(self, most: int = MOST_MALFORMED, *, now: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.is_bad = False
        """True if its last messages, or most before, could not be used: it is read after all others."""
        self._now = now
        self._malformed = 0
        self._refused = 0
        self._score = 0
        self._since = 0.0

    @property
    def is_over(self) -> bool:
        """True if it has sent too many malformed messages."""
        return self._score >= self.most

    def blame(self, *, malformed: bool) -> None:
        """Note that a message being handed over was refused; ``malformed``: it can never be right."""
        self._refused += 1
        self._malformed += malformed

    def idle(self) -> None:
        """Note that the peer has sent a turn's worth of commands, and no message."""
        self.is_bad = True

    def judge(self, messages: int) -> None:
        """Add the ``messages`` that were handed over since the last call, some of which were blamed."""
        if not (self._refused or self._score):
            self.is_bad = False
            return
        now = self._now()
        if not self._score or now - self._since > WITHIN:
            self._score, self._since = 0, now
        self._score = max(0, self._score + 2 * self._malformed - messages)
        self.is_bad = bool(self._refused or self._score)
        self._malformed = self._refused = 0
