"""The time that a peer uses at once, of the hub or of MongoDB: light peers go before heavy ones."""

from __future__ import annotations

from typing import Final

#: Seconds of the hub that a light peer takes at once, by default.
_LIGHT: Final = 0.000125
_FEW: Final = 2
#: The level of all that take more than four times what a light peer takes.
HEAVY: Final = 3


class TimeUsed:
    """The time that a peer has used, which decides its place among the waiting ones.

    It counts the time to read all that the peer has sent. A peer that sends one request
    and waits for the answer uses little of it, however often it asks. A peer that sends faster than it is
    read never comes to the end, so its level rises at once; the level falls once all was read, a few times.
    A new peer is neither light nor heavy, so a peer gains nothing by connecting again.
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
        """Level of the peer: 0 for a light one, up to :data:`HEAVY`."""
        return min(HEAVY, int(max(self._usual, self._since) / self._light).bit_length())

    @property
    def is_light(self) -> bool:
        """True for a peer that sends little at once: a ping, a job."""
        return self.level < _FEW

    def used(self, seconds: float, *, more: bool) -> None:
        """Note a turn of ``seconds``; ``more``: the peer has sent more than was read in it."""
        self.latest = seconds
        self._since += seconds
        if not more:
            self._usual = (self._usual + self._since) / 2
            self._since = 0.0
