"""Orders in which the ready jobs of a queue are claimed: by priority here, fairly in ``fair_claims``.

A claim asks its order for a :class:`ClaimPage`, reads that page, and reserves what the page's allowance lets
begin::

    page = order.page(request)          which jobs, in which order, and how many of each tenant
    page.replies(at_once)               their documents
    page.allowance.begin(jobs)          those that the limits of their tenants let begin
    page.more(progress=...)             whether others may be ready behind them

Another order is another subclass of each of these two classes, chosen in ``Claims.reconfigure``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import randrange
from typing import ClassVar, NamedTuple

from sluicemq_broker.job import Reservation
from sluicemq_broker.store.jobs.documents import HANDED_OUT, ORDER
from sluicemq_broker.store.jobs.reply_sizes import replies
from sluicemq_broker.store.jobs.tenant_limits import Allowance
from sluicemq_broker.store.values import Document, Jobs


class ClaimRequest(NamedTuple):
    """Parameters of a claim: up to ``limit`` jobs that are ``due``, of which ``fits`` have room in memory.

    ``brokers``: how many brokers claim from this queue. ``now``: the server's time.
    """

    due: Document
    limit: int
    fits: int
    now: float
    reservation: Reservation
    brokers: int


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

    fields: ClassVar[Document]
    """Fields that are read of a claimed job."""
    one_by_one: ClassVar[bool]
    """True if one statement can find and reserve the first job."""

    def page(self, request: ClaimRequest) -> ClaimPage:
        """Decide which jobs the claim reads."""
        raise NotImplementedError

    def on_ready(self, *, anywhere: bool) -> None:
        """Called when jobs became ready; ``anywhere``: perhaps before jobs that were read ahead."""

    def tick(self, now: float) -> None:
        """Called every second or so, to drop what was read ahead for claims that don't come."""

    def on_dropped(self) -> None:
        """Called when the collection was removed, with all of its indexes."""


class PriorityOrder(ClaimOrder):
    """Jobs of a higher priority first, then those that are due earlier, then first in, first out.

    Of several brokers each reads a random page, so that they don't fight for one page.
    """

    fields = HANDED_OUT
    one_by_one = True

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def page(self, request: ClaimRequest) -> ClaimPage:
        """Take a random page of as many as there are brokers."""
        skip = randrange(request.brokers) * request.limit  # noqa: S311 - spreads load, keeps no secret
        return _PriorityPage(self._jobs, request, skip)


class _PriorityPage(ClaimPage):
    """The first jobs behind ``skip`` others, or the very first where there are none."""

    def __init__(self, jobs: Jobs, request: ClaimRequest, skip: int) -> None:
        self._jobs = jobs
        self._request = request
        self._skip = skip
        self._count = 0

    def replies(self, at_once: int) -> Iterator[list[Document]]:
        yield from self._read(self._skip, at_once)
        if self._skip and not self._count:
            yield from self._read(0, at_once)

    def more(self, *, progress: bool) -> bool:
        return self._skip > 0 or (progress and self._count == self._request.limit)

    def _read(self, skip: int, at_once: int) -> Iterator[list[Document]]:
        due, limit = self._request.due, self._request.limit
        found = self._jobs.find(due, HANDED_OUT, skip=skip, limit=limit, batch_size=at_once).sort(ORDER)
        for reply in replies(found, at_once):
            self._count += len(reply)
            yield reply
