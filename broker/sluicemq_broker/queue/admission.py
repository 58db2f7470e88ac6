"""The check of each push: the intake of a queue may be paused, or the queue may be full."""

from __future__ import annotations

from collections.abc import Callable

from sluicemq.protocol.errors import Paused
from sluicemq_broker.queue.capacity import Capacity


class Admission:
    """Admits jobs into one queue, as far as its intake is not paused and its ``capacity`` has room."""

    def __init__(self, name: str, capacity: Capacity) -> None:
        self._name = name
        self._capacity = capacity
        self._paused = False
        self._followers: list[Callable[[], None]] = []

    @property
    def open(self) -> bool:
        """Return True if jobs may come; False: scheduled runs are postponed."""
        return not self._paused and not self._capacity.full

    def check(self, before: int) -> None:
        """Raise :class:`Paused` if intake is paused, QueueFull if there is no room for one more job.

        ``before`` other jobs will be pushed before it.
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
        """Pause intake, or resume it; a repetition is harmless."""
        if paused != self._paused:
            self._paused = paused
            for follower in self._followers:
                follower()
