"""Claims: ready jobs of one queue become reserved, by a read and an update that names what was read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pymongo import UpdateMany
from pymongo.errors import BulkWriteError, OperationFailure

from sluicemq_broker.job import Job, Reservation, State
from sluicemq_broker.store.errors import ServerCode, applied, translated
from sluicemq_broker.store.jobs.claim_order import ClaimOrder, ClaimPage, ClaimRequest
from sluicemq_broker.store.jobs.documents import (
    HISTORY_IS_A_LIST,
    ORDER,
    WHATEVER_PRIORITY,
    QueueDefaults,
)
from sluicemq_broker.store.jobs.indexes import Notice
from sluicemq_broker.store.jobs.lifts import Lift, lift_out
from sluicemq_broker.store.jobs.malformed import UNREADABLE, Malformed, read
from sluicemq_broker.store.jobs.orders import order_of
from sluicemq_broker.store.jobs.outcomes import RELEASE, death
from sluicemq_broker.store.jobs.pack_contents import is_pack, left_in, unpacked
from sluicemq_broker.store.jobs.reply_sizes import MEASURED, ReplySizes
from sluicemq_broker.store.jobs.tenant_limits import Allowance
from sluicemq_broker.store.values import BY_ID, Document, Jobs, date
from sluicemq_broker.store.write_results import refusals
from sluicemq_devices.hub import in_parts

#: Bytes of jobs in one claim, at most; a job larger than this is claimed alone.
CLAIM_BYTES = 16 * 2**20

#: Jobs that get their slots in one update, which looks for each among all: 128 at a time take a third of the
#: time of updating each alone.
_SLOTS_AT_ONCE: Final = 128

#: A job, and its slot of its tenant.
_Slotted = tuple[Job, int]


@dataclass(frozen=True, slots=True)
class Claim:
    """Jobs reserved under ``owner``, in order; ``more``: others may be ready behind them.

    ``died``: ids of jobs that became dead letters, as they had no attempt left; ``freed``: their groups.
    ``lost``: how many more were read, and were not ready any more.
    ``held``: tenants whose jobs may not begin yet, and the seconds until one may; infinity: until another one
    ends.
    """

    jobs: list[Job]
    owner: str
    more: bool
    died: tuple[str, ...] = ()
    freed: frozenset[str] = frozenset()
    lost: int = 0
    held: Mapping[str, float] = field(default_factory=dict)


class Claims:
    """The claims of one queue; ``set_aside`` makes dead letters of documents that are no jobs, and counts."""

    def __init__(
        self,
        jobs: Jobs,
        defaults: QueueDefaults,
        set_aside: Callable[[list[Malformed], float], int],
        notice: Notice,
    ) -> None:
        self.jobs = jobs
        self.order: ClaimOrder
        """The order in which jobs are claimed."""
        self._set_aside = set_aside
        self._notice = notice
        self.reply_sizes = ReplySizes()
        self._packed = 1.0  # jobs in a document, of the last claim
        self.reconfigure(defaults)

    def reconfigure(self, defaults: QueueDefaults) -> None:
        """Take the queue's settings from the next claim on."""
        self._defaults = defaults
        self.order = order_of(defaults)(self.jobs, defaults, self._notice)

    def on_pushed(self, jobs: Sequence[Job]) -> None:
        """Called with jobs that come into the queue: their sizes say how many fit in a reply."""
        self.reply_sizes.pushed(jobs)
        if jobs and (pack := jobs[-1].pack) is not None:
            self._packed = max(self._packed, float(pack.count))

    def reserve(
        self,
        limit: int,
        now: float,
        reservation: Reservation,
        before: int | None,
        brokers: int,
        place: int,
        most_bytes: int,
        *,
        one_first: bool,
    ) -> Claim:
        """Reserve jobs: see :meth:`QueueStore.reserve`."""
        due = _due(now, before)
        alone = one_first and self.order.one_by_one and not self._defaults.limited
        if alone and (first := self._reserve_one(due, now, reservation)):
            return Claim(first, reservation.owner, more=True)
        with translated(), self.order.indexed():
            if not self.reply_sizes.known:
                self.reply_sizes.measured(self._largest(due))
            documents = limit if self._defaults.limited else max(1, math.ceil(limit / self._packed))
            at_once = self.reply_sizes.size(documents, most_bytes)
            fits = self.reply_sizes.most(documents, most_bytes)
            page = self.order.page(ClaimRequest(due, documents, fits, now, reservation, brokers, place))
            found, more = self._read_page(page, at_once, now, most_bytes, limit)
            spent = [job for job in found if job.spent]
            died = self._end_spent(spent, now) if spent else ()
            wanted = page.allowance.begin([job for job in found if not job.spent] if spent else found)
            reserved = self._reserve_found(wanted, due, now, reservation, page.allowance) if wanted else []
        for job in reserved:
            job.reserve(reservation)
        if len(reserved) < len(wanted):
            self.order.on_lost(now)
        more = page.allowance.settle(wanted, reserved) or more
        freed = frozenset(job.group for job in spent if job.group is not None)
        return Claim(
            reserved,
            reservation.owner,
            more=more,
            died=died,
            freed=freed,
            lost=len(wanted) - len(reserved),
            held=page.held,
        )

    def claimed(self, reservation: Reservation) -> list[Job]:
        """Return the jobs under one reservation, in order: what a claim without an answer has reserved.

        Without jobs that :meth:`_reserve_one` would have given back: the audit does that, and another claim
        ends them.
        """
        owner, hold = reservation
        under = {"state": State.RESERVED, "owner": owner, "hold": hold}
        with translated():
            stored = self.jobs.find(under, self.order.fields).sort(self.order.sort)
            found = [job for document in stored for job in self._jobs_in(document)[0]]
        jobs = [job for job in found if not 0 < job.max_attempts < job.attempts]
        for job in jobs:
            job.found_reserved(reservation)
        return self.order.as_claimed(jobs)

    # ------------------------------------------------------------------ one job, by one statement

    def _reserve_one(self, due: Document, now: float, reservation: Reservation) -> list[Job]:
        """Reserve the first due job, or its pack, by one statement; none that can't simply be handed out.

        A job without an attempt left and a document that is no job are given back: a claim sees to them.
        """
        claimable, reserved = {**due, **HISTORY_IS_A_LIST}, _reserved(reservation, now)
        with translated(), self.order.indexed():
            try:
                # failpoint jobs.claim_one
                stored = self.jobs.find_one_and_update(
                    claimable, _reserving(reserved), self.order.fields, sort=self.order.sort
                )
            except OperationFailure as error:
                if error.code != ServerCode.TYPE_MISMATCH:  # the attempts of each are a number
                    raise
                return []
            if stored is None:
                return []
            jobs, malformed = self._jobs_in(stored)
            if jobs and not malformed and not jobs[0].spent:
                self.reply_sizes.claimed(jobs)
                for job in jobs:
                    job.reserve(reservation)
                return jobs
            ours = {key: reserved[key] for key in ("state", "owner", "hold")}
            with applied():
                # failpoint jobs.give_back
                self.jobs.update_one({"_id": {"$in": [stored["_id"]]}, **ours}, RELEASE, hint=BY_ID)
            return []

    # ------------------------------------------------------------------ read

    def _jobs_in(self, stored: Document) -> tuple[list[Job], list[Malformed | Lift]]:
        """Return the jobs of a document, one or a pack of them, and what is to be taken out of it."""
        if not is_pack(stored):
            document = read(stored, self._defaults)
            return ([], [document]) if isinstance(document, Malformed) else ([document], [])
        try:
            jobs, strange = unpacked(stored, self._defaults)
        except UNREADABLE as error:
            return [], [Malformed(stored["_id"], f"{type(error).__name__}: {error}"[:1000])]
        return jobs, [Lift(_ready(stored["_id"]), strange)] if strange or not jobs else []

    def _read_page(
        self, page: ClaimPage, at_once: int, now: float, room: int, limit: int
    ) -> tuple[list[Job], bool]:
        """Read the jobs of a page, up to about ``room`` bytes; return them, and True if there may be more.

        A document that is no job is set aside: it takes a place in this claim, and in no later one. What is
        none in a pack is lifted out of it, as all are in a queue that may let only some of a pack begin.
        """
        found, strange, last = self._read(page.replies(at_once), room, limit)
        malformed = [document for document in strange if isinstance(document, Malformed)]
        lifts = [document for document in strange if isinstance(document, Lift)]
        lift_out(self.jobs, lifts, now)
        # A job that returned between two reads has moved others on: they were read twice.
        found = list({job.id: job for job in found}.values())
        if last is not None:
            page.stop_at(last)
        moved = self._set_aside(malformed, now)
        return found, last is not None or bool(lifts) or page.more(progress=bool(found or moved))

    def _read(
        self, replies: Iterable[list[Document]], room: int, limit: int
    ) -> tuple[list[Job], list[Malformed | Lift], Document | None]:
        """Return jobs, what is none or is to be lifted, and the last document if that ends the claim."""
        found: list[Job] = []
        strange: list[Malformed | Lift] = []
        last: Document | None = None
        documents = 0
        for stored in (document for reply in replies for document in reply):
            jobs, odd = self._jobs_in(stored)
            if jobs and is_pack(stored) and self._defaults.limited:
                odd = [Lift(_ready(stored["_id"]), left_in(stored))]
            if odd:
                strange += odd
                continue
            documents += 1
            found += jobs
            room -= sum([job.size for job in jobs])
            if room <= 0 or (len(found) >= limit and len(found) > documents):
                last = stored
                break
        self._packed = len(found) / documents if documents else self._packed
        self.reply_sizes.claimed(found)
        return found, strange, last

    def _largest(self, due: Document) -> int:
        """Return the bytes of the largest of the first jobs: a reply full of such jobs would take 16 MiB."""
        sizes = self.jobs.find(due, {"size": {"$bsonSize": "$$ROOT"}}, limit=MEASURED).sort(ORDER)
        return max((size["size"] for size in sizes), default=0)

    # ------------------------------------------------------------------ reserve

    def _reserve_found(
        self, wanted: list[Job], due: Document, now: float, reservation: Reservation, allowance: Allowance
    ) -> list[Job]:
        """Reserve jobs that were read; return those that other brokers have not taken meanwhile."""
        reserved, heads = _reserved(reservation, now), _heads(wanted)
        if allowance.gives_slots:
            matched = self._reserve_with_slots(allowance.number(wanted), due, reserved)
        else:
            claimable = {**due, **_these(heads), **HISTORY_IS_A_LIST}
            # failpoint jobs.claim
            matched = self.jobs.update_many(claimable, _reserving(reserved), hint=BY_ID).modified_count
        if matched == len(heads):
            return wanted
        ours = {key: reserved[key] for key in ("state", "owner", "hold")}
        with applied():
            mine = {"_id": {"$in": [_lies_in(job) for job in wanted]}, **ours}
            won = {document["_id"] for document in self.jobs.find(mine, {"_id": 1}, hint=BY_ID)}
            malformed = {**due, **_these(wanted), "$nor": [HISTORY_IS_A_LIST]}
            without = self.jobs.find(malformed, {"_id": 1}, hint=BY_ID)
            self._set_aside(
                [Malformed(document["_id"], "its errors are no array") for document in without], now
            )
        return [job for job in wanted if _lies_in(job) in won]

    def _reserve_with_slots(self, slotted: Sequence[_Slotted], due: Document, reserved: Document) -> int:
        """Reserve jobs, each with its slot; return how many, or 0 where another job had one of the slots.

        Such a job ends its update, so those of its part are tried one by one then.
        """
        parts = list(in_parts(slotted, _SLOTS_AT_ONCE))
        count, ended = self._reserve_parts(parts, due, reserved) if parts else (0, [])
        if ended:
            self._reserve_parts([[job] for part in ended for job in part], due, reserved)
        return 0 if ended else count

    def _reserve_parts(
        self, parts: Sequence[Sequence[_Slotted]], due: Document, reserved: Document
    ) -> tuple[int, list[Sequence[_Slotted]]]:
        """Write one update for each part; return how many were reserved, and the parts that a slot ended."""
        writes = [UpdateMany(*_reserving_each(part, due, reserved), hint=BY_ID) for part in parts]
        try:
            # failpoint jobs.claim_with_slots
            return self.jobs.bulk_write(writes, ordered=False).modified_count, []
        except BulkWriteError as error:
            refusals(error)  # durability first
            return 0, [parts[failure["index"]] for failure in error.details["writeErrors"]]

    def _end_spent(self, jobs: list[Job], now: float) -> tuple[str, ...]:
        """Let jobs without an attempt left die; return their ids, except those that another broker ended."""
        ready = {**_these(jobs), "state": State.READY}
        dying = death(now, "no attempt is left")
        ids = [job.id for job in jobs]
        # failpoint jobs.end_spent
        if self.jobs.update_many(ready, dying, hint=BY_ID).modified_count == len(ids):
            return tuple(ids)
        ours = {"_id": {"$in": ids}, "state": State.DEAD, "ended_at": date(now)}
        return tuple(document["_id"] for document in self.jobs.find(ours, {"_id": 1}, hint=BY_ID))


def _due(now: float, before: int | None) -> Document:
    """Return the filter for jobs that may be claimed, with numbers ``before`` this one."""
    # Expired ones are left out here, not after the read: else a page of them hides all behind it.
    due: Document = {
        **WHATEVER_PRIORITY,
        "state": State.READY,
        # Not $lte and $lt: those are true of dates and numbers alone, and pass over documents that are no
        # jobs.
        "eligible_at": {"$not": {"$gt": date(now)}},
        "expires_at": {"$not": {"$lte": date(now)}},
    }
    if before is not None:
        due["seq"] = {"$not": {"$gte": before}}
    return due


def _these(jobs: Sequence[Job]) -> Document:
    """Return the filter for jobs as they were read: a later job of an id has another ``seq``."""
    numbers = [job.seq if job.pack is None else job.pack.seq for job in jobs]
    return {"_id": {"$in": [_lies_in(job) for job in jobs]}, "seq": {"$in": numbers}}


def _lies_in(job: Job) -> str:
    return job.id if job.pack is None else job.pack.id


def _heads(jobs: list[Job]) -> list[Job]:
    """Return one job of each document."""
    return list({_lies_in(job): job for job in jobs}.values())


def _ready(pack: str) -> Document:
    return {"_id": pack, "state": State.READY}


def _reserved(reservation: Reservation, now: float) -> Document:
    """Return the fields that a job gets when it is reserved."""
    owner, number = reservation
    return {"state": State.RESERVED, "owner": owner, "hold": number, "reserved_at": date(now)}


def _reserving(reserved: Document) -> Document:
    """Return the update that reserves jobs, for one attempt more."""
    return {"$set": reserved, "$inc": {"attempts": 1}}


def _reserving_each(
    slotted: Sequence[_Slotted], due: Document, reserved: Document
) -> tuple[Document, list[Document]]:
    """Return the filter and the update that reserve jobs, each with its slot."""
    ids, slots = [job.id for job, _ in slotted], [n for _, n in slotted]
    mine = {"$arrayElemAt": [slots, {"$indexOfArray": [{"$literal": ids}, "$_id"]}]}
    fields = {
        **{key: {"$literal": value} for key, value in reserved.items()},
        "slot": {"tenant": {"$ifNull": ["$tenant", ""]}, "n": mine},
        "attempts": {"$add": ["$attempts", 1]},
    }
    return {**due, **_these([job for job, _ in slotted]), **HISTORY_IS_A_LIST}, [{"$set": fields}]
