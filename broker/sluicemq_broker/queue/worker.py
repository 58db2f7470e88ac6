"""What the dispatcher knows of a worker, whatever door it came through; and one delivery to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sluicemq_broker.job.job import Job


class Delivery:
    """One job handed to one worker. ``receipt`` names it and nothing else, ever; times are monotonic."""

    __slots__ = ("handed_at", "job", "overdue_at", "receipt", "worker")

    def __init__(self, job: Job, receipt: bytes, worker: Worker, handed_at: float) -> None:
        self.job = job
        self.receipt = receipt
        self.worker = worker
        self.handed_at = handed_at
        self.overdue_at = handed_at + job.visibility_timeout


class Takes(NamedTuple):
    """How many jobs a worker takes when it is idle, and now."""

    at_most: int
    now: int


_NOTHING: Final = Takes(0, 0)


class Worker:
    """A worker of one queue: how much it can take, what it has, and how a job reaches it.

    ``prefetch`` is the most it may have unsettled; ``owed`` are receipts whose time is over, but on
    which it may still be at work, so they count like those unsettled; ``pops``: its jobs are removed
    before they are sent (at most once); ``proven``: it has answered before, so it is not still busy
    with a job from a former connection; ``counted``: what it took when that was counted last.
    """

    pops = False

    def __init__(self, name: str, prefetch: int) -> None:
        self.name = name
        self.prefetch = prefetch
        self.unsettled: dict[bytes, Delivery] = {}
        self.owed: set[bytes] = set()
        self.proven = False
        self.alone = False
        self.gone = False
        self.waiting = False
        self.counted = _NOTHING

    @property
    def free(self) -> int:
        """How many jobs it can take now; one that has or awaits a suspect takes nothing beside it."""
        if self.gone or (self.alone and self.unsettled):
            return 0
        return max(0, self.prefetch - len(self.unsettled) - len(self.owed))

    @property
    def reads(self) -> bool:
        """False while its connection takes nothing more: :meth:`Dispatch.offer` it when it does again."""
        return True

    @property
    def takes(self) -> Takes:
        """What to hold ready for it."""
        if self.gone or not self.reads:
            return _NOTHING
        if self.alone and self.unsettled:
            return Takes(self.prefetch, 0)
        return Takes(self.prefetch, max(0, self.prefetch - len(self.unsettled) - len(self.owed)))

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Send jobs to it; must not block."""
        raise NotImplementedError

    def settled(self, delivery: Delivery) -> None:
        """A delivery has ended, by its verdict."""
        self.unsettled.pop(delivery.receipt, None)
        self.proven = True

    def overdue(self, delivery: Delivery) -> None:
        """The visibility timeout of a delivery has passed without a verdict."""
        self.unsettled.pop(delivery.receipt, None)
        self.owed.add(delivery.receipt)

    def hang_up(self) -> None:
        """End its connection: it has not answered for twice the visibility timeout."""
        raise NotImplementedError
