"""What the next claim of a fair queue is to bring: the first jobs of each tenant, as its turn says.

The tenants that have jobs due are read from the index of fair queues, by one key for each and each of its
priorities, however many jobs they have; where there are more than a claim has places, from where the round
is. So nothing is stamped on a job, and nothing is remembered but the place in the round, and where there is
no other broker some ids (``ahead.py``): whatever makes a job ready, a push, a rollback, its time, another
broker's end, it takes part in the next round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from random import randint, randrange
from typing import Any, Final, NamedTuple

from pymongo.collection import Collection

from sluicemq_broker.job import RoundRobin
from sluicemq_broker.store.jobs.documents import HANDED_OUT_FAIRLY, ORDER
from sluicemq_broker.store.jobs.index_models import FAIR_INDEX, JUST_READY, TURNS
from sluicemq_broker.store.jobs.read_ahead import ReadAhead
from sluicemq_broker.store.jobs.reply_sizes import replies
from sluicemq_broker.store.jobs.tenant_limits import Allowance
from sluicemq_broker.store.values import BY_ID, Document

#: Tenants of which more than one job is read in one statement: each takes the server 0.25 ms.
FEW: Final = 100
_IN_ORDER: Final = dict(ORDER)
#: What is read of jobs that are claimed later, and of how many in one reply.
_IDS: Final = {"priority": 1, "tenant": 1}
_IDS_AT_ONCE: Final = 1000
#: Seconds after which it is read anew which tenants there are, whatever is known.
_LOOKS_AGAIN: Final = 0.25


class _Tenant(NamedTuple):
    """One that has jobs due: its name (empty: that of jobs without one), and the id of its first job."""

    name: str
    first: Any


class ClaimPlan(NamedTuple):
    """What a claim is to read: how many jobs of each tenant, behind so many; the ids of their first ones.

    ``strange``: ids of documents that are no jobs. ``left_out``: there are tenants that have no share, and
    might have one. ``limit``: jobs of all together. ``allowance``: what each may have, where that is limited.
    ``now``: the server's time.
    """

    shares: Mapping[str, int]
    skips: Mapping[str, int]
    firsts: Mapping[str, Any]
    strange: Sequence[Any]
    left_out: bool
    limit: int
    allowance: Allowance | None
    now: float


class FairPages:
    """The pages of one queue, one for each claim. Reads only; raises the driver's errors."""

    def __init__(self, jobs: Collection[Document], weights: Mapping[str, int] | None) -> None:
        self._jobs = jobs
        self._rounds = RoundRobin(weights)
        self._many = False  # more tenants than were read at once the last time
        self._skipped = False
        self._changes = 0
        # All tenants with jobs due, as of then; none: it is not known, or jobs have become ready since.
        self._names: Sequence[str] | None = None
        self._looked = 0.0
        self.ahead = ReadAhead()
        """What is known of the jobs behind those of the last page, where this is the only broker."""

    def changed(self) -> None:
        """Jobs have become ready: others may have some, or have them first."""
        self._changes += 1
        self._names = None

    def next(
        self, due: Document, now: float, limit: int, brokers: int, allowance: Allowance | None = None
    ) -> FairPage:
        """The next ``limit`` jobs of those that are ``due``; several ``brokers`` each read others, mostly.

        No more of each tenant than its ``allowance`` grants; who is granted none is passed over.
        """
        due = {**due, "state": JUST_READY}
        most = limit
        while True:
            alone = allowance is None and brokers == 1
            known = self._known(most, now) if alone else None
            strange, tenants, all_there = known or self._look(due, most, now)
            names = [each.name for each in tenants]
            names = names if allowance is None else allowance.open(names)
            if len(names) > FEW:
                limit = self._part(names, limit, brokers)
            shares = self._rounds.share(names, limit)
            shares = shares if allowance is None else allowance.grant(shares)
            if shares or all_there:
                break
            most = 4 * max(most, FEW)  # of all these none may begin
        held = () if allowance is None else allowance.held
        open_ones = [each for each in names if each in shares or each not in held]
        left_out = not all_there or len(shares) < len(open_ones) or bool(strange)
        skips = self._skips(shares, brokers)
        firsts = {each.name: each.first for each in tenants}
        plan = ClaimPlan(
            shares, skips, firsts, strange, left_out=left_out, limit=limit, allowance=allowance, now=now
        )
        if brokers > 1:
            self.ahead = ReadAhead()  # others claim what is known here
        return FairPage(self._jobs, due, self._rounds, plan, self.ahead)

    def _part(self, tenants: Sequence[str], limit: int, brokers: int) -> int:
        """One turn of each of many; of several brokers each takes a part, or all would want the same."""
        limit = min(limit, sum(self._rounds.weight(each) for each in tenants))
        part = -(-limit // brokers)
        return limit if brokers == 1 else randint(-(-part // 2), part)  # noqa: S311 - spreads load, keeps no secret

    def _skips(self, shares: Mapping[str, int], brokers: int) -> dict[str, int]:
        """How many jobs of each tenant to leave to other brokers; none is passed over twice in a row."""
        if brokers < 2 or self._skipped:
            self._skipped = False
            return {}
        pages = {each: randrange(brokers) for each, share in shares.items() if share > 1}  # noqa: S311 - as above
        self._skipped = any(pages.values())
        return {each: page * shares[each] for each, page in pages.items()}

    def _known(self, limit: int, now: float) -> tuple[list[Any], list[_Tenant], bool] | None:
        """What :meth:`_tenants` would find, if it is known which jobs come next; None: it must look."""
        names = self._names
        if not names or not 0 <= now - self._looked < _LOOKS_AGAIN:
            return None
        rounds = limit // sum(map(self._rounds.weight, names)) + 2
        if not self.ahead.covers({each: rounds * self._rounds.weight(each) for each in names}):
            return None
        return [], [_Tenant(each, self.ahead.first(each)) for each in names], True

    def _look(self, due: Document, limit: int, now: float) -> tuple[list[Any], list[_Tenant], bool]:
        """The same as :meth:`_tenants`, noted if these are all, and none may have come meanwhile."""
        self._names, changes = None, self._changes
        strange, tenants, all_there = self._tenants(due, limit)
        if all_there and not strange and len(tenants) <= FEW and changes == self._changes:
            self._names, self._looked = [each.name for each in tenants], now
        return strange, tenants, all_there

    def _tenants(self, due: Document, limit: int) -> tuple[list[Any], list[_Tenant], bool]:
        """Ids of documents that are no jobs; the tenants with jobs due; whether these are all.

        More than ``limit``, and than :data:`FEW`, if there are so many: from whose turn it is on.
        """
        most = max(limit, FEW) + 1
        at = self._rounds.at
        if not (self._many and at):
            found = self._scan(due, {}, most)
            self._many = len(found) == most
            if not (self._many and at):
                return *_sorted(found), not self._many
        found = self._scan(due, {"tenant": {"$gte": at}}, most)
        if len(found) == most:
            return *_sorted(found), False
        strange, ahead = _sorted(found)
        found = self._scan(due, {"tenant": {"$not": {"$gte": at}}}, most - len(ahead))
        more_strange, behind = _sorted(found)
        self._many = len(found) == most - len(ahead)
        return strange + more_strange, [*ahead, *behind], not self._many

    def _scan(self, due: Document, whose: Document, most: int) -> list[Document]:
        # By keys alone, so whose first job has expired is among them. MongoDB reads on to 4 MiB of jobs
        # beyond the limit: with very many tenants 13,000 small ones for 1000, in some 40 ms.
        keys = {key: value for key, value in due.items() if key != "expires_at"}
        firsts: list[Document] = [
            {"$match": {**keys, **whose}},
            {"$sort": dict(TURNS)},
            {"$group": {"_id": "$tenant", "first": {"$first": "$_id"}}},
            {"$limit": most},
        ]
        return list(self._jobs.aggregate(firsts, hint=FAIR_INDEX, batchSize=most + 1))


class FairPage:
    """Jobs for one claim; read it once, then ask whether there are ``more``."""

    def __init__(
        self, jobs: Collection[Document], due: Document, rounds: RoundRobin, plan: ClaimPlan, ahead: ReadAhead
    ) -> None:
        self._jobs = jobs
        self._due = due
        self._rounds = rounds
        self._plan = plan
        self._ahead = ahead
        self._shares = dict(plan.shares)
        self._read: Counter[str] = Counter()
        self._full: set[str] = set()  # those that were given all they may have, and may have more jobs
        self._more: set[str] = set()  # those of which as many ids are known as were asked for

    @property
    def more(self) -> bool:
        """True if others may be due behind those that were read."""
        return self._plan.left_out or any(self._plan.skips.values()) or bool(self._go_on())

    @property
    def held(self) -> dict[str, float]:
        """Tenants with jobs that may not begin yet, and the seconds until one may, as far as is known."""
        allowance, shares = self._plan.allowance, self._plan.shares
        if allowance is None:
            return {}
        full = self._full.union(self._filled(), allowance.refused)
        return {each: wait for each, wait in allowance.held.items() if each not in shares or each in full}

    def stop(self, stored: Document) -> None:
        """There is no room for what is behind this one: its tenant is the next one."""
        self._rounds.begin_with(_name(stored))

    def replies(self, at_once: int) -> Iterator[list[Document]]:
        """The jobs, so many in one reply of MongoDB."""
        for reply in self._all(at_once):
            self._read.update(map(_name, reply))
            yield reply

    def _all(self, at_once: int) -> Iterator[list[Document]]:
        skips = self._plan.skips
        firsts = {each: [self._plan.firsts[each]] for each, share in self._shares.items() if share == 1}
        known = {**firsts, **self._known()}
        several = [each for each in self._shares if each not in known]
        yield from self._of(several, at_once, skips)
        if not self._read and any(skips.values()):
            yield from self._of(several, at_once, {})
        yield from self._these(known, self._plan.strange, at_once)
        # Whose first has expired, or is another broker's by now, may have a second one.
        yield from self._of([each for each in known if not self._read[each]][:FEW], at_once, {})
        if len(self._shares) <= FEW and not any(skips.values()):
            yield from self._rest(at_once)
        self._ahead.more_of((each for each in self._filled() if self._shares[each] > 1), self._plan.now)

    def _known(self) -> dict[str, Sequence[Any]]:
        """The ids of the jobs of those of whom they are known, or are to be read together with more."""
        known, unknown = self._ahead.next(self._shares, self._plan.firsts, self._plan.now)
        found: dict[str, list[Document]] = {each: [] for each in unknown}
        branches = [self._branch(each, 0, self._ahead.depth, _IDS) for each in unknown]
        if unknown:
            self._ahead.used_up()
        for each in chain.from_iterable(self._union(branches, _IDS_AT_ONCE)):
            found[_name(each)].append(each)
        for tenant, jobs in found.items():
            known[tenant] = self._ahead.read(tenant, jobs, self._shares[tenant], self._plan.now)
        self._more.update(each for each, ids in known.items() if len(ids) == self._shares[each])
        return known

    def _these(
        self, known: Mapping[str, Sequence[Any]], strange: Sequence[Any], at_once: int
    ) -> Iterator[list[Document]]:
        """The jobs of these ids, in this order."""
        ids = [*chain.from_iterable(known.values()), *strange]
        for at in range(0, len(ids), at_once):
            part = ids[at : at + at_once]
            these = {**self._due, "_id": {"$in": part}}
            found = self._jobs.find(these, HANDED_OUT_FAIRLY, hint=BY_ID, batch_size=len(part) + 1).to_list()
            place = {str(each): number for number, each in enumerate(part)}
            yield sorted(found, key=lambda each: place[str(each["_id"])])

    def _rest(self, at_once: int) -> Iterator[list[Document]]:
        """What some have left of their shares goes to those that have more."""
        allowance, filled = self._plan.allowance, self._go_on()
        rest = self._plan.limit - self._read.total()
        if filled and rest >= len(filled):
            read = dict(self._read)
            self._full = {*self._filled()}.difference(filled)
            shares = dict.fromkeys(filled, rest // len(filled))
            self._shares = shares if allowance is None else allowance.grant(shares)
            self._read.clear()
            known, _ = self._ahead.next(self._shares, {}, self._plan.now)
            self._more = {*known}
            yield from self._of([each for each in filled if each not in known], at_once, read)
            yield from self._these(known, (), at_once)

    def _go_on(self) -> list[str]:
        """The tenants that may have more, and may be given more."""
        allowance = self._plan.allowance
        return [each for each in self._filled() if allowance is None or each not in allowance.held]

    def _filled(self) -> list[str]:
        """The tenants of which as many were read as were asked for."""
        return [
            each for each, share in self._shares.items() if self._read[each] >= share or each in self._more
        ]

    def _of(self, tenants: Sequence[str], at_once: int, skips: Mapping[str, int]) -> Iterator[list[Document]]:
        """The first jobs of these, as many as each is to have, behind so many."""
        shares = self._shares
        branches = [
            self._branch(each, skips.get(each, 0), shares[each], HANDED_OUT_FAIRLY) for each in tenants
        ]
        yield from self._union(branches, at_once)

    def _union(self, branches: Sequence[list[Document]], at_once: int) -> Iterator[list[Document]]:
        """What all of these find, in their order."""
        if branches:
            first, *others = branches
            unions = [{"$unionWith": {"coll": self._jobs.name, "pipeline": each}} for each in others]
            yield from replies(self._jobs.aggregate([*first, *unions], batchSize=at_once), at_once)

    def _branch(self, tenant: str, skip: int, most: int, wanted: Document) -> list[Document]:
        whose = {"tenant": {"$eq": tenant or None}}
        passed_over = [{"$skip": skip}] if skip else []
        return [
            {"$match": {**self._due, **whose}},
            {"$sort": _IN_ORDER},
            *passed_over,
            {"$limit": most},
            {"$project": wanted},
        ]


def _name(stored: Document) -> str:
    """Its tenant's; empty: it has none, or none that is a name."""
    tenant = stored.get("tenant")
    return tenant if isinstance(tenant, str) else ""


def _sorted(found: Sequence[Document]) -> tuple[list[Any], list[_Tenant]]:
    """The first documents of what is no name of a tenant; the tenants by their names."""
    strange = [each["first"] for each in found if not isinstance(each["_id"], str | None)]
    tenants = {each["_id"] or "": each["first"] for each in found if isinstance(each["_id"], str | None)}
    return strange, [_Tenant(name, tenants[name]) for name in sorted(tenants)]
