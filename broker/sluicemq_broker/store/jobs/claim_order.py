"""A claim order: in which order the ready jobs of a queue go out.

An order is one class in a file of its own, named in ``orders.ORDERS``. It says in which order jobs are
claimed and listed in MongoDB, by which index, and in which order reserved jobs wait in memory. A claim asks
it for a :class:`ClaimPage`, reads that page, and reserves what the page's allowance lets begin::

    page = order.page(request)          which jobs, in which order, and how many of each tenant
    page.replies(at_once)               their documents
    page.allowance.begin(jobs)          those that the limits of their tenants let begin
    page.more(progress=...)             whether others may be ready behind them

``priority_order.PriorityOrder`` is the shortest example. An order that sorts jobs by other fields is a
subclass of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, NamedTuple

from pymongo import IndexModel

from sluicemq_broker.job import Job, Reservation, StagedOrder
from sluicemq_broker.store.jobs.documents import QueueDefaults
from sluicemq_broker.store.jobs.indexes import IndexOnDemand, Notice
from sluicemq_broker.store.jobs.tenant_limits import Allowance
from sluicemq_broker.store.values import Document, Jobs


class ClaimRequest(NamedTuple):
    """Parameters of a claim: up to ``limit`` jobs that are ``due``, of which ``fits`` have room in memory.

    ``brokers``: how many brokers claim from this queue, ``place`` of them before this one.
    ``now``: the server's time.
    """

    due: Document
    limit: int
    fits: int
    now: float
    reservation: Reservation
    brokers: int
    place: int


class ClaimPage:
    """The jobs of one claim: read it once, then ask whether there are more. Raises the driver's errors."""

    allowance: Allowance = Allowance()
    """The jobs that the limits of tenants let begin."""

    @property
    def held(self) -> Mapping[str, float]:
        """Tenants with jobs that may not begin yet, and the seconds until one may, as far as is known."""
        return {}

    def replies(self, at_once: int) -> Iterator[list[Document]]:
        """Yield the documents, ``at_once`` in one reply of MongoDB."""
        raise NotImplementedError

    def more(self, *, progress: bool) -> bool:
        """Return True if others may be ready behind these; ``progress``: the claim used some of these."""
        raise NotImplementedError

    def stop_at(self, stored: Document) -> None:
        """Called with the last document that has room in this claim."""


class ClaimOrder:
    """The order of one queue."""

    settings: ClassVar[tuple[str, ...]] = ()
    """Names of the queue's settings that change this order."""
    sort: ClassVar[list[tuple[str, int]]]
    """The fields by which ready jobs are listed, and claimed ones are found again."""
    index: ClassVar[IndexModel | None] = None
    """The index by which they are, if that of plain queues does not do. Queues of other orders have none."""
    fields: ClassVar[Document]
    """Fields that are read of a claimed job."""
    one_by_one: ClassVar[bool]
    """True if one statement can find and reserve the first job."""

    @classmethod
    def serves(cls, defaults: QueueDefaults) -> bool:
        """Return True if a queue with these settings has this order."""
        raise NotImplementedError

    @classmethod
    def staged(cls, defaults: QueueDefaults) -> StagedOrder:
        """Return the order in memory, empty."""
        raise NotImplementedError

    def __init__(self, jobs: Jobs, defaults: QueueDefaults, notice: Notice) -> None:  # noqa: ARG002 - of some
        self._jobs = jobs
        self._on_demand = None if self.index is None else IndexOnDemand(jobs, self.index, notice)

    def indexed(self) -> AbstractContextManager[object]:
        """Make the index if need be, for the statements that come within."""
        return nullcontext() if self._on_demand is None else self._on_demand.used()

    def page(self, request: ClaimRequest) -> ClaimPage:
        """Decide which jobs the claim reads."""
        raise NotImplementedError

    def as_claimed(self, jobs: list[Job]) -> list[Job]:
        """Return jobs of the last page, which come by :attr:`sort`, as the claim would have returned them."""
        return jobs

    def on_ready(self, *, anywhere: bool) -> None:
        """Called when jobs became ready; ``anywhere``: perhaps before jobs that were read ahead."""

    def tick(self, now: float) -> None:
        """Called every second or so, to drop what was read ahead for claims that don't come."""

    def on_lost(self, now: float) -> None:
        """Called when another broker has taken jobs first that a claim had read."""

    def on_dropped(self) -> None:
        """Called when the collection was removed, with all of its indexes."""
        if self._on_demand is not None:
            self._on_demand.forget()
