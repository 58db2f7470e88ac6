"""How much a peer takes at once of the hub's time, or of MongoDB's: light peers go before heavy ones."""

from __future__ import annotations

from typing import Final

#: Seconds of the hub that a light peer takes at once, by default.
_LIGHT: Final = 0.000125
_FEW: Final = 2
#: The level of all that take more than four times what a light peer takes.
HEAVY: Final = 3


class Standing:
    """The time that one peer has used, from which its place among those that wait follows.

    What counts is the time that it takes to read all that the peer has sent. A peer that sends one request
    and waits for the answer uses little of it, however often it asks. A peer that sends faster than it is
    read never comes to the end, so its level rises at once; the level falls once all was read, a few times.
    A new peer is neither light nor heavy, so a peer that connects anew gains nothing.
    """

    __slots__ = ("_light", "_since", "_usual", "latest")

    def __init__(self, light: float = _LIGHT) -> None:
        """``light``: seconds below which a peer is at level 0; each level above it has twice as many."""
        self.latest = 0.0
        """Seconds of the last turn."""
        self._light = light
        self._usual = 2 * light
        self._since = 0.0

    @property
    def level(self) -> int:
        """From 0, for a light peer, to :data:`HEAVY`."""
        return min(HEAVY, int(max(self._usual, self._since) / self._light).bit_length())

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
