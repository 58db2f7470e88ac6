"""The order in which staged jobs go out, as the scheduler knows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Protocol

from sluicemq_broker.job.job import Job


class StagedOrder(Protocol):
    """The staged jobs of one queue, in the order in which they go out.

    A claim order of the store makes it, so that both agree.
    """

    by_priority: ClassVar[bool]
    """True if a new job goes before all ready jobs of a lower priority. Else only MongoDB knows."""

    def __len__(self) -> int:
        """Return how many jobs are in it."""

    @property
    def first(self) -> Job:
        """The next job; there must be one."""

    def add(self, jobs: Iterable[Job]) -> None:
        """Add jobs, in the order in which they were accepted."""

    def take(self, count: int, most_bytes: float) -> list[Job]:
        """Take out the next ``count`` jobs, fewer if these come to ``most_bytes``, but one at least."""

    def take_last(self, count: int) -> list[Job]:
        """Take out the ``count`` jobs that would go out last, the last one first."""
