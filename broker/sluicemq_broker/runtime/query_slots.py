"""Slots for queries to MongoDB: few at once, and each peer has its share of the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic

from gevent.event import Event

from sluicemq_devices.hub import HEAVY, Line, TimeUsed


class QuerySlots:
    """A fixed number of slots for the queries of all peers; further queries wait.

    Light peers come first, and peers that query all the time share the slots by the time that they use
    (:class:`~sluicemq_devices.hub.Line`). ``now``: monotonic seconds.
    """

    def __init__(self, count: int, now: Callable[[], float] = monotonic) -> None:
        self._free = count
        self._kept = count // 4  # from heavy peers
        self._each = max(1, count // 4)  # of one peer
        self._line = Line()
        self._now = now

    def user(self) -> SlotUser:
        """Return the account of one peer."""
        return SlotUser(self)

    @contextmanager
    def slot(self, user: SlotUser) -> Iterator[None]:
        """Wait for a slot, and hold it for the body."""
        self._enter(user)
        began, level = self._now(), user.time_used.level
        try:
            yield
        finally:
            took = self._now() - began
            user.time_used.used(took, more=True)
            self._line.took(took, level)
            self._leave(user)

    def _enter(self, user: SlotUser) -> None:
        admitted = Event()
        if user.slots < self._each:
            user.slots += 1
            self._line.add(admitted.set, user.time_used)
            self._deal()
        else:
            user.later.append(admitted.set)
        admitted.wait()

    def _leave(self, user: SlotUser) -> None:
        self._free += 1
        if user.later:
            self._line.add(user.later.popleft(), user.time_used)
        else:
            user.slots -= 1
        self._deal()

    def _deal(self) -> None:
        while self._line and self._free > (self._kept if self._line.next_level == HEAVY else 0):
            self._free -= 1
            self._line.take()()


class SlotUser:
    """The queries of one peer."""

    __slots__ = ("_slots", "later", "slots", "time_used")

    def __init__(self, slots: QuerySlots) -> None:
        self.time_used = TimeUsed(0.010)  # seconds in which MongoDB answers what a light peer asks at once
        self.slots = 0
        """Queries that have a slot, or are in the line for one."""
        self.later: deque[Callable[[], None]] = deque()
        """Queries that are not in the line yet."""
        self._slots = slots

    def slot(self) -> AbstractContextManager[None]:
        """Wait for a slot, and hold it for the body of ``with``."""
        return self._slots.slot(self)

    def answered(self) -> None:
        """Note that a query is answered; the last one ends the peer's burst of queries."""
        if not self.slots:
            self.time_used.used(0.0, more=False)
