"""The order of a fair queue: the first jobs of each tenant, as its turn in the round comes.

The tenants with jobs that are due are read from the index of fair queues, by one key for each of their
priorities, however many jobs they have. Where there are more tenants than places in a claim, they are read
from the place in the round on. So no job is stamped, and nothing is remembered but that place and, at the
only broker, some ids (``read_ahead``). A job takes part in the next round whatever made it ready: a push, a
rollback, its time, the end of another broker.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import attrgetter
from random import randint, randrange
from typing import Any, ClassVar, Final, NamedTuple

from pymongo import IndexModel

from sluicemq_broker.job import Job, RoundRobin, State
from sluicemq_broker.store.jobs.claim_order import ClaimOrder, ClaimPage, ClaimRequest
from sluicemq_broker.store.jobs.documents import HANDED_OUT_FAIRLY, ORDER, QueueDefaults
from sluicemq_broker.store.jobs.indexes import Notice, index_name
from sluicemq_broker.store.jobs.many_queues import Branch, union
from sluicemq_broker.store.jobs.priority_order import StagedByPriority
from sluicemq_broker.store.jobs.read_ahead import ReadAhead
from sluicemq_broker.store.jobs.reply_sizes import replies
from sluicemq_broker.store.jobs.tenant_limits import Allowance, TenantLimits
from sluicemq_broker.store.values import BY_ID, Document, Jobs
from sluicemq_devices.hub import in_parts

#: True of ready jobs, in a form that only the index of fair queues is known to cover: else MongoDB would try
#: the other index as well, each time.
_JUST_READY: Final = {"$gte": State.READY.value, "$lte": State.READY.value}
#: The tenants of a queue, and the jobs of each in the order of claims.
_LINES: Final = [("tenant", 1), *ORDER]
#: Its fields; ``state`` is in it so that only keys are read.
_KEYS: Final = [("state", 1), *_LINES]
#: Tenants of which more than one job is read in one statement: each takes the server 0.25 ms.
FEW: Final = 100


class _Tenant(NamedTuple):
    """A tenant with jobs that are due (empty: jobs without one), and the id of its first job."""

    name: str
    first: Any


class _Tenants(NamedTuple):
    """Tenants with jobs that are due; ``all_there``: there are no others.

    ``malformed``: ids of documents whose tenant is no name.
    """

    malformed: list[Any]
    found: list[_Tenant]
    all_there: bool


class FairPlan(NamedTuple):
    """The jobs that a claim reads: ``shares`` jobs of each tenant, behind ``skips`` others; ``limit`` in all.

    ``firsts``: the ids of their first jobs. ``malformed``: ids of documents that are no jobs. ``left_out``:
    there are tenants without a share that might have one.
    """

    shares: Mapping[str, int]
    skips: Mapping[str, int]
    firsts: Mapping[str, Any]
    malformed: Sequence[Any]
    left_out: bool
    limit: int
    now: float


class FairOrder(ClaimOrder):
    """The round of the tenants of one queue. Reads only; raises the driver's errors."""

    settings = ("fair", "weights", "tenant_max_running", "tenant_rate", "tenant_burst")
    sort = _LINES
    index: ClassVar[IndexModel] = IndexModel(
        _KEYS, name="fair", partialFilterExpression={"state": _JUST_READY}
    )
    fields = HANDED_OUT_FAIRLY
    one_by_one = False

    @classmethod
    def serves(cls, defaults: QueueDefaults) -> bool:
        """Serve fair queues."""
        return defaults.fair

    @classmethod
    def staged(cls, defaults: QueueDefaults) -> StagedFairly:
        """Return an empty round."""
        return StagedFairly(RoundRobin(defaults.weights))

    def __init__(self, jobs: Jobs, defaults: QueueDefaults, notice: Notice) -> None:
        super().__init__(jobs, defaults, notice)
        self.limits = TenantLimits(jobs, defaults, notice) if defaults.limits_tenants else None
        """The limits of tenants; None: there are none."""
        self._rounds = RoundRobin(defaults.weights)
        self._served: tuple[str, ...] = ()  # tenants of the last page, in the order of their turns
        self._many = False  # more tenants than were read at once the last time
        self._skipped = False
        self._changes = 0
        # All tenants with jobs due, as of then; None: not known, or jobs have become ready since.
        self._names: Sequence[str] | None = None
        self._looked = 0.0
        self.ahead = ReadAhead()
        """The jobs behind those of the last page, as far as they are known, at the only broker."""

    def on_ready(self, *, anywhere: bool) -> None:
        """Read the tenants again with the next claim."""
        self._changes += 1
        self._names = None
        if anywhere:
            self.ahead.forget()

    def tick(self, now: float) -> None:
        """Drop ids that were read ahead and not claimed."""
        self.ahead.forget_old(now)

    def on_dropped(self) -> None:
        """Make the indexes again with the next claim."""
        super().on_dropped()
        if self.limits is not None:
            self.limits.index.forget()

    def page(self, request: ClaimRequest) -> FairPage:
        """Share the claim among tenants; no tenant gets more than its allowance grants.

        Several brokers each read other jobs, mostly.
        """
        now, brokers, limit = request.now, request.brokers, request.fits
        allowance = Allowance()
        if self.limits is not None:
            allowance = self.limits.allow(request.reservation, now, brokers)
        due = {**request.due, "state": _JUST_READY}
        most = limit
        while True:
            alone = brokers == 1 and not allowance.limited
            known = self._known(most, now) if alone else None
            tenants = known or self._read_tenants(due, most, now)
            names = allowance.open([tenant.name for tenant in tenants.found])
            if len(names) > FEW:
                limit = self._part(names, limit, brokers)
            shares = allowance.grant(self._rounds.share(names, limit))
            if shares or tenants.all_there:
                break
            most = 4 * max(most, FEW)  # of all these none may begin
        may_have_share = [name for name in names if name in shares or name not in allowance.held]
        self._served = tuple(shares)
        left_out = not tenants.all_there or len(shares) < len(may_have_share) or bool(tenants.malformed)
        skips = self._skips(shares, brokers)
        firsts = {tenant.name: tenant.first for tenant in tenants.found}
        if brokers > 1:
            self.ahead = ReadAhead()  # others claim what is known here
        plan = FairPlan(shares, skips, firsts, tenants.malformed, left_out=left_out, limit=limit, now=now)
        return FairPage(self._jobs, due, self._rounds, plan, allowance, self.ahead)

    def as_claimed(self, jobs: list[Job]) -> list[Job]:
        """Return jobs by the turns of their tenants; each tenant's are sorted already."""
        turns = {tenant: turn for turn, tenant in enumerate(self._served)}
        return sorted(jobs, key=lambda job: turns.get(job.turn, len(turns)))

    def _part(self, tenants: Sequence[str], limit: int, brokers: int) -> int:
        """Limit a claim of many tenants to one turn of each, and divide it among brokers.

        Each of several brokers takes a random part, or all would want the jobs of the first tenants.
        """
        limit = min(limit, sum(self._rounds.weight(tenant) for tenant in tenants))
        part = -(-limit // brokers)
        return limit if brokers == 1 else randint(-(-part // 2), part)  # noqa: S311 - spreads load, keeps no secret

    def _skips(self, shares: Mapping[str, int], brokers: int) -> dict[str, int]:
        """Return how many jobs of each tenant to leave to other brokers; never twice in a row."""
        if brokers < 2 or self._skipped:
            self._skipped = False
            return {}
        pages = {tenant: randrange(brokers) for tenant, share in shares.items() if share > 1}  # noqa: S311 - as above
        self._skipped = any(pages.values())
        return {tenant: page * shares[tenant] for tenant, page in pages.items()}

    def _known(self, limit: int, now: float) -> _Tenants | None:
        """Return what :meth:`_read` would find, if the next jobs are known; None: it must look."""
        names = self._names
        # Seconds after which the tenants are read again in any case.
        if not names or not 0 <= now - self._looked < 0.25:
            return None
        rounds = limit // sum(map(self._rounds.weight, names)) + 2
        if not self.ahead.covers({name: rounds * self._rounds.weight(name) for name in names}):
            return None
        return _Tenants([], [_Tenant(name, self.ahead.first(name)) for name in names], all_there=True)

    def _read_tenants(self, due: Document, limit: int, now: float) -> _Tenants:
        """Read the tenants; note them if these are all, and none can have come meanwhile."""
        self._names, changes = None, self._changes
        tenants = self._read(due, limit)
        complete = tenants.all_there and not tenants.malformed and len(tenants.found) <= FEW
        if complete and changes == self._changes:
            self._names, self._looked = [tenant.name for tenant in tenants.found], now
        return tenants

    def _read(self, due: Document, limit: int) -> _Tenants:
        """Read tenants from the place in the round on: one more than wanted, or than :data:`FEW`."""
        most = max(limit, FEW) + 1
        at = self._rounds.at
        if not (self._many and at):
            found = self._scan(due, {}, most)
            self._many = len(found) == most
            if not (self._many and at):
                return _Tenants(*_sorted(found), all_there=not self._many)
        found = self._scan(due, {"tenant": {"$gte": at}}, most)
        if len(found) == most:
            return _Tenants(*_sorted(found), all_there=False)
        malformed, ahead = _sorted(found)
        found = self._scan(due, {"tenant": {"$not": {"$gte": at}}}, most - len(ahead))
        more_malformed, behind = _sorted(found)
        self._many = len(found) == most - len(ahead)
        return _Tenants(malformed + more_malformed, [*ahead, *behind], all_there=not self._many)

    def _scan(self, due: Document, which: Document, most: int) -> list[Document]:
        # By keys alone, so a tenant whose first job has expired is among them. MongoDB reads on to 4 MiB of
        # jobs beyond the limit: with very many tenants 13,000 small ones for 1000, in some 40 ms.
        keys = {key: value for key, value in due.items() if key != "expires_at"}
        firsts: list[Document] = [
            {"$match": {**keys, **which}},
            {"$sort": dict(_KEYS)},
            {"$group": {"_id": "$tenant", "first": {"$first": "$_id"}}},
            {"$limit": most},
        ]
        return list(self._jobs.aggregate(firsts, hint=index_name(self.index), batchSize=most + 1))


class FairPage(ClaimPage):
    """The jobs of each tenant's share, and what some tenants leave of theirs for others."""

    def __init__(
        self,
        jobs: Jobs,
        due: Document,
        rounds: RoundRobin,
        plan: FairPlan,
        allowance: Allowance,
        ahead: ReadAhead,
    ) -> None:
        self.allowance = allowance
        self._jobs = jobs
        self._due = due
        self._rounds = rounds
        self._plan = plan
        self._ahead = ahead
        self.shares = dict(plan.shares)
        self._count: Counter[str] = Counter()  # jobs that were read
        self._full: set[str] = set()  # tenants that got all they may have, and may have more jobs
        self._complete: set[str] = set()  # tenants of which as many ids are known as were asked for

    def more(self, *, progress: bool) -> bool:
        """Return True if tenants were left out, or may have more jobs and get them."""
        return progress and (self._plan.left_out or any(self._plan.skips.values()) or bool(self._with_more()))

    @property
    def held(self) -> dict[str, float]:
        """Tenants that have more jobs than their limits let begin now."""
        allowance, shares = self.allowance, self._plan.shares
        full = self._full.union(self._filled(), allowance.refused)
        return {
            tenant: wait for tenant, wait in allowance.held.items() if tenant not in shares or tenant in full
        }

    def stop_at(self, stored: Document) -> None:
        """Begin the next claim with the tenant of this job."""
        self._rounds.begin_with(_name(stored))

    def replies(self, at_once: int) -> Iterator[list[Document]]:
        """Yield the jobs, and count those of each tenant."""
        for reply in self._all(at_once):
            self._count.update(map(_name, reply))
            yield reply

    def _all(self, at_once: int) -> Iterator[list[Document]]:
        skips = self._plan.skips
        firsts = {tenant: [self._plan.firsts[tenant]] for tenant, share in self.shares.items() if share == 1}
        known = {**firsts, **self._known()}
        several = [share for share in self.shares if share not in known]
        yield from self._of(several, at_once, skips)
        if not self._count and any(skips.values()):
            yield from self._of(several, at_once, {})
        yield from self._these(known, self._plan.malformed, at_once)
        # A tenant whose first job has expired, or is another broker's by now, may have a second one.
        yield from self._of([tenant for tenant in known if not self._count[tenant]][:FEW], at_once, {})
        if len(self.shares) <= FEW and not any(skips.values()):
            yield from self._rest(at_once)
        self._ahead.more_of((tenant for tenant in self._filled() if self.shares[tenant] > 1), self._plan.now)

    def _known(self) -> dict[str, Sequence[Any]]:
        """Return the ids of jobs that are known, or that are read now together with later ones."""
        known, unknown = self._ahead.next(self.shares, self._plan.firsts, self._plan.now)
        found: dict[str, list[Document]] = {tenant: [] for tenant in unknown}
        wanted = {"priority": 1, "tenant": 1}  # the rest is read of jobs that are claimed
        branches = [self.branch(tenant, 0, self._ahead.depth, wanted) for tenant in unknown]
        if unknown:
            self._ahead.used_up()
        for document in chain.from_iterable(self._union(branches, 1000)):
            found[_name(document)].append(document)
        for tenant, jobs in found.items():
            known[tenant] = self._ahead.read(tenant, jobs, self.shares[tenant], self._plan.now)
        self._complete.update(tenant for tenant, ids in known.items() if len(ids) == self.shares[tenant])
        return known

    def _these(
        self, known: Mapping[str, Sequence[Any]], malformed: Sequence[Any], at_once: int
    ) -> Iterator[list[Document]]:
        """Read the jobs of these ids, in this order."""
        ids = [*chain.from_iterable(known.values()), *malformed]
        for part in in_parts(ids, at_once):
            named = {**self._due, "_id": {"$in": part}}
            found = self._jobs.find(named, HANDED_OUT_FAIRLY, hint=BY_ID, batch_size=len(part) + 1).to_list()
            place = {str(tenant): number for number, tenant in enumerate(part)}
            yield sorted(found, key=lambda document: place[str(document["_id"])])

    def _rest(self, at_once: int) -> Iterator[list[Document]]:
        """Read more jobs of tenants that have some, for the places that others have left."""
        filled = self._with_more()
        rest = self._plan.limit - self._count.total()
        if filled and rest >= len(filled):
            read = dict(self._count)
            self._full = {*self._filled()}.difference(filled)
            self.shares = self.allowance.grant(dict.fromkeys(filled, rest // len(filled)))
            self._count.clear()
            known, _ = self._ahead.next(self.shares, {}, self._plan.now)
            self._complete = {*known}
            yield from self._of([tenant for tenant in filled if tenant not in known], at_once, read)
            yield from self._these(known, (), at_once)

    def _with_more(self) -> list[str]:
        """Return the tenants that may have more jobs, and may get more."""
        return [tenant for tenant in self._filled() if tenant not in self.allowance.held]

    def _filled(self) -> list[str]:
        """Return the tenants of which as many jobs were read as were asked for."""
        return [
            tenant
            for tenant, share in self.shares.items()
            if self._count[tenant] >= share or tenant in self._complete
        ]

    def _of(self, tenants: Sequence[str], at_once: int, skips: Mapping[str, int]) -> Iterator[list[Document]]:
        """Read the first jobs of these tenants, behind ``skips``, as many as their shares."""
        shares = self.shares
        branches = [
            self.branch(tenant, skips.get(tenant, 0), shares[tenant], HANDED_OUT_FAIRLY) for tenant in tenants
        ]
        yield from self._union(branches, at_once)

    def _union(self, branches: Sequence[list[Document]], at_once: int) -> Iterator[list[Document]]:
        """Read what all branches find, in their order, by one statement."""
        if branches:
            together = union(Branch(self._jobs.name, branch) for branch in branches)
            yield from replies(self._jobs.aggregate(together, batchSize=at_once), at_once)

    def branch(self, tenant: str, skip: int, most: int, fields: Document) -> list[Document]:
        """Return the stages that read the next jobs of one tenant."""
        return [
            {"$match": {**self._due, "tenant": {"$eq": tenant or None}}},
            {"$sort": dict(ORDER)},
            *([{"$skip": skip}] if skip else []),
            {"$limit": most},
            {"$project": fields},
        ]


def _name(stored: Document) -> str:
    """Return a job's tenant; empty: it has none, or none that is a name."""
    tenant = stored.get("tenant")
    return tenant if isinstance(tenant, str) else ""


def _sorted(found: Sequence[Document]) -> tuple[list[Any], list[_Tenant]]:
    """Return the first documents of tenants that are no names, and the tenants by their names."""
    malformed = [document["first"] for document in found if not isinstance(document["_id"], str | None)]
    tenants = {
        document["_id"] or "": document["first"]
        for document in found
        if isinstance(document["_id"], str | None)
    }
    return malformed, [_Tenant(name, tenants[name]) for name in sorted(tenants)]


class StagedFairly:
    """Round and round the tenants, as many jobs of each as it weighs; of one tenant, by priority.

    A new tenant is the last of the round.
    """

    by_priority: ClassVar[bool] = False

    def __init__(self, rounds: RoundRobin) -> None:
        self._weight = rounds.weight
        self._lines: dict[str, StagedByPriority] = {}
        self._round: deque[str] = deque()  # the tenants; the first is the one whose turn it is
        self._left = 0  # of its turn
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def first(self) -> Job:
        """The next job; there must be one."""
        return self._lines[self._round[0]].first

    def add(self, jobs: Iterable[Job]) -> None:
        """Put jobs behind those of their tenant."""
        for tenant, run in groupby(jobs, key=attrgetter("turn")):  # a claim brings those of one together
            line = self._lines.get(tenant)
            if line is None:
                line = self._lines[tenant] = StagedByPriority()
                self._round.append(tenant)
            before = len(line)
            line.add(run)
            self._count += len(line) - before

    def take(self, count: int, most_bytes: float) -> list[Job]:
        """Take out the next ``count`` jobs, fewer if these come to ``most_bytes``, but one at least."""
        taken: list[Job] = []
        size = 0
        while self._round and len(taken) < count and size < most_bytes:
            tenant = self._round[0]
            line = self._lines[tenant]
            job = line.take_first()
            taken.append(job)
            size += job.size
            self._left = (self._left or self._weight(tenant)) - 1
            if not line:
                self._leave(tenant)
            elif not self._left:
                self._round.rotate(-1)
        self._count -= len(taken)
        return taken

    def take_last(self, count: int) -> list[Job]:
        """Take out those whose tenants have the most rounds before them, the last one first."""
        taken: list[Job] = []
        rounds = [(-len(line) / self._weight(tenant), tenant) for tenant, line in self._lines.items()]
        heapq.heapify(rounds)
        while rounds and len(taken) < count:
            _, tenant = rounds[0]
            line = self._lines[tenant]
            taken += line.take_last(1)
            if line:
                heapq.heapreplace(rounds, (-len(line) / self._weight(tenant), tenant))
            else:
                heapq.heappop(rounds)
                self._leave(tenant)
        self._count -= len(taken)
        return taken

    def _leave(self, tenant: str) -> None:
        if self._round[0] == tenant:
            self._left = 0
        self._round.remove(tenant)
        del self._lines[tenant]
