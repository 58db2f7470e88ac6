"""Claims: how ready jobs of one queue become reserved: a read, and an update that names what was read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import randrange
from typing import Final

from pymongo import UpdateMany
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, OperationFailure

from sluicemq_broker.job import Job, Reservation, State
from sluicemq_broker.store.cluster.limits import LimitStore
from sluicemq_broker.store.errors import applied, translated
from sluicemq_broker.store.jobs.documents import (
    HANDED_OUT,
    HANDED_OUT_FAIRLY,
    HISTORY_IS_A_LIST,
    ORDER,
    WHATEVER_PRIORITY,
    QueueDefaults,
    queue_of,
)
from sluicemq_broker.store.jobs.fair_claims import FairPage, FairPages
from sluicemq_broker.store.jobs.indexes import Notice, make_fair_index
from sluicemq_broker.store.jobs.outcomes import RELEASE, death
from sluicemq_broker.store.jobs.reply_sizes import MEASURED, ReplySizes, replies
from sluicemq_broker.store.jobs.strange_documents import Strange, read
from sluicemq_broker.store.jobs.tenant_limits import Allowance, TenantLimits
from sluicemq_broker.store.values import BY_ID, Document, date
from sluicemq_broker.store.write_results import refusals

#: Bytes of jobs in one claim, at most; a job larger than this is claimed alone.
CLAIM_BYTES = 16 * 2**20


#: What MongoDB says of attempts that are none.
_NO_NUMBER: Final = 14


#: Jobs that get their slots in one update, which looks for each among all: with 128 at a time a third of what
#: it takes to update each alone.
_SLOTS_AT_ONCE: Final = 128


@dataclass(frozen=True, slots=True)
class Claim:
    """Jobs reserved under ``owner``, in order; ``more``: others may lie ready behind them.

    ``died``: ids of those that are dead letters now, as they had no attempt left; ``freed``: their groups.
    ``held``: tenants whose jobs may not begin yet, and the seconds until one may; infinity: until one ends.
    """

    jobs: list[Job]
    owner: str
    more: bool
    died: tuple[str, ...] = ()
    freed: frozenset[str] = frozenset()
    held: Mapping[str, float] = field(default_factory=dict)


class Claims:
    """The claims of one queue. ``set_aside`` makes dead letters of what is no job, and says of how many."""

    def __init__(
        self,
        jobs: Collection[Document],
        defaults: QueueDefaults,
        set_aside: Callable[[list[Strange], float], int],
        notice: Notice,
    ) -> None:
        self.jobs = jobs
        self._set_aside = set_aside
        self._notice = notice
        self._reply_sizes = ReplySizes()
        self._indexed = False  # that a queue is fair by
        self.reconfigure(defaults)

    def reconfigure(self, defaults: QueueDefaults) -> None:
        """Let jobs that say nothing themselves have these from the next claim on."""
        self._defaults = defaults
        self._fair = FairPages(self.jobs, defaults.weights) if defaults.fair else None
        self._tenants = self._limits_of_tenants(defaults) if defaults.limits_tenants else None
        self._wanted = HANDED_OUT_FAIRLY if defaults.fair else HANDED_OUT

    def dropped(self) -> None:
        """The collection was removed, with all of its indexes."""
        self._indexed = False
        if self._tenants is not None:
            self._tenants.dropped()

    def some_ready(self, *, amidst: bool) -> None:
        """As :meth:`QueueStore.some_ready`, which says what it does."""
        if self._fair is not None:
            self._fair.changed()
            if amidst:
                self._fair.ahead.forget()

    def tick(self, now: float) -> None:
        """Every second or so: keep nothing for long that may not be wanted any more."""
        if self._fair is not None:
            self._fair.ahead.forget_old(now)

    def pushed(self, jobs: Sequence[Job]) -> None:
        """These come into the queue: their size says how many a reply can hold."""
        self._reply_sizes.pushed(jobs)

    def reserve(
        self,
        limit: int,
        now: float,
        owner: str,
        hold: int = 0,
        *,
        before: int | None = None,
        brokers: int = 1,
        most_bytes: int = CLAIM_BYTES,
        one_first: bool = False,
    ) -> Claim:
        """As :meth:`QueueStore.reserve`, which says what it does."""
        due = _due(now, before)
        skip = randrange(brokers) * limit  # noqa: S311 - spreads load, keeps no secret
        under, page = Reservation(owner, hold), None
        if one_first and self._fair is None and (one := self._one(due, now, under)):
            return Claim([one], owner, more=True)
        with translated():
            allowance = None if self._tenants is None else self._tenants.allow(under, now, brokers)
            if (fair := self._fair) is not None:
                at_once = self._at_once(due, limit, most_bytes)
                most = self._reply_sizes.most(limit, most_bytes)
                page = self._page(lambda: fair.next(due, now, most, brokers, allowance))
                found, more = self._first_fairly(page, at_once, now, most_bytes)
                skip = 0
            else:
                found, more = self._first(due, limit, skip, now, most_bytes)
                if skip and not found:
                    found, more = self._first(due, limit, 0, now, most_bytes)
            spent = [each for each in found if each.spent]
            died = self._spent_to_dead(spent, now) if spent else ()
            wanted = [each for each in found if not each.spent] if spent else found
            wanted = wanted if allowance is None else allowance.begin(wanted)
            claimed = self._hold(wanted, due, now, under, allowance) if wanted else []
        for each in claimed:
            each.reserve(under)
        if allowance is not None:
            allowance.used(claimed)
            more = more or len(claimed) < len(wanted)  # others have their slots, and others may be free
        freed = frozenset(each.group for each in spent if each.group is not None)
        return Claim(
            claimed, owner, more=more or skip > 0, died=died, freed=freed, held=page.held if page else {}
        )

    def _one(self, due: Document, now: float, under: Reservation) -> Job | None:
        """The first due job, reserved by one statement; None if there is none that can just be handed out.

        So is one without an attempt left, and what is no job: those are given back, and a claim sees to them.
        """
        these, held = {**due, **HISTORY_IS_A_LIST}, _held(under, now)
        with translated():
            try:
                stored = self.jobs.find_one_and_update(these, _reserving(held), HANDED_OUT, sort=ORDER)
            except OperationFailure as error:
                if error.code != _NO_NUMBER:
                    raise
                return None
            if stored is None:
                return None
            job = read(stored, self._defaults)
            if isinstance(job, Job) and not job.spent:
                self._reply_sizes.claimed([job])
                job.reserve(under)
                return job
            with applied():
                mine = {
                    "_id": {"$in": [stored["_id"]]},
                    **{key: held[key] for key in ("state", "owner", "hold")},
                }
                self.jobs.update_one(mine, RELEASE, hint=BY_ID)
            return None

    def _first(self, due: Document, limit: int, skip: int, now: float, room: int) -> tuple[list[Job], bool]:
        """The first due jobs, up to ``limit`` and about ``room`` bytes; and whether there may be more.

        What is no job is set aside; it takes the place of one in this claim, and of none in the next.
        """
        at_once = self._at_once(due, limit, room)
        page = self.jobs.find(due, HANDED_OUT, skip=skip, limit=limit, batch_size=at_once).sort(ORDER)
        found, strange, last = self._read(replies(page, at_once), room)
        moved = self._set_aside(strange, now)
        full = len(found) + len(strange) == limit and bool(found or moved)
        return found, last is not None or full

    def _page(self, planned: Callable[[], FairPage]) -> FairPage:
        """What this claim of a fair queue is to read."""
        if not self._indexed:
            make_fair_index(self.jobs, self._notice)
            self._indexed = True
        try:
            return planned()
        except OperationFailure:  # another broker, or somebody, may have removed the index
            self._indexed = False
            raise

    def _first_fairly(self, page: FairPage, at_once: int, now: float, room: int) -> tuple[list[Job], bool]:
        """The same of a fair queue: the first of each tenant."""
        found, strange, last = self._read(page.replies(at_once), room)
        # One that came back between two reads has moved others on: they were read twice.
        found = list({each.id: each for each in found}.values())
        if last is not None:
            page.stop(last)
        moved = self._set_aside(strange, now)
        return found, last is not None or (page.more and bool(found or moved))

    def _at_once(self, due: Document, limit: int, room: int) -> int:
        """How many jobs to read in one reply."""
        if not self._reply_sizes.known:
            self._reply_sizes.measured(self._largest(due))
        return self._reply_sizes.size(limit, room)

    def _read(
        self, page: Iterable[list[Document]], room: int
    ) -> tuple[list[Job], list[Strange], Document | None]:
        """The jobs of a page, and what is none; the last one, if there is no ``room`` for those behind it."""
        found: list[Job] = []
        strange: list[Strange] = []
        last: Document | None = None
        for stored in (each for reply in page for each in reply):
            each = read(stored, self._defaults)
            if isinstance(each, Strange):
                strange.append(each)
                continue
            found.append(each)
            room -= each.size
            if room <= 0:
                last = stored
                break
        self._reply_sizes.claimed(found)
        return found, strange, last

    def _largest(self, due: Document) -> int:
        """Bytes of the largest of the first jobs: one reply full of large ones would take 16 MiB."""
        sizes = self.jobs.find(due, {"size": {"$bsonSize": "$$ROOT"}}, limit=MEASURED).sort(ORDER)
        return max((each["size"] for each in sizes), default=0)

    def _hold(
        self, wanted: list[Job], due: Document, now: float, under: Reservation, allowance: Allowance | None
    ) -> list[Job]:
        ids = [each.id for each in wanted]
        owner, hold = under
        held = _held(under, now)
        # By their births too: an id may have been done and pushed anew since it was read.
        births = {"_id": {"$in": ids}, "seq": {"$in": [each.seq for each in wanted]}}
        if allowance is not None and allowance.gives_slots:
            matched = self._hold_with_slots(allowance.number(wanted), due, held)
        else:
            these = {**due, **births, **HISTORY_IS_A_LIST}
            matched = self.jobs.update_many(these, _reserving(held), hint=BY_ID).modified_count
        if matched == len(ids):
            return wanted
        mine = {"_id": {"$in": ids}, "state": State.RESERVED, "owner": owner, "hold": hold}
        with applied():
            won = {each["_id"] for each in self.jobs.find(mine, {"_id": 1}, hint=BY_ID)}
            without = self.jobs.find({**due, **births, "$nor": [HISTORY_IS_A_LIST]}, {"_id": 1}, hint=BY_ID)
            self._set_aside([Strange(each["_id"], "its errors are no array") for each in without], now)
        return [each for each in wanted if each.id in won]

    def _hold_with_slots(self, numbered: Sequence[tuple[Job, int]], due: Document, held: Document) -> int:
        """The same, each with its slot; how many, or none for sure where another job has one of these slots.

        That one ends its update, so those of the same update are tried one by one then.
        """
        parts = [numbered[at : at + _SLOTS_AT_ONCE] for at in range(0, len(numbered), _SLOTS_AT_ONCE)]
        count, ended = self._hold_parts(parts, due, held) if parts else (0, [])
        if ended:
            self._hold_parts([[each] for part in ended for each in part], due, held)
        return 0 if ended else count

    def _hold_parts(
        self, parts: Sequence[Sequence[tuple[Job, int]]], due: Document, held: Document
    ) -> tuple[int, list[Sequence[tuple[Job, int]]]]:
        """One update for each; how many jobs they reserved, and the parts that a slot has ended."""
        writes = [UpdateMany(*_reserving_each(part, due, held), hint=BY_ID) for part in parts]
        try:
            return self.jobs.bulk_write(writes, ordered=False).modified_count, []
        except BulkWriteError as error:
            refusals(error)  # durability first
            return 0, [parts[each["index"]] for each in error.details["writeErrors"]]

    def _limits_of_tenants(self, defaults: QueueDefaults) -> TenantLimits:
        store = LimitStore(self.jobs.database, queue_of(self.jobs.name))
        return TenantLimits(store, self.jobs, defaults, self._notice)

    def claimed(self, owner: str, hold: int) -> list[Job]:
        """The jobs that lie under one reservation, in order: what a claim without an answer has brought.

        But for what :meth:`_one` would have given back: the audit does that, and another claim sees to it.
        """
        under = {"state": State.RESERVED, "owner": owner, "hold": hold}
        with translated():
            found = [read(each, self._defaults) for each in self.jobs.find(under, self._wanted).sort(ORDER)]
        jobs = [each for each in found if isinstance(each, Job) and not 0 < each.max_attempts < each.attempts]
        for each in jobs:
            each.found_reserved(Reservation(owner, hold))
        return jobs

    def _spent_to_dead(self, jobs: list[Job], now: float) -> tuple[str, ...]:
        """What has no attempt left is dead; returns the ids, without those that another broker ended."""
        spent = [each.id for each in jobs]
        these = {"_id": {"$in": spent}, "state": State.READY, "seq": {"$in": [each.seq for each in jobs]}}
        dying = death(now, "no attempt is left", self._defaults)
        if self.jobs.update_many(these, dying, hint=BY_ID).modified_count == len(spent):
            return tuple(spent)
        ours = {"_id": {"$in": spent}, "state": State.DEAD, "ended_at": date(now)}
        return tuple(each["_id"] for each in self.jobs.find(ours, {"_id": 1}, hint=BY_ID))


def _due(now: float, before: int | None) -> Document:
    """What may be claimed, of those with numbers ``before`` this one."""
    # Expired ones are left out here, not after the read: else a page of them hides all behind it.
    due: Document = {
        **WHATEVER_PRIORITY,
        "state": State.READY,
        # Not $lte and $lt: those are true of dates and numbers alone, and pass over what is no job.
        "eligible_at": {"$not": {"$gt": date(now)}},
        "expires_at": {"$not": {"$lte": date(now)}},
    }
    if before is not None:
        due["seq"] = {"$not": {"$gte": before}}
    return due


def _held(under: Reservation, now: float) -> Document:
    """What a job has that is reserved."""
    owner, hold = under
    return {"state": State.RESERVED, "owner": owner, "hold": hold, "reserved_at": date(now)}


def _reserving(held: Document) -> Document:
    """The update that delivers jobs once more, under this hold."""
    return {"$set": held, "$inc": {"attempts": 1}}


def _reserving_each(
    numbered: Sequence[tuple[Job, int]], due: Document, held: Document
) -> tuple[Document, list[Document]]:
    """The same with a slot for each: the filter and the update."""
    ids, slots = [job.id for job, _ in numbered], [n for _, n in numbered]
    births = {"_id": {"$in": ids}, "seq": {"$in": [job.seq for job, _ in numbered]}}
    mine = {"$arrayElemAt": [slots, {"$indexOfArray": [{"$literal": ids}, "$_id"]}]}
    reserved = {
        **{key: {"$literal": value} for key, value in held.items()},
        "slot": {"tenant": {"$ifNull": ["$tenant", ""]}, "n": mine},
        "attempts": {"$add": ["$attempts", 1]},
    }
    return {**due, **births, **HISTORY_IS_A_LIST}, [{"$set": reserved}]
