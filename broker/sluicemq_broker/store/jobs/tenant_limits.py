"""How many jobs of each tenant of a fair queue may run at once, and begin in a second, over all brokers.

A job that is reserved has a *slot* of its tenant in its own document, a number below ``tenant_max_running``,
and a unique index refuses one that another job has. So whatever brokers know of each other, and whenever a
statement lands, no more are reserved; and nobody gives back anything: a slot is free when its job is not
reserved any more, by whatever statement, that of the reclaim of a dead broker's jobs, too.

Tokens of ``tenant_rate`` are taken as those of a queue's rate are, by one statement for all tenants of a
claim (:meth:`LimitStore.take_each`), once its jobs are read: so none is taken for a job that is not there.
How many there were the last time tells for how long a tenant has none for sure, and how many to read.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, islice
from random import randrange
from typing import Final

from pymongo.collection import Collection as Jobs
from pymongo.errors import OperationFailure

from sluicemq_broker.job import Job, Reservation
from sluicemq_broker.store.cluster.limits import LimitStore, TenantBucket
from sluicemq_broker.store.jobs.documents import QueueDefaults
from sluicemq_broker.store.jobs.index_models import SLOT_INDEX
from sluicemq_broker.store.jobs.indexes import Notice, make_slot_index
from sluicemq_broker.store.values import Document

#: Tokens that are kept for the next claim, at most: what so many seconds bring, or one.
BLOCK: Final = 0.25
#: Of so many tenants.
_TENANTS_KEPT: Final = 10_000
#: Of more tenants than this is read how many tokens they have; of fewer, it turns out when jobs are read.
_FEW: Final = 16
#: Seconds for which that is not read again.
_FRESH: Final = 1.0


class TenantLimits:
    """What each tenant of one queue may have: slots and tokens, by an :class:`Allowance` for each claim.

    Raises the driver's errors.
    """

    def __init__(
        self, store: LimitStore, jobs: Jobs[Document], defaults: QueueDefaults, notice: Notice
    ) -> None:
        self.most = defaults.tenant_max_running
        """Jobs of each that may run at once; None: any number."""
        self.rate = defaults.tenant_rate
        """Jobs of each that may begin in a second; None: any number."""
        self._burst = defaults.tenant_burst or max(1, round(self.rate or 0))
        self._store = store
        self._jobs = jobs
        self._notice = notice
        self._indexed = False
        self._kept: dict[str, int] = {}  # tokens that claims have taken and not used
        self._buckets: dict[str, TenantBucket] = {}  # as they were, of those that are not full since, or new

    def dropped(self) -> None:
        """The collection was removed, with all of its indexes."""
        self._indexed = False

    def allow(self, held: Reservation, now: float, brokers: int) -> Allowance:
        """What a claim under this hold may take, with so many ``brokers``."""
        if self.rate is not None:
            old = [
                each
                for each, bucket in self._buckets.items()
                if now - bucket.at > _FRESH and self._left(each, now) >= self._burst
            ]
            for each in old:
                del self._buckets[each]
        return Allowance(self, held, now, brokers)

    def look(self, tenants: Iterable[str], now: float) -> None:
        """See which of these have no token, if they are many: else each claim would find out about few."""
        known = {each for each, bucket in self._buckets.items() if now - bucket.at < _FRESH}
        unknown = [each for each in tenants if each not in known]
        if self.rate is not None and len(unknown) > _FEW:
            self._buckets |= dict.fromkeys(unknown, TenantBucket(0, self._burst, now))
            self._buckets |= self._store.buckets(unknown)
            for each in unknown:
                self._buckets[each] = TenantBucket(0, min(self._burst, self._left(each, now)), now)

    def tokens(self, tenant: str, now: float) -> int:
        """How many it has at most, as far as is known: others may have taken some."""
        return self._kept.get(tenant, 0) + int(min(self._burst, self._left(tenant, now)))

    def wait(self, tenant: str, now: float, wanted: int = 1) -> float:
        """Seconds until it has so many, at least."""
        missing = wanted - self._kept.get(tenant, 0) - self._left(tenant, now)
        return max(0.0, missing / (self.rate or math.inf))

    def taken(self, tenants: Sequence[str]) -> dict[str, set[int]]:
        """The slots of these that jobs have; those of which none runs are not in the answer."""
        if not self._indexed:
            make_slot_index(self._jobs, self._notice)
            self._indexed = True
        each: list[Document] = [
            {"$match": {"slot.tenant": {"$in": list(tenants)}}},
            {"$group": {"_id": "$slot.tenant", "taken": {"$push": "$slot.n"}}},
        ]
        try:
            found = list(self._jobs.aggregate(each, hint=SLOT_INDEX))
        except OperationFailure:  # another broker, or somebody, may have removed the index
            self._indexed = False
            raise
        return {each["_id"]: {n for n in each["taken"] if isinstance(n, int)} for each in found}

    def take(self, wanted: Mapping[str, int], held: Reservation, now: float) -> dict[str, int]:
        """Take tokens of these tenants, up to so many of each; how many."""
        had = {each: min(number, self._kept.get(each, 0)) for each, number in wanted.items()}
        self._kept = {
            each: number - had.get(each, 0)
            for each, number in self._kept.items()
            if number > had.get(each, 0)
        }
        missing = {each: number - had[each] for each, number in wanted.items() if number > had[each]}
        if missing and self.rate is not None:
            found = self._store.take_each(missing, self.rate, self._burst, now, held.owner, held.number)
            self._buckets |= found
            for tenant, bucket in found.items():
                had[tenant] += bucket.taken
        return had

    def keep(self, tokens: Mapping[str, int]) -> None:
        """These were not used; more than a block are lost, and so fewer jobs begin, never more."""
        block = int(max(1, (self.rate or 0) * BLOCK))
        if len(self._kept) > _TENANTS_KEPT:
            self._kept.clear()
        for tenant, number in tokens.items():
            if left := min(block, self._kept.get(tenant, 0) + number):
                self._kept[tenant] = left

    def _left(self, tenant: str, now: float) -> float:
        bucket = self._buckets.get(tenant)
        return self._burst if bucket is None else bucket.left + (now - bucket.at) * (self.rate or 0)


class Allowance:
    """What one claim may take of each tenant: ask who is open, grant them shares, let their jobs begin.

    ``held``: whose jobs have to wait, and the seconds until one may begin; infinity: until another has ended.
    """

    def __init__(self, limits: TenantLimits, held: Reservation, now: float, brokers: int) -> None:
        self.held: dict[str, float] = {}
        self.refused: set[str] = set()  # tenants of jobs that were read, and for which there was no token
        self._limits = limits
        self._under = held
        self._now = now
        self._alone = brokers == 1
        self._slots: dict[str, Iterator[int]] = {}
        self._room: dict[str, int] = {}  # how many more of each may be granted
        self._granted: Counter[str] = Counter()
        self._begun: Counter[str] = Counter()

    def open(self, tenants: Iterable[str]) -> list[str]:
        """Those of which a job may begin now, as far as is known."""
        new = [each for each in tenants if each not in self._room]
        self._limits.look((each for each in new if self._tokens(each)), self._now)
        for each in new:
            self._room[each] = self._tokens(each)
        asked = [each for each in new if self._room[each]]
        if self._limits.most is not None and asked:
            taken = self._limits.taken(asked)
            for each in asked:
                self._note_slots(each, taken.get(each, set()), self._limits.most)
        for each in new:
            if not self._room[each]:
                self._hold_back(each)
        return [each for each in tenants if self._room[each]]

    def grant(self, shares: Mapping[str, int]) -> dict[str, int]:
        """How many jobs of these shares may be read; who has no more room then is ``held``."""
        granted = {each: min(share, self._room[each]) for each, share in shares.items()}
        for each, number in granted.items():
            self._granted[each] += number
            self._room[each] -= number
            if not self._room[each]:
                self._hold_back(each)
        return {each: number for each, number in granted.items() if number}

    @property
    def gives_slots(self) -> bool:
        """True if each job has one."""
        return self._limits.most is not None

    def begin(self, jobs: list[Job]) -> list[Job]:
        """Take the tokens of these; those that there is none for are left out."""
        if self._limits.rate is None:
            return jobs
        left = self._limits.take(Counter(map(self._whose, jobs)), self._under, self._now)
        begin = []
        for job in jobs:
            tenant = self._whose(job)
            if left[tenant]:
                left[tenant] -= 1
                self._begun[tenant] += 1
                begin.append(job)
            else:
                self.refused.add(tenant)
                self.held[tenant] = self._limits.wait(tenant, self._now)
        return begin

    def number(self, jobs: Iterable[Job]) -> list[tuple[Job, int]]:
        """Give each its slot; who was granted none is left out."""
        slots = ((job, next(self._slots.get(self._whose(job), iter(())), None)) for job in jobs)
        return [(job, n) for job, n in slots if n is not None]

    def used(self, jobs: Iterable[Job]) -> None:
        """These are reserved: the tokens of others are kept."""
        if self._begun:
            self._limits.keep(self._begun - Counter(map(self._whose, jobs)))

    def _whose(self, job: Job) -> str:
        """As who it was read: a group's first job that was stored before the queue was fair is nobody's."""
        return job.turn if job.turn in self._granted else ""

    def _tokens(self, tenant: str) -> int:
        return sys.maxsize if self._limits.rate is None else self._limits.tokens(tenant, self._now)

    def _note_slots(self, tenant: str, taken: Collection[int], most: int) -> None:
        start = 0 if self._alone else randrange(most)  # noqa: S311 - spreads load, keeps no secret
        self._slots[tenant], room = free_slots(taken, most, start)
        self._room[tenant] = min(self._room[tenant], room)

    def _hold_back(self, tenant: str) -> None:
        """It has no room: until time has brought another token, or, without a slot, until a job has ended."""
        tokens = self._limits.wait(tenant, self._now, self._granted[tenant] + 1)
        self.held[tenant] = tokens if self._tokens(tenant) == self._granted[tenant] else math.inf


def free_slots(taken: Collection[int], most: int, start: int = 0) -> tuple[Iterator[int], int]:
    """The slots that may be given out, from ``start`` on; how many.

    Of those that nobody has the lowest ones, as many as together make ``most``. So no more run, whoever gives
    out slots meanwhile, and though jobs that began under a higher limit keep theirs: of the highest slot that
    was given out since, there are not more below it, nor were more above it, than that leaves room for.
    """
    room, end = max(0, most - len(taken)), most
    if any(each >= most for each in taken):
        end = max(islice((n for n in count() if n not in taken), room), default=-1) + 1
    begin = start % max(1, end)
    return (n for n in chain(range(begin, end), range(begin)) if n not in taken), room
