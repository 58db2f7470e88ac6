r"""Connections of the HTTP door: who gives way when there are too many, and when too much lies unread.

Each connection has a :class:`Place`, which is in one of four states::

    ASKING --> ANSWERED --> READING --> ASKING        a question
                       \--> FOLLOWING                 an event stream, until one side leaves

A new connection is always let in: where all places are taken, the one that has asked for nothing for longest
is ended, of the address that has most. Half of the places are for event streams at most: where one more
comes, the oldest is ended.

The bytes of answers that are not read yet are counted over all places. A peer that takes nothing of its
answer is ended when somebody waits for its memory, or for its turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Final

from sluicemq_broker.runtime import Count, Counters

#: Seconds in which a peer takes a piece of its answer, where others wait for its place or its memory.
_PATIENT: Final = 1.0


class Doing(Enum):
    """States of a connection."""

    ASKING = auto()
    ANSWERED = auto()
    READING = auto()
    FOLLOWING = auto()


class Place:
    """One connection, from ``address``; ``end`` closes it at once.

    ``unread``: bytes held for its answer; ``had``: questions and pieces of answers that it has had; ``gone``
    says whether the peer has left.
    """

    __slots__ = ("address", "doing", "end", "gone", "had", "since", "unread")

    def __init__(self, address: str, end: Callable[[], None], now: float) -> None:
        self.address = address
        self.end = end
        self.gone: Callable[[], bool] = bool
        self.doing = Doing.ASKING
        self.since = now
        self.unread = 0
        self.had = 0


class Places:
    """All connections of the door: ``most`` at once. ``held`` is told how many bytes lie unread."""

    def __init__(self, most: int, counters: Counters, held: Callable[[int], None]) -> None:
        self.most = most
        self.most_following = most // 2
        self.unread = 0
        self._counters = counters
        self._held = held
        self._places: dict[Place, None] = {}  # in the order in which they came

    def __len__(self) -> int:
        return len(self._places)

    def enter(self, address: str, end: Callable[[], None], now: float) -> Place:
        """Let a new connection in; another one gives way to it where all places are taken."""
        while len(self._places) >= self.most and self.give_way(now):
            pass
        place = Place(address, end, now)
        self._places[place] = None
        return place

    def give_way(self, now: float) -> bool:
        """End the connection that others miss least; False: each one is of use."""
        found = self._longest(Doing.ASKING) or self._stalled(now)
        if found is None:
            return False
        self._end(found)
        return True

    def leave(self, place: Place) -> None:
        """Forget a connection that has ended."""
        self._hold(place, 0)
        self._places.pop(place, None)

    def asks(self, place: Place, now: float) -> None:
        """Note that the next request of this connection is awaited."""
        self._hold(place, 0)
        place.doing, place.since = Doing.ASKING, now

    def answer(self, place: Place, now: float) -> None:
        """Note that an answer is made for this connection."""
        place.doing, place.since = Doing.ANSWERED, now
        place.had += 1

    def follow(self, place: Place, now: float) -> None:
        """Note an answer without an end; the oldest one of an address gives way where there are too many."""
        if sum(1 for _ in self._all(Doing.FOLLOWING)) >= self.most_following:
            longest = self._longest(Doing.FOLLOWING)
            if longest is not None:
                self._end(longest)
        place.doing, place.since = Doing.FOLLOWING, now

    def read(self, place: Place, unread: int, now: float) -> None:
        """Note that an answer is made, and how many bytes are held until it is read."""
        self._hold(place, unread)
        place.doing, place.since = Doing.READING, now

    def took(self, place: Place, now: float) -> None:
        """Note that the peer has taken a piece of its answer."""
        place.had += 1
        if place.doing is Doing.READING:
            place.since = now

    def end_stalled(self, now: float) -> bool:
        """End the answer that nobody has read from for longest; False if all are being read."""
        stalled = self._stalled(now)
        if stalled is None:
            return False
        self._end(stalled)
        return True

    def end_all(self, doing: Doing) -> None:
        """End all that do this."""
        for each in list(self._all(doing)):
            each.end()

    def _hold(self, place: Place, unread: int) -> None:
        if place in self._places:
            self.unread += unread - place.unread
            place.unread = unread
            self._held(self.unread)

    def _end(self, place: Place) -> None:
        self.leave(place)
        self._counters.notice(
            Count.HTTP_CONNECTIONS_CUT,
            f"{place.address}: its connection at the HTTP door was closed to make room for others, "
            f"{len(self._places)} are open of {self.most}",
        )
        place.end()

    def _all(self, doing: Doing) -> Iterator[Place]:
        return (each for each in self._places if each.doing is doing)

    def _longest(self, doing: Doing) -> Place | None:
        """The one that does this for longest, of the address with most that do."""
        found = list(self._all(doing))
        if not found:
            return None
        by_address = Counter(each.address for each in found)
        most = max(by_address.values())
        return min((each for each in found if by_address[each.address] == most), key=lambda each: each.since)

    def _stalled(self, now: float) -> Place | None:
        """The one that has taken nothing of its answer for longest, and for too long."""
        slow = [each for each in self._all(Doing.READING) if now - each.since >= _PATIENT]
        return min(slow, key=lambda each: each.since, default=None)
