"""The port of producers: what every door does with the jobs that it takes in."""

from __future__ import annotations

from collections.abc import Mapping

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.job import Job
from sluicemq_broker.queue import OnStored, Push, Pusher, Queue
from sluicemq_broker.runtime import Counters
from sluicemq_broker.security import charge
from sluicemq_devices.hub import Fillers, Watermark
from sluicemq_devices.sockets import Lane


class Inflow:
    """Jobs on their way to MongoDB, bounded by ``mark``.

    MongoDB may be slow, or refuse, for one queue alone. Its jobs leave room for those of the others:
    connections that fill its share are not read until half of it is stored.
    """

    def __init__(self, mark: Watermark, counters: Counters) -> None:
        self.mark = mark
        self._counters = counters
        self._fillers: Fillers[Queue] = Fillers(mark)

    def __len__(self) -> int:
        """Return how many queues have jobs on their way."""
        return len(self._fillers)

    def push(
        self,
        queue: Queue,
        jobs: list[Job],
        lane: Lane,
        on_stored: OnStored,
        *,
        by: Pusher | None = None,
        answered: bool = True,
    ) -> None:
        """Push jobs of one connection, and charge its principal for them.

        ``answered``: it hears of refusals, so it is read although the queue is full, unless that holds all.
        """
        count, size = len(jobs), sum([job.size for job in jobs])

        def stored(refused: dict[int, SluiceError], existing: Mapping[int, str]) -> None:
            try:
                on_stored(refused, existing)
            finally:
                self._fillers.give(queue, lane, count, size)

        self._fillers.take(queue, lane, count, size)
        queue.intake.push(Push(jobs, stored, by))
        charge(lane, count, size, self._counters)
        queue.capacity.pause_if_full(lane, answered=answered)
