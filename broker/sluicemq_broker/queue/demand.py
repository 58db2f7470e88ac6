"""What the workers of one broker want of a queue: what its supply is told by whoever hands jobs out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from sluicemq_broker.job import Job
from sluicemq_broker.queue.pace import Pace


class Demand(Protocol):
    """What the workers of this broker want of one queue."""

    pace: Pace

    @property
    def granting(self) -> bool:
        """True if jobs may be handed out, and somebody is there to take them."""

    @property
    def room(self) -> int:
        """How many more jobs to hold for them; nothing if what is held takes too much memory."""

    @property
    def room_bytes(self) -> int:
        """The same in bytes of payloads and headers."""

    @property
    def staged(self) -> int:
        """How many jobs are held for them."""

    def stage(self, jobs: list[Job]) -> None:
        """Hold jobs that this broker has reserved."""

    def died(self, ids: Iterable[str], groups: Iterable[str]) -> None:
        """These became dead letters when they were claimed, and were the first of their groups."""
