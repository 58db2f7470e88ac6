"""Whether a queue takes jobs in: its intake may be paused, or there may be no room."""

from __future__ import annotations

from collections.abc import Callable

from sluicemq.protocol.errors import Paused
from sluicemq_broker.queue.capacity import Capacity


class Admission:
    """The way into one queue, whose ``capacity`` says how much room there is."""

    def __init__(self, name: str, capacity: Capacity) -> None:
        self._name = name
        self._capacity = capacity
        self._paused = False
        self._followers: list[Callable[[], None]] = []

    @property
    def open(self) -> bool:
        """True if jobs may come: else those that nobody pushes, as of a schedule, come later."""
        return not self._paused and not self._capacity.full

    def check(self, before: int) -> None:
        """Raises :class:`Paused` if jobs are not taken in, QueueFull if there is no room for one more.

        ``before``: so many will be pushed before it.
        """
        if self._paused:
            raise Paused(
                f"queue {self._name!r} takes no jobs: its intake is paused; "
                f"resume it with: sluicemq resume {self._name} --intake"
            )
        if self._capacity.room <= before:
            raise self._capacity.refusal()

    def follow(self, follower: Callable[[], None]) -> None:
        """Call this whenever intake is paused or resumed."""
        self._followers.append(follower)

    def pause(self, *, paused: bool) -> None:
        """Pause intake, or resume it; again is harmless."""
        if paused != self._paused:
            self._paused = paused
            for follower in self._followers:
                follower()
