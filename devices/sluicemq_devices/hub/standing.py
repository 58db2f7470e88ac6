"""How much of the hub's time a peer takes at once: light peers go before heavy ones."""

from __future__ import annotations

from typing import Final

#: Seconds; a peer whose requests take less is at level 0, and each level above it has twice as many.
_LIGHT: Final = 0.000125
_FEW: Final = 2
#: The level of all that take more than 0.5 ms.
HEAVY: Final = 3


class Standing:
    """The time that one peer has used, from which its place among those that wait follows.

    What counts is the time that it takes to read all that the peer has sent. A peer that sends one request
    and waits for the answer uses little of it, however often it asks. A peer that sends faster than it is
    read never comes to the end, so its level rises at once; the level falls once all was read, a few times.
    A new peer is neither light nor heavy, so a peer that connects anew gains nothing.
    """

    __slots__ = ("_since", "_usual", "latest")

    def __init__(self) -> None:
        self.latest = 0.0
        """Seconds of the last turn."""
        self._usual = 2 * _LIGHT
        self._since = 0.0

    @property
    def level(self) -> int:
        """From 0, for a light peer, to :data:`HEAVY`."""
        return min(HEAVY, int(max(self._usual, self._since) / _LIGHT).bit_length())

    @property
    def is_light(self) -> bool:
        """True for a peer that sends little at once: a ping, a job."""
        return self.level < _FEW

    def used(self, seconds: float, *, more: bool) -> None:
        """Note a turn that took so many seconds; ``more``: the peer has sent more than was read in it."""
        self.latest = seconds
        self._since += seconds
        if not more:
            self._usual = (self._usual + self._since) / 2
            self._since = 0.0
