"""The order of turns of waiting peers: light peers first, and no peer waits for ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final

from sluicemq_devices.hub.time_used import HEAVY, TimeUsed

Turn = Callable[[], None]

#: A quarter of the time goes to the peers that have waited longest, if lighter ones have overtaken them.
_OVERTAKEN: Final = 1 / 3
#: Seconds that the peers that have waited longest may have in advance.
_ADVANCE: Final = 0.001


class _Place:
    """The place of a peer in the line; ``waits`` is False once it had its turn."""

    __slots__ = ("level", "tag", "turn", "waits")

    def __init__(self, turn: Turn, level: int, tag: float) -> None:
        self.turn = turn
        self.level = level
        self.tag = tag  # seconds by the clock of its level
        self.waits = True


class Line:
    """Turns that wait, the next of which is taken in O(log n).

    The lightest peer is next (:class:`~sluicemq_devices.hub.time_used.TimeUsed`). Peers of one level share
    the time, not the turns: a peer whose last turn was longer waits longer for its next one (start-time fair
    queueing, Goyal, Vin and Cheng 1996). While lighter peers overtake others, a quarter of the time
    goes to the peer that has waited longest.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, _Place]] = []
        self._oldest: deque[_Place] = deque()
        self._clocks = [0.0] * (HEAVY + 1)  # of each level: the tag of the one that had its turn last
        self._numbers = count()
        self._waiting = 0
        self._owed = 0.0  # seconds, to those that have waited longest
        self._level = 0  # of the one that was taken last

    def __len__(self) -> int:
        """Return how many turns wait."""
        return self._waiting

    def add(self, turn: Turn, time_used: TimeUsed) -> None:
        """Let ``turn`` wait."""
        level = time_used.level
        place = _Place(turn, level, self._clocks[level] + time_used.latest)
        heappush(self._heap, (level, place.tag, next(self._numbers), place))
        self._oldest.append(place)
        self._waiting += 1

    @property
    def next_level(self) -> int:
        """Level of the peer whose turn is next; the line must not be empty."""
        return self._next().level

    def take(self) -> Turn:
        """Return the next turn; call :meth:`took` with its length. The line must not be empty."""
        place = self._next()
        place.waits = False
        self._level = place.level
        self._clocks[place.level] = max(self._clocks[place.level], place.tag)
        self._waiting -= 1
        if not self._waiting:
            self._heap.clear()
            self._oldest.clear()
        return place.turn

    def took(self, seconds: float, level: int | None = None) -> None:
        """Note the length of a turn, by default the last one taken; ``level``: its peer's when it began."""
        if not self._waiting:
            self._owed = 0.0
        elif self._longest_waiting().level > (self._level if level is None else level):
            self._owed += _OVERTAKEN * seconds
        else:
            self._owed = max(-_ADVANCE, self._owed - seconds)

    def _next(self) -> _Place:
        return self._longest_waiting() if self._owed > 0 else self._lightest()

    def _lightest(self) -> _Place:
        while not self._heap[0][-1].waits:
            heappop(self._heap)
        return self._heap[0][-1]

    def _longest_waiting(self) -> _Place:
        while not self._oldest[0].waits:
            self._oldest.popleft()
        return self._oldest[0]
