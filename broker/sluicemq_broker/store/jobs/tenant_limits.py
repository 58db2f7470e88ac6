"""Limits of a fair queue's tenants: how many jobs of each run at once, and begin in a second, at all brokers.

A reserved job has a *slot* of its tenant in its own document, a number below ``tenant_max_running``. A unique
index refuses a slot that another job has. So no more jobs are reserved, whatever brokers know of each other
and whenever a statement lands. Nobody gives a slot back: it is free when its job is no longer reserved, by
any statement, also the reclaim of a dead broker's jobs.

Tokens of ``tenant_rate`` are taken as those of a queue's rate: by one statement for all tenants of a claim
(:meth:`LimitStore.take_each`), after its jobs were read, so that none is taken for a missing job. How many
were left the last time tells how long a tenant has none for sure, and how many of its jobs to read.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, count, islice
from random import randrange
from types import MappingProxyType
from typing import Final

from sluicemq_broker.job import Job, Reservation
from sluicemq_broker.store.cluster.limits import LimitStore, TenantBucket
from sluicemq_broker.store.jobs.documents import QueueDefaults, queue_of
from sluicemq_broker.store.jobs.index_models import SLOTS
from sluicemq_broker.store.jobs.indexes import IndexOnDemand, Notice
from sluicemq_broker.store.values import Document, Jobs

#: Unused tokens that are kept for the next claim, at most: as many as come in these seconds, or one.
BLOCK: Final = 0.25
#: Seconds for which tokens are not read again.
_FRESH: Final = 1.0


class Allowance:
    """The jobs that one claim may take of each tenant: any number. :class:`TenantAllowance` limits it."""

    held: Mapping[str, float] = MappingProxyType({})
    """Tenants whose jobs have to wait, and the seconds until one may begin; infinity: until one ends."""
    refused: AbstractSet[str] = frozenset()
    """Tenants of jobs that were read, and for which there was no token."""
    limited = False
    """True if any tenant may have to wait."""
    gives_slots = False
    """True if each job gets a slot."""

    def open(self, tenants: Sequence[str]) -> Sequence[str]:
        """Return the tenants of which a job may begin now, as far as is known."""
        return tenants

    def grant(self, shares: dict[str, int]) -> dict[str, int]:
        """Return how many jobs of these shares may be read; a tenant without more room is ``held`` then."""
        return shares

    def begin(self, jobs: list[Job]) -> list[Job]:
        """Take the tokens of jobs; jobs without a token are left out."""
        return jobs

    def number(self, _jobs: Iterable[Job]) -> list[tuple[Job, int]]:
        """Give each job its slot; jobs of tenants without one are left out."""
        return []

    def settle(self, _begun: Sequence[Job], _reserved: Sequence[Job]) -> bool:
        """Keep the tokens of jobs that began and are not reserved; return True if there were any."""
        return False


class TenantLimits:
    """The slots and tokens of the tenants of one queue. Raises the driver's errors."""

    def __init__(self, jobs: Jobs, defaults: QueueDefaults, notice: Notice) -> None:
        self.most = defaults.tenant_max_running
        """Jobs of each tenant that may run at once; None: any number."""
        self.rate = defaults.tenant_rate
        """Jobs of each tenant that may begin in a second; None: any number."""
        self._burst = defaults.tenant_burst or max(1, round(self.rate or 0))
        self._store = LimitStore(jobs.database, queue_of(jobs.name))
        self._jobs = jobs
        self.index = IndexOnDemand(jobs, SLOTS, notice)
        """The index of slots."""
        self._kept: dict[str, int] = {}  # tokens that claims have taken and not used
        self._buckets: dict[str, TenantBucket] = {}  # as they were last, of those that are not full again

    def allow(self, reservation: Reservation, now: float, brokers: int) -> Allowance:
        """Return what a claim under this reservation may take, as one of ``brokers``."""
        if self.rate is not None:
            full = [
                tenant
                for tenant, bucket in self._buckets.items()
                if now - bucket.at > _FRESH and self._left(tenant, now) >= self._burst
            ]
            for tenant in full:
                del self._buckets[tenant]
        return TenantAllowance(self, reservation, now, brokers)

    def read_tokens(self, tenants: Iterable[str], now: float) -> None:
        """Read the tokens of tenants, if they are many: else each claim would find out about a few."""
        known = {tenant for tenant, bucket in self._buckets.items() if now - bucket.at < _FRESH}
        unknown = [tenant for tenant in tenants if tenant not in known]
        # The tokens of more tenants than this are read ahead; of fewer tenants, they turn out when jobs are
        # read.
        if self.rate is not None and len(unknown) > 16:
            self._buckets |= dict.fromkeys(unknown, TenantBucket(0, self._burst, now))
            self._buckets |= self._store.buckets(unknown)
            for tenant in unknown:
                self._buckets[tenant] = TenantBucket(0, min(self._burst, self._left(tenant, now)), now)

    def tokens(self, tenant: str, now: float) -> int:
        """Return how many tokens a tenant has at most: other brokers may have taken some."""
        return self._kept.get(tenant, 0) + int(min(self._burst, self._left(tenant, now)))

    def wait(self, tenant: str, now: float, wanted: int = 1) -> float:
        """Return the seconds until a tenant has ``wanted`` tokens, at least."""
        missing = wanted - self._kept.get(tenant, 0) - self._left(tenant, now)
        return max(0.0, missing / (self.rate or math.inf))

    def taken(self, tenants: Sequence[str]) -> dict[str, set[int]]:
        """Return the slots that jobs of these tenants have; tenants without any are left out."""
        steps: list[Document] = [
            {"$match": {"slot.tenant": {"$in": list(tenants)}}},
            {"$group": {"_id": "$slot.tenant", "taken": {"$push": "$slot.n"}}},
        ]
        with self.index.used() as name:
            found = list(self._jobs.aggregate(steps, hint=name))
        return {document["_id"]: {n for n in document["taken"] if isinstance(n, int)} for document in found}

    def take(self, wanted: Mapping[str, int], reservation: Reservation, now: float) -> dict[str, int]:
        """Take up to ``wanted`` tokens of each tenant; return how many."""
        had = {tenant: min(number, self._kept.get(tenant, 0)) for tenant, number in wanted.items()}
        self._kept = {
            tenant: number - had.get(tenant, 0)
            for tenant, number in self._kept.items()
            if number > had.get(tenant, 0)
        }
        missing = {tenant: number - had[tenant] for tenant, number in wanted.items() if number > had[tenant]}
        if missing and self.rate is not None:
            found = self._store.take_each(missing, self.rate, self._burst, now, *reservation)
            self._buckets |= found
            for tenant, bucket in found.items():
                had[tenant] += bucket.taken
        return had

    def keep(self, tokens: Mapping[str, int]) -> None:
        """Keep unused tokens; more than a block of a tenant are lost, so fewer jobs begin, never more."""
        block = int(max(1, (self.rate or 0) * BLOCK))
        # Tenants whose unused tokens are kept.
        if len(self._kept) > 10_000:
            self._kept.clear()
        for tenant, number in tokens.items():
            if left := min(block, self._kept.get(tenant, 0) + number):
                self._kept[tenant] = left

    def _left(self, tenant: str, now: float) -> float:
        bucket = self._buckets.get(tenant)
        return self._burst if bucket is None else bucket.left + (now - bucket.at) * (self.rate or 0)


class TenantAllowance(Allowance):
    """The jobs of each tenant that one claim may take, by slots and tokens."""

    limited = True

    def __init__(self, limits: TenantLimits, reservation: Reservation, now: float, brokers: int) -> None:
        self.held: dict[str, float] = {}
        self.refused: set[str] = set()
        self.gives_slots = limits.most is not None
        self._limits = limits
        self._reservation = reservation
        self._now = now
        self._alone = brokers == 1
        self._slots: dict[str, Iterator[int]] = {}
        self._room: dict[str, int] = {}  # how many more of each may be granted
        self._granted: Counter[str] = Counter()
        self._begun: Counter[str] = Counter()

    def open(self, tenants: Sequence[str]) -> Sequence[str]:
        """Return the tenants with a token and a free slot."""
        new = [tenant for tenant in tenants if tenant not in self._room]
        self._limits.read_tokens((tenant for tenant in new if self._tokens(tenant)), self._now)
        for tenant in new:
            self._room[tenant] = self._tokens(tenant)
        with_tokens = [tenant for tenant in new if self._room[tenant]]
        if self._limits.most is not None and with_tokens:
            taken = self._limits.taken(with_tokens)
            for token in with_tokens:
                self._note_slots(token, taken.get(token, set()), self._limits.most)
        for tenant in new:
            if not self._room[tenant]:
                self._hold_back(tenant)
        return [tenant for tenant in tenants if self._room[tenant]]

    def grant(self, shares: dict[str, int]) -> dict[str, int]:
        """Cut each share to the room of its tenant."""
        granted = {tenant: min(share, self._room[tenant]) for tenant, share in shares.items()}
        for tenant, number in granted.items():
            self._granted[tenant] += number
            self._room[tenant] -= number
            if not self._room[tenant]:
                self._hold_back(tenant)
        return {tenant: number for tenant, number in granted.items() if number}

    def begin(self, jobs: list[Job]) -> list[Job]:
        """Take the tokens by one statement."""
        if self._limits.rate is None:
            return jobs
        left = self._limits.take(Counter(map(self._tenant_of, jobs)), self._reservation, self._now)
        begin = []
        for job in jobs:
            tenant = self._tenant_of(job)
            if left[tenant]:
                left[tenant] -= 1
                self._begun[tenant] += 1
                begin.append(job)
            else:
                self.refused.add(tenant)
                self.held[tenant] = self._limits.wait(tenant, self._now)
        return begin

    def number(self, jobs: Iterable[Job]) -> list[tuple[Job, int]]:
        """Give out the free slots that were read."""
        slots = ((job, next(self._slots.get(self._tenant_of(job), iter(())), None)) for job in jobs)
        return [(job, n) for job, n in slots if n is not None]

    def settle(self, begun: Sequence[Job], reserved: Sequence[Job]) -> bool:
        """Keep the unused tokens for the next claim."""
        if self._begun:
            self._limits.keep(self._begun - Counter(map(self._tenant_of, reserved)))
        return len(reserved) < len(begun)  # other jobs have their slots, and other slots may be free

    def _tenant_of(self, job: Job) -> str:
        """Return the tenant in whose share the job was read.

        The first job of a group that was stored before the queue was fair has none.
        """
        return job.turn if job.turn in self._granted else ""

    def _tokens(self, tenant: str) -> int:
        return sys.maxsize if self._limits.rate is None else self._limits.tokens(tenant, self._now)

    def _note_slots(self, tenant: str, taken: Collection[int], most: int) -> None:
        start = 0 if self._alone else randrange(most)  # noqa: S311 - spreads load, keeps no secret
        self._slots[tenant], room = free_slots(taken, most, start)
        self._room[tenant] = min(self._room[tenant], room)

    def _hold_back(self, tenant: str) -> None:
        """Note how long a tenant without room waits: for a token or, without a slot, until a job ends."""
        tokens = self._limits.wait(tenant, self._now, self._granted[tenant] + 1)
        self.held[tenant] = tokens if self._tokens(tenant) == self._granted[tenant] else math.inf


def free_slots(taken: Collection[int], most: int, start: int = 0) -> tuple[Iterator[int], int]:
    """Return the slots that may be given out, from ``start`` on, and how many they are.

    These are the lowest free ones, as many as make ``most`` together with those that are taken. So no more
    jobs run, though other brokers give out slots meanwhile, and though jobs that began under a higher limit
    keep theirs::

        most 3, taken {0, 7}  ->  slot 1 only: 7 counts
    """
    room, end = max(0, most - len(taken)), most
    if any(count >= most for count in taken):
        end = max(islice((n for n in count() if n not in taken), room), default=-1) + 1
    begin = start % max(1, end)
    return (n for n in chain(range(begin, end), range(begin)) if n not in taken), room
