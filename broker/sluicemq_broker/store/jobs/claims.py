"""Claims: ready jobs of one queue become reserved, by a read and an update that names what was read."""

from __future__ import annotations

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
from sluicemq_broker.store.jobs.malformed import Malformed, read
from sluicemq_broker.store.jobs.orders import order_of
from sluicemq_broker.store.jobs.outcomes import RELEASE, death
from sluicemq_broker.store.jobs.reply_sizes import MEASURED, ReplySizes
from sluicemq_broker.store.jobs.tenant_limits import Allowance
from sluicemq_broker.store.values import BY_ID, Document, Jobs, date
from sluicemq_broker.store.write_results import refusals

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
        self.reconfigure(defaults)

    def reconfigure(self, defaults: QueueDefaults) -> None:
        """Take the queue's settings from the next claim on."""
        self._defaults = defaults
        self.order = order_of(defaults)(self.jobs, defaults, self._notice)

    def on_pushed(self, jobs: Sequence[Job]) -> None:
        """Called with jobs that come into the queue: their sizes say how many fit in a reply."""
        self.reply_sizes.pushed(jobs)

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
        if one_first and self.order.one_by_one and (one := self._reserve_one(due, now, reservation)):
            return Claim([one], reservation.owner, more=True)
        with translated(), self.order.indexed():
            if not self.reply_sizes.known:
                self.reply_sizes.measured(self._largest(due))
            at_once = self.reply_sizes.size(limit, most_bytes)
            fits = self.reply_sizes.most(limit, most_bytes)
            page = self.order.page(ClaimRequest(due, limit, fits, now, reservation, brokers, place))
            found, more = self._read_page(page, at_once, now, most_bytes)
            spent = [each for each in found if each.spent]
            died = self._end_spent(spent, now) if spent else ()
            wanted = page.allowance.begin([each for each in found if not each.spent] if spent else found)
            reserved = self._reserve_found(wanted, due, now, reservation, page.allowance) if wanted else []
        for each in reserved:
            each.reserve(reservation)
        if len(reserved) < len(wanted):
            self.order.on_lost(now)
        more = page.allowance.settle(wanted, reserved) or more
        freed = frozenset(each.group for each in spent if each.group is not None)
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
            found = [read(each, self._defaults) for each in stored]
        jobs = [each for each in found if isinstance(each, Job) and not 0 < each.max_attempts < each.attempts]
        for job in jobs:
            job.found_reserved(reservation)
        return self.order.as_claimed(jobs)

    # ------------------------------------------------------------------ one job, by one statement

    def _reserve_one(self, due: Document, now: float, reservation: Reservation) -> Job | None:
        """Reserve the first due job by one statement; None if there is none that can simply be handed out.

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
                return None
            if stored is None:
                return None
            job = read(stored, self._defaults)
            if isinstance(job, Job) and not job.spent:
                self.reply_sizes.claimed([job])
                job.reserve(reservation)
                return job
            ours = {key: reserved[key] for key in ("state", "owner", "hold")}
            with applied():
                # failpoint jobs.give_back
                self.jobs.update_one({"_id": {"$in": [stored["_id"]]}, **ours}, RELEASE, hint=BY_ID)
            return None

    # ------------------------------------------------------------------ read

    def _read_page(self, page: ClaimPage, at_once: int, now: float, room: int) -> tuple[list[Job], bool]:
        """Read the jobs of a page, up to about ``room`` bytes; return them, and True if there may be more.

        A document that is no job is set aside: it takes a place in this claim, and in no later one.
        """
        found, malformed, last = self._read(page.replies(at_once), room)
        # A job that returned between two reads has moved others on: they were read twice.
        found = list({each.id: each for each in found}.values())
        if last is not None:
            page.stop_at(last)
        moved = self._set_aside(malformed, now)
        return found, last is not None or page.more(progress=bool(found or moved))

    def _read(
        self, replies: Iterable[list[Document]], room: int
    ) -> tuple[list[Job], list[Malformed], Document | None]:
        """Return jobs, documents that are none, and the last one if there is no room behind it."""
        found: list[Job] = []
        malformed: list[Malformed] = []
        last: Document | None = None
        for stored in (each for reply in replies for each in reply):
            each = read(stored, self._defaults)
            if isinstance(each, Malformed):
                malformed.append(each)
                continue
            found.append(each)
            room -= each.size
            if room <= 0:
                last = stored
                break
        self.reply_sizes.claimed(found)
        return found, malformed, last

    def _largest(self, due: Document) -> int:
        """Return the bytes of the largest of the first jobs: a reply full of such jobs would take 16 MiB."""
        sizes = self.jobs.find(due, {"size": {"$bsonSize": "$$ROOT"}}, limit=MEASURED).sort(ORDER)
        return max((size["size"] for size in sizes), default=0)

    # ------------------------------------------------------------------ reserve

    def _reserve_found(
        self, wanted: list[Job], due: Document, now: float, reservation: Reservation, allowance: Allowance
    ) -> list[Job]:
        """Reserve jobs that were read; return those that other brokers have not taken meanwhile."""
        reserved = _reserved(reservation, now)
        if allowance.gives_slots:
            matched = self._reserve_with_slots(allowance.number(wanted), due, reserved)
        else:
            claimable = {**due, **_these(wanted), **HISTORY_IS_A_LIST}
            # failpoint jobs.claim
            matched = self.jobs.update_many(claimable, _reserving(reserved), hint=BY_ID).modified_count
        if matched == len(wanted):
            return wanted
        ours = {key: reserved[key] for key in ("state", "owner", "hold")}
        with applied():
            mine = {"_id": {"$in": [each.id for each in wanted]}, **ours}
            won = {document["_id"] for document in self.jobs.find(mine, {"_id": 1}, hint=BY_ID)}
            malformed = {**due, **_these(wanted), "$nor": [HISTORY_IS_A_LIST]}
            without = self.jobs.find(malformed, {"_id": 1}, hint=BY_ID)
            self._set_aside(
                [Malformed(document["_id"], "its errors are no array") for document in without], now
            )
        return [each for each in wanted if each.id in won]

    def _reserve_with_slots(self, slotted: Sequence[_Slotted], due: Document, reserved: Document) -> int:
        """Reserve jobs, each with its slot; return how many, or 0 where another job had one of the slots.

        Such a job ends its update, so those of its part are tried one by one then.
        """
        parts = [slotted[at : at + _SLOTS_AT_ONCE] for at in range(0, len(slotted), _SLOTS_AT_ONCE)]
        count, ended = self._reserve_parts(parts, due, reserved) if parts else (0, [])
        if ended:
            self._reserve_parts([[each] for part in ended for each in part], due, reserved)
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
    return {"_id": {"$in": [job.id for job in jobs]}, "seq": {"$in": [job.seq for job in jobs]}}


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
