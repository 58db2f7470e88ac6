"""The order of a plain queue: higher priority first, then the earliest, then first in, first out."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, ClassVar, Final

from sluicemq_broker.job import Job
from sluicemq_broker.store.jobs.claim_order import ClaimOrder, ClaimPage, ClaimRequest
from sluicemq_broker.store.jobs.documents import HANDED_OUT, ORDER, QueueDefaults
from sluicemq_broker.store.jobs.indexes import Notice
from sluicemq_broker.store.jobs.reply_sizes import replies
from sluicemq_broker.store.values import Document, Jobs

#: Seconds for which a broker claims a part of the jobs after it was too late for some.
PARTED: Final = 30.0
#: Seconds after which the parts go round: for so long a job waits for a slow broker, at most, of each broker.
ROUND: Final = 4.0
#: Only a claim of this many jobs can tell: a smaller one fills its few with jobs that others are about to
#: claim. It comes from slow workers, beside whom no part grows so long that to pass over it takes its time.
MANY: Final = 256


class StagedByPriority:
    """Higher priority first; of one priority, the first to be accepted is the first to go.

    A subclass that ranks jobs otherwise has another ``rank``, and ``by_priority`` is False.
    """

    by_priority: ClassVar[bool] = True

    def __init__(self) -> None:
        self._lines: dict[Any, deque[Job]] = {}
        self._order: list[Any] = []  # ranks, the highest first
        self._count = 0

    @staticmethod
    def rank(job: Job) -> Any:
        """Return how early a job goes: the highest rank first."""
        return job.priority

    def __len__(self) -> int:
        return self._count

    @property
    def first(self) -> Job:
        """The next job; there must be one."""
        return self._lines[self._order[0]][0]

    def add(self, jobs: Iterable[Job]) -> None:
        """Put jobs behind those of their rank."""
        count, rank_of = 0, self.rank
        for job in jobs:
            rank = rank_of(job)
            line = self._lines.get(rank)
            if line is None:
                line = self._open(rank)
            line.append(job)
            count += 1
        self._count += count

    def take(self, count: int, most_bytes: float) -> list[Job]:
        """Take out the first ``count`` jobs, fewer if these come to ``most_bytes``, but one at least."""
        taken: list[Job] = []
        size = 0
        while self._order and len(taken) < count and size < most_bytes:
            line = self._lines[self._order[0]]
            while line and len(taken) < count and size < most_bytes:
                job = line.popleft()
                size += job.size
                taken.append(job)
            if not line:
                del self._lines[self._order.pop(0)]
        self._count -= len(taken)
        return taken

    def take_first(self) -> Job:
        """Take out the first job; there must be one."""
        line = self._lines[self._order[0]]
        job = line.popleft()
        if not line:
            del self._lines[self._order.pop(0)]
        self._count -= 1
        return job

    def take_last(self, count: int) -> list[Job]:
        """Take out the last ``count`` jobs, the last one first."""
        taken: list[Job] = []
        while self._order and len(taken) < count:
            line = self._lines[self._order[-1]]
            while line and len(taken) < count:
                taken.append(line.pop())
            if not line:
                del self._lines[self._order.pop()]
        self._count -= len(taken)
        return taken

    def _open(self, rank: Any) -> deque[Job]:
        line: deque[Job] = deque()
        self._lines[rank] = line
        self._order = sorted(self._lines, reverse=True)
        return line


class PriorityOrder(ClaimOrder):
    """Jobs of a higher priority first, then those that are due earlier, then first in, first out.

    Several brokers would read the first jobs, and all but one of them in vain. So a broker that was too late
    for some claims only its part of the jobs for a while, by the remainder of their numbers. The parts go
    round, so that the jobs of a slow broker's part don't wait for it alone. Where its part has too few it
    takes a few of all. If there are many of these, nobody else claims them, and it claims no part for a
    while: to look for a part among others takes 0.4 us for each of these.
    """

    Staged: ClassVar[type[StagedByPriority]] = StagedByPriority
    """The order in memory."""
    sort = ORDER
    fields = HANDED_OUT
    one_by_one = True

    @classmethod
    def serves(cls, defaults: QueueDefaults) -> bool:  # noqa: ARG003 - whatever they are
        """Serve each queue that no other order does."""
        return True

    @classmethod
    def staged(cls, defaults: QueueDefaults) -> StagedByPriority:  # noqa: ARG003 - whatever they are
        """Return an empty one."""
        return cls.Staged()

    def __init__(self, jobs: Jobs, defaults: QueueDefaults, notice: Notice) -> None:
        super().__init__(jobs, defaults, notice)
        self._parted_until = self._whole_until = -math.inf

    def on_lost(self, now: float) -> None:
        """Claim only a part of the jobs for a while."""
        if now >= self._whole_until:
            self._parted_until = now + PARTED

    def on_left(self, now: float) -> None:
        """Claim no part for a while: nobody claims the others."""
        # Seconds for which it claims no part after it has seen that nobody else claims the others.
        self._parted_until, self._whole_until = -math.inf, now + 10.0

    def page(self, request: ClaimRequest) -> ClaimPage:
        """Take the first jobs, or the first of this broker's part."""
        if request.brokers == 1 or request.now >= self._parted_until:
            return _FirstJobs(self._jobs, request, self.sort)
        return _PartOfJobs(self._jobs, request, self.sort, self.on_left)


class _FirstJobs(ClaimPage):
    """The first jobs that are due."""

    def __init__(self, jobs: Jobs, request: ClaimRequest, sort: list[tuple[str, int]]) -> None:
        self._jobs = jobs
        self._request = request
        self._sort = sort
        self._full = False

    def replies(self, at_once: int) -> Iterator[list[Document]]:
        yield from self._read({}, self._request.limit, at_once)

    def more(self, *, progress: bool) -> bool:
        return progress and self._full

    def _read(self, which: Document, limit: int, at_once: int) -> Generator[list[Document], None, int]:
        """Yield the first of the due jobs that are ``which``; return how many."""
        due = {"$and": [self._request.due, which]} if which else self._request.due
        found = self._jobs.find(due, HANDED_OUT, limit=limit, batch_size=at_once).sort(self._sort)
        count = 0
        for reply in replies(found, at_once):
            count += len(reply)
            yield reply
        self._full = count == limit
        return count


class _PartOfJobs(_FirstJobs):
    """The first jobs of this broker's part, and a few of the others if that has too few."""

    def __init__(
        self,
        jobs: Jobs,
        request: ClaimRequest,
        sort: list[tuple[str, int]],
        on_left: Callable[[float], None],
    ) -> None:
        super().__init__(jobs, request, sort)
        self._on_left = on_left

    def replies(self, at_once: int) -> Iterator[list[Document]]:
        limit, now, brokers = self._request.limit, self._request.now, self._request.brokers
        part = {"$mod": [brokers, (self._request.place + int(now / ROUND)) % brokers]}
        count = yield from self._read({"seq": part}, limit, at_once)
        # A part is used up when a claim brings less than this part of its share of the limit: an eighth.
        if count * brokers * 8 >= limit:
            self._full = True  # perhaps: the next claim finds out
            return
        few = min(-(-limit // brokers), limit - count)
        yield from self._read({"seq": {"$not": part}}, few, at_once)
        if self._full and limit >= MANY:
            self._on_left(now)
