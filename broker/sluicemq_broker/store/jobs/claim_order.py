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

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import ClassVar, Final, NamedTuple

from sluicemq_broker.job import Reservation
from sluicemq_broker.store.jobs.documents import HANDED_OUT, ORDER
from sluicemq_broker.store.jobs.reply_sizes import replies
from sluicemq_broker.store.jobs.tenant_limits import Allowance
from sluicemq_broker.store.values import Document, Jobs

#: Seconds for which a broker claims a part of the jobs after it was too late for some.
PARTED: Final = 30.0
#: Seconds after which the parts go round: for so long a job waits for a slow broker, at most, of each broker.
ROUND: Final = 4.0
#: A part is used up when a claim brings less than this part of its share of the limit: an eighth.
THIN: Final = 8
#: Only a claim of this many jobs can tell: a smaller one fills its few with jobs that others are about to
#: claim. It comes from slow workers, beside whom no part grows so long that to pass over it takes its time.
MANY: Final = 256
#: Seconds for which it claims no part after it has seen that nobody else claims the others.
WHOLE: Final = 10.0


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

    def on_lost(self, now: float) -> None:
        """Called when another broker has taken jobs first that a claim had read."""

    def on_dropped(self) -> None:
        """Called when the collection was removed, with all of its indexes."""


class PriorityOrder(ClaimOrder):
    """Jobs of a higher priority first, then those that are due earlier, then first in, first out.

    Several brokers would read the first jobs, and all but one of them in vain. So a broker that was too late
    for some claims only its part of the jobs for a while, by the remainder of their numbers. The parts go
    round, so that the jobs of a slow broker's part don't wait for it alone. Where its part has too few it
    takes a few of all. If there are many of these, nobody else claims them, and it claims no part for a
    while: to look for a part among others takes 0.4 us for each of these.
    """

    fields = HANDED_OUT
    one_by_one = True

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._parted_until = self._whole_until = -math.inf

    def on_lost(self, now: float) -> None:
        """Claim only a part of the jobs for a while."""
        if now >= self._whole_until:
            self._parted_until = now + PARTED

    def on_left(self, now: float) -> None:
        """Claim no part for a while: nobody claims the others."""
        self._parted_until, self._whole_until = -math.inf, now + WHOLE

    def page(self, request: ClaimRequest) -> ClaimPage:
        """Take the first jobs, or the first of this broker's part."""
        if request.brokers == 1 or request.now >= self._parted_until:
            return _FirstJobs(self._jobs, request)
        return _PartOfJobs(self._jobs, request, self.on_left)


class _FirstJobs(ClaimPage):
    """The first jobs that are due."""

    def __init__(self, jobs: Jobs, request: ClaimRequest) -> None:
        self._jobs = jobs
        self._request = request
        self._full = False

    def replies(self, at_once: int) -> Iterator[list[Document]]:
        yield from self._read({}, self._request.limit, at_once)

    def more(self, *, progress: bool) -> bool:
        return progress and self._full

    def _read(self, which: Document, limit: int, at_once: int) -> Generator[list[Document], None, int]:
        """Yield the first of the due jobs that are ``which``; return how many."""
        due = {"$and": [self._request.due, which]} if which else self._request.due
        found = self._jobs.find(due, HANDED_OUT, limit=limit, batch_size=at_once).sort(ORDER)
        count = 0
        for reply in replies(found, at_once):
            count += len(reply)
            yield reply
        self._full = count == limit
        return count


class _PartOfJobs(_FirstJobs):
    """The first jobs of this broker's part, and a few of the others if that has too few."""

    def __init__(self, jobs: Jobs, request: ClaimRequest, on_left: Callable[[float], None]) -> None:
        super().__init__(jobs, request)
        self._on_left = on_left

    def replies(self, at_once: int) -> Iterator[list[Document]]:
        limit, now, brokers = self._request.limit, self._request.now, self._request.brokers
        part = {"$mod": [brokers, (self._request.place + int(now / ROUND)) % brokers]}
        count = yield from self._read({"seq": part}, limit, at_once)
        if count * brokers * THIN >= limit:
            self._full = True  # perhaps: the next claim finds out
            return
        few = min(-(-limit // brokers), limit - count)
        yield from self._read({"seq": {"$not": part}}, few, at_once)
        if self._full and limit >= MANY:
            self._on_left(now)
