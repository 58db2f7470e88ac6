"""How a peer has behaved of late: how many of its messages nobody could use."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

#: A peer is cut when so many more of its messages were malformed than were not, within so many seconds.
MOST_MALFORMED: Final = 100
WITHIN: Final = 60.0
#: One that can't be told what is wrong, and loses with its connection what it has sent already.
MOST_UNTOLD: Final = 2000


class Conduct:
    """The count of one connection. A message that can be used makes up for one that can't.

    So a producer that errs now and then is never cut, but for one that sends little else it is soon over.
    ``now``: monotonic seconds.
    """

    __slots__ = ("_malformed", "_now", "_refused", "_score", "_since", "is_bad", "most")

    def __init__(self, most: int = MOST_MALFORMED, *, now: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.is_bad = False
        """What it sent last could not be used, or more of all before: others come first."""
        self._now = now
        self._malformed = 0
        self._refused = 0
        self._score = 0
        self._since = 0.0

    @property
    def is_over(self) -> bool:
        """It has sent too much that is malformed."""
        return self._score >= self.most

    def blame(self, *, malformed: bool) -> None:
        """One of the messages that are being handed over was refused, or can never be right."""
        self._refused += 1
        self._malformed += malformed

    def idle(self) -> None:
        """It has sent a turn's worth of commands, and no message."""
        self.is_bad = True

    def judge(self, messages: int) -> None:
        """So many messages were handed over, since the last call, of which some were blamed."""
        if not (self._refused or self._score):
            self.is_bad = False
            return
        now = self._now()
        if not self._score or now - self._since > WITHIN:
            self._score, self._since = 0, now
        self._score = max(0, self._score + 2 * self._malformed - messages)
        self.is_bad = bool(self._refused or self._score)
        self._malformed = self._refused = 0
