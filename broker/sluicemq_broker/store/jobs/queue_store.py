"""One queue in MongoDB: its verbs are the queue's verbs, each one statement that is atomic per job.

Every statement that settles a job names the owner that holds it, so a late one changes nothing. A statement
for several documents is never a transaction: each document is moved or not, and the caller learns which. Each
verb says what a lost reply leaves behind.

All methods block the calling greenlet. They raise Unavailable (nothing was sent), Unclear (it may have been
applied) or Refused (repeating it is of no use).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from pymongo import IndexModel
from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError
from pymongo.read_concern import ReadConcern

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.job import SCHEDULED, Job, Reservation, State
from sluicemq_broker.runtime import Count
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.creation import one_of_few
from sluicemq_broker.store.errors import applied, translated
from sluicemq_broker.store.jobs.claims import CLAIM_BYTES, Claim, Claims
from sluicemq_broker.store.jobs.documents import PACK_FIELDS, QueueDefaults, document, queue_of
from sluicemq_broker.store.jobs.expiry import ExpiredJobs, expire, will_expire
from sluicemq_broker.store.jobs.find_packs import find_packed
from sluicemq_broker.store.jobs.groups import GroupStore
from sluicemq_broker.store.jobs.index_models import ENDED_INDEX, RESERVED_INDEX
from sluicemq_broker.store.jobs.indexes import Notice, ignore, make_indexes, mend_indexes
from sluicemq_broker.store.jobs.inserts import Insertion
from sluicemq_broker.store.jobs.lifts import Lift, lift, lift_out
from sluicemq_broker.store.jobs.malformed import Malformed, set_aside, set_ownerless_aside
from sluicemq_broker.store.jobs.numbered_inserts import Insert, sessions_of
from sluicemq_broker.store.jobs.orders import indexes_of_other_orders, order_of
from sluicemq_broker.store.jobs.outcomes import (
    FOUND,
    RELEASE,
    Completed,
    Found,
    Progressed,
    RolledBack,
    all_reserved_as,
    dead_letter,
    death,
    done,
    done_alike,
    found,
    not_done,
    progressed,
    reclaimed,
    result_of,
    rolled_back,
    taken_over,
    uncertain,
)
from sluicemq_broker.store.jobs.pack_contents import PACKS, left_in
from sluicemq_broker.store.jobs.pack_marks import end_packed, release_packed, remove_empty
from sluicemq_broker.store.jobs.packs import form_packs
from sluicemq_broker.store.short_way import delete_all
from sluicemq_broker.store.values import BY_ID, Document, date
from sluicemq_broker.store.write_results import Pushed, outcome, refusals

_NONE_SET = QueueDefaults()
_STATES = frozenset(State)
#: Fields of packs without their jobs.
_SIZES = dict.fromkeys(("losses", *(field for field in PACK_FIELDS if field != "jobs")), 1)


class QueueStore:
    """The verbs of one queue; :meth:`prepare` makes its collection and indexes.

    ``notice`` is called with what was found there and should not be: its kind, and a text for the log.
    """

    def __init__(
        self,
        database: Documents,
        collection: str,
        defaults: QueueDefaults = _NONE_SET,
        notice: Notice = ignore,
    ) -> None:
        self.name = collection
        self.queue = queue_of(collection)
        """The name of the queue."""
        self._defaults = defaults
        self._sessions = sessions_of(database.client)
        self._database = durable(database)
        self.jobs = self._database[collection]
        self.known = self.jobs.with_options(read_concern=ReadConcern("majority"))
        """Reads its documents as a majority has them: no election takes back what is found."""
        self._notice = notice
        self._prepared = False
        self._formed = self._lifted = 0.0  # jobs that were put into packs, and taken out one by one
        self.removal_comes = False
        """True while a broker removes the queue."""
        self.removed = False
        """True if this broker removed the collection and has not made it again; another broker may have."""
        self.claims = Claims(self.jobs, defaults, self._set_aside, notice)
        self.groups = GroupStore(self.jobs, notice)
        """The lines of jobs that go one after the other."""

    @property
    def defaults(self) -> QueueDefaults:
        """The queue's settings, which its jobs don't repeat."""
        return self._defaults

    def reconfigure(self, defaults: QueueDefaults) -> None:
        """Take other settings from the next statement on."""
        self._defaults = defaults
        self.claims.reconfigure(defaults)

    def prepare(self, *, again: bool = False) -> None:
        """Make the collection and its indexes where they are missing; only the first call asks MongoDB.

        A collection that was removed is made again only with ``again``: for new jobs, or while it is used
        still.
        """
        if not self._prepared and (again or not self.removed):
            with one_of_few(), translated():
                if self._prepared:
                    return  # meanwhile
                wanted = [*self.groups.wanted(), *self._wanted_while_empty()]
                # failpoint queues.index
                make_indexes(self.jobs, self._notice, wanted)
                self._prepared, self.removed = not self.removal_comes, self.removal_comes

    def mend(self) -> None:
        """Make missing indexes again.

        Another broker may have removed the queue, and a push of ours made its collection again without
        indexes.
        """
        with translated():
            mend_indexes(
                self.jobs,
                self._notice,
                self.groups.wanted(),
                indexes_of_other_orders(self._defaults),
                gives_slots=self._defaults.gives_slots,
            )

    def _wanted_while_empty(self) -> list[IndexModel]:
        """Return the index of the queue's order while it takes no time; later the first claim makes it."""
        index = order_of(self._defaults).index
        return [index] if index is not None and self.jobs.find_one({}, {"_id": 1}) is None else []

    def dropped(self) -> None:
        """Note that the collection is removed, or about to be: the next insert makes its indexes again."""
        self._prepared, self.removed = False, True
        self.groups.dropped()
        self.claims.order.on_dropped()

    def expect_removal(self, *, coming: bool) -> None:
        """Note that a broker is about to remove the collection, or no longer; again is harmless.

        Meanwhile no look makes it again, and each insert makes its indexes sure.
        """
        if coming != self.removal_comes:
            self.removal_comes = coming
            (self.dropped if coming else self.removal_failed)()

    def removal_failed(self) -> None:
        """Note that the removal announced by :meth:`dropped` failed, or is unclear: all is as before."""
        self.removed = False

    # ------------------------------------------------------------------ push

    def which_exist(self, ids: Sequence[str]) -> set[str]:
        """Return the ids that have a job in the queue, in any state; raises the driver's errors."""
        packed = self._packed(ids)
        found = self.known.find({"_id": {"$in": list(ids)}}, {"_id": 1}, hint=BY_ID)
        return {document["_id"] for document in found} | packed.keys()

    def _packed(self, ids: Iterable[str]) -> dict[str, Document]:
        """Return the packs in which jobs of these ids lie.

        Look there first: a job that is lifted out meanwhile is found alone then.
        """
        return {job_id: found.stored for job_id, found in find_packed(self.known, ids).items()}

    def states(self, ids: Sequence[str], now: float) -> dict[str, str]:
        """Return the states of the jobs with these ids, as people see them; jobs that are gone have none."""
        wanted = {"state": 1, "eligible_at": 1}
        with translated():
            found = self._packed(ids)
            alone = self.known.find({"_id": {"$in": list(ids)}}, wanted, hint=BY_ID)
            found |= {document["_id"]: document for document in alone}
        return {job_id: _shown_state(document, date(now)) for job_id, document in found.items()}

    def insert_within(self, session: ClientSession, jobs: Sequence[Job], now: float) -> None:
        """Insert ready jobs as a part of a transaction; raises the driver's errors."""
        self.claims.on_pushed(jobs)
        stamp = date(now)
        # failpoint *.insert
        self.jobs.insert_many([document(job, stamp, self._defaults) for job in jobs], session=session)

    def push(self, jobs: Sequence[Job], now: float, at: float | None = None) -> Pushed:
        """Insert jobs, each ``reserved`` if it has an owner, else ``ready``.

        ``now`` is when they were accepted, ``at`` when this statement is sent (None: ``now``); dedupe windows
        count from ``at``. A job whose ``dedupe_id`` another one has is refused as
        :class:`~sluicemq.protocol.errors.Duplicate`; of several in one push the first gets it.

        Crash or lost reply: each job is stored or not. A second push reports the ids that are still there as
        ``existing``, also where their ``dedupe_id`` is found first. It stores jobs again that were done
        meanwhile; repeating an :meth:`insertion` does not.
        """
        return self.insertion(jobs, now).send(now if at is None else at)

    def form_packs(self, jobs: Sequence[Job]) -> None:
        """Put plain jobs that came in one message, and were accepted, into packs if the queue has them."""
        if not self._defaults.packs:
            return
        # Few that are lifted say nothing yet
        if self._lifted > max(500, self._formed / 4):
            self._lifted -= len(jobs) / 8  # packs are tried again after 8 times as many jobs alone
            return
        form_packs(jobs, self._defaults)
        packed = sum(job.pack is not None for job in jobs)
        if self._formed > 100_000:  # what was long ago counts less
            self._formed, self._lifted = self._formed / 2, self._lifted / 2
        self._formed += packed

    def insertion(self, jobs: Sequence[Job], now: float, *, repeated: bool = False) -> Insertion:
        """Return a push to be sent until it is answered; its jobs have 16 MiB at most, or it is one job.

        ``repeated``: they may have been pushed before.
        """
        self.claims.on_pushed(jobs)
        return Insertion(self._insert, self.jobs, jobs, now, self._defaults, repeated=repeated)

    def _insert(self) -> Insert:
        return Insert(self._sessions, self._database, self.name)

    def keep_unreadable(self, unreadable: Iterable[Document], now: float) -> None:
        """Insert dead letters for messages that never became jobs.

        Each is ``{_id, payload, raw_headers, reason, size}``. Repeating it after a lost reply finds them
        there.
        """
        documents = [dead_letter(message, date(now), self._defaults) for message in unreadable]
        with translated():
            statement = self._insert()
            outcome(statement.send(documents))
            statement.end(all_stored=True)  # one that lands late and is stored twice does no harm

    # --------------------------------------------------------------- reserve

    def reserve(
        self,
        limit: int,
        now: float,
        owner: str,
        number: int = 0,
        *,
        before: int | None = None,
        brokers: int = 1,
        place: int = 0,
        most_bytes: int = CLAIM_BYTES,
        one_first: bool = False,
    ) -> Claim:
        """Claim up to ``limit`` due jobs for ``owner``, in order; ``attempts`` counts this delivery.

        ``number`` is that of the reservation; no other one of this owner has it. The update's filter
        repeats the whole filter of the read with its ``now``: a guard on id and state alone would also catch
        a job that was claimed and given back with a delay, and so is not due. Lost reply: :meth:`claimed`
        finds what was reserved, by ``owner`` and ``number``; the audit finds what lands there later.

        ``before``: leave out jobs from this ``seq`` on. ``brokers``: how many claim from this queue,
        ``place`` of them before this one; so that they don't fight for one page, each takes another part.
        ``most_bytes``: of all jobs, unless the
        first alone has more. ``one_first``: reserve one job by one statement, if possible, as a worker gets
        it sooner so.
        """
        return self.claims.reserve(
            limit, now, Reservation(owner, number), before, brokers, place, most_bytes, one_first=one_first
        )

    def on_ready(self, *, anywhere: bool) -> None:
        """Called when jobs became ready; ``anywhere``: perhaps before jobs that were read ahead."""
        self.claims.order.on_ready(anywhere=anywhere)

    def tick(self, now: float) -> None:
        """Called every second or so, to drop what is kept for claims that don't come."""
        self.claims.order.tick(now)

    def claimed(self, owner: str, number: int) -> list[Job]:
        """Return the jobs under one reservation, in order: what a claim without an answer has reserved."""
        return self.claims.claimed(Reservation(owner, number))

    # ---------------------------------------------------------------- settle

    def commit(self, jobs: Sequence[Job]) -> dict[str, SluiceError]:
        """Remove completed jobs of one owner; return the ids that it did not remove, and why.

        Lost reply: each is removed or still reserved. A repetition says :class:`Uncertain` for missing jobs,
        since another verdict may have removed them.
        """
        if packed := [job for job in jobs if job.pack is not None]:
            alone = [job for job in jobs if job.pack is None]  # meanwhile a lift may end that finds them done
            with translated():
                in_packs = end_packed(self.jobs, packed)
            return in_packs | self.commit(alone) if alone else in_packs
        with translated():
            # failpoint jobs.commit
            removed = delete_all(self.jobs, all_reserved_as(jobs))
            if removed == len(jobs):
                return {}
            with applied():
                left = self._existing(jobs)
        missing = [job.id for job in jobs if job.id not in left]
        problems: dict[str, SluiceError] = {job_id: taken_over(job_id) for job_id in left}
        if len(missing) > removed:
            problems.update({job_id: uncertain(job_id) for job_id in missing})
        return problems

    def _existing(self, jobs: Sequence[Job]) -> set[str]:
        """Return the ids of jobs that are still there; a later job of an id has another ``seq``."""
        numbers = {job.id: job.seq for job in jobs}
        found = self.jobs.find({"_id": {"$in": list(numbers)}}, {"seq": 1})
        return {document["_id"] for document in found if numbers[document["_id"]] == document.get("seq")}

    def complete(self, completed: Sequence[Completed], now: float) -> dict[str, SluiceError]:
        """Commit jobs that are kept: ``done`` with their result, in their own document.

        Return the ids that it did not commit, and why. Crash or lost reply: each is done or still reserved;
        repeating it is harmless.
        """
        too_long: dict[str, SluiceError] = {}
        self.lift([entry.job for entry in completed])
        with translated():
            try:
                # failpoint jobs.complete
                written = self.jobs.bulk_write(done_alike(completed, now), ordered=False)
                if written.matched_count == len(completed):
                    return {}
            except BulkWriteError as error:
                refusals(error)  # durability first
                too_long = self._complete_each(completed, now)
            ids = [entry.job.id for entry in completed if entry.job.id not in too_long]
            wanted = {"done_by": 1, "hold": 1}
            there = {document["_id"]: document for document in self.jobs.find({"_id": {"$in": ids}}, wanted)}
        missed: dict[str, SluiceError] = {}
        for job in (one.job for one in completed):
            found = there.get(job.id)
            if not found or (found.get("done_by"), found.get("hold")) != job.reservation:
                missed[job.id] = taken_over(job.id) if found else uncertain(job.id)
        return missed | too_long

    def _complete_each(self, completed: Sequence[Completed], now: float) -> dict[str, SluiceError]:
        """Commit jobs one by one, as one whose document would exceed 16 MiB fails its whole update."""
        try:
            # failpoint jobs.complete_each
            self.jobs.bulk_write([done(entry, now) for entry in completed], ordered=False)
        except BulkWriteError as error:
            return {completed[at].job.id: why for at, why in refusals(error).refused.items()}
        return {}

    def undo_pop(self, jobs: Sequence[Job]) -> int:
        """Make popped jobs ready again that are kept as done and could not be sent; return how many.

        Crash before: they stay done, unsent; at-most-once allows that. Repeating it after a lost reply finds
        them no longer done, and changes nothing.
        """
        with translated():
            # failpoint jobs.undo_pop
            return self.jobs.bulk_write([not_done(job) for job in jobs], ordered=False).matched_count

    def roll_back(self, entries: Sequence[RolledBack], now: float) -> int:
        """Roll back or reject jobs, each with its history; return how many were ours.

        Lost reply: a repetition leaves jobs that have moved, as they are no longer reserved so; also where we
        have reserved them again in the meantime.
        """
        self.lift([entry.job for entry in entries])
        writes = [rolled_back(entry, now) for entry in entries]
        with translated():
            # failpoint jobs.roll_back
            return self.jobs.bulk_write(writes, ordered=False).matched_count

    def note_progress(self, reports: Sequence[Progressed]) -> int:
        """Note the progress of jobs; return how many are reserved as they were.

        Lost reply: it is noted or not. Landing late it may overwrite later progress; a job that is settled,
        or reserved again, stays as it is.
        """
        self.lift([report.job for report in reports])
        with translated():
            # failpoint jobs.note_progress
            return self.jobs.bulk_write(
                [progressed(report) for report in reports], ordered=False
            ).matched_count

    def release(self, jobs: Sequence[Job]) -> int:
        """Give back jobs of one owner that no worker has started; return how many were reserved still.

        The attempt is not counted, the place is kept. Lost reply: a repetition, or a late landing, leaves
        jobs that are reserved again, as they have another number.
        """
        count = 0
        if any(job.pack is not None for job in jobs):
            with translated():
                whole = release_packed(self.jobs, jobs)
            count = len(whole)
            jobs = [job for job in jobs if job not in whole]
            self.lift(jobs)
        return count + (self._free(all_reserved_as(jobs)) if jobs else 0)

    def lift(self, jobs: Sequence[Job]) -> None:
        """Store these jobs of ours alone, as far as they lie in packs: what follows is about each alone.

        Killed before: they lie in their packs. After: each lies alone, under the reservation that it has.
        Lost reply: a repetition finds them lifted out.
        """
        if packed := [job for job in jobs if job.pack is not None]:
            self._lifted += len(packed)
            lift(self.jobs, packed)

    def free(self, job_id: str, owner: str, number: int) -> int:
        """Give back a job, or a pack, under a reservation that nobody remembers; return 1 if it was there."""
        with translated():
            remove_empty(self.jobs, [job_id])
        return self._free({"_id": job_id, "owner": owner, "hold": number})

    def _free(self, which: Document) -> int:
        with translated():
            # failpoint jobs.release
            return self.jobs.update_many(
                {**which, "state": State.RESERVED}, RELEASE, hint=BY_ID
            ).modified_count

    # ------------------------------------------------------ owners and sweeps

    def _set_aside(self, malformed: list[Malformed], now: float) -> int:
        moved = set_aside(self.jobs, malformed, now)
        for job_id in moved:
            self._notice(Count.UNREADABLE_DOCUMENTS, str(job_id))
        return len(moved)

    def owners(self) -> set[str]:
        """Return the owners of all reserved jobs, by one step in the index for each."""
        with translated():
            found = self.jobs.distinct("owner", {"state": State.RESERVED})
            return {job_id for job_id in found if isinstance(job_id, str)}

    def mend_ownerless(self, now: float) -> None:
        """Set documents aside that are reserved by nobody: no broker wrote them so."""
        with translated():
            malformed = set_ownerless_aside(self.jobs, now)
        for job_id in malformed:
            self._notice(Count.UNREADABLE_DOCUMENTS, str(job_id))

    def reclaim(self, owner: str, max_losses: int, now: float) -> tuple[int, int]:
        """Give back all jobs of an owner without a live lease; return how many (ready, dead).

        It is unknown which of them a worker had, so none is charged an attempt: each counts a loss instead,
        and dies of ``max_losses``. Crash between the two statements: the next sweep ends it.
        """
        held = {"state": State.RESERVED, "owner": owner}
        more = self._reclaim_packs(held, max_losses, now)
        with translated():
            # A job that was never lost has no such field.
            doomed = {**held, "losses": {"$gte": max_losses - 1}} if max_losses > 1 else held
            # failpoint jobs.reclaim_to_dead
            dead = self.jobs.update_many(doomed, death(now, "lost with its broker too often", losses=1))
            # failpoint jobs.reclaim
            ready = self.jobs.update_many(held, reclaimed())
        return ready.modified_count + more, dead.modified_count

    def _reclaim_packs(self, held: Document, max_losses: int, now: float) -> int:
        """Lift what is about to die out of packs; return how many more jobs than packs are left."""
        while True:
            with translated():
                packs = list(self.jobs.find({**held, **PACKS}, _SIZES, hint=RESERVED_INDEX))
            doomed = [pack for pack in packs if pack.get("losses", 0) + 1 >= max_losses]
            if not doomed:
                return sum(pack["left"] - 1 for pack in packs)
            lifts = [Lift({"_id": pack["_id"], **held}, left_in(pack)) for pack in doomed]
            lift_out(self.jobs, lifts, now)

    def reservations(self, owner: str) -> set[tuple[str, int]]:
        """Return id and number of all jobs reserved under ``owner``, for the audit against memory."""
        with translated():
            found = self.jobs.find({"state": State.RESERVED, "owner": owner}, {"hold": 1})
            return {
                (document["_id"], document.get("hold", 0))
                for document in found
                if isinstance(document["_id"], str)
            }

    def expire(self, now: float, limit: int = 1000, ids: Sequence[str] | None = None) -> ExpiredJobs:
        """End waiting jobs whose time to live is over, at most ``limit`` (of these ids).

        They are removed, or become dead letters if the queue's ``on_expiry`` says so. A job that was claimed
        since it was found stays as it is. Crash or lost reply: each is ended or not, and the next sweep ends
        the others.
        """
        with translated():
            return expire(self.jobs, self._defaults, now, limit, ids)

    def will_expire(self) -> bool:
        """Return True if any waiting job has a time to live."""
        with translated():
            return will_expire(self.jobs)

    # ------------------------------------------------------------------ find

    def missing(self, ids: Sequence[str]) -> set[str]:
        """Return those of these ids that have no job; raises as all verbs do."""
        with translated():
            return set(ids) - self.which_exist(ids)

    def ended(self, since: float, limit: int) -> list[str]:
        """Return the ids of jobs that are done or dead since then, and still there; at most ``limit``."""
        these = {"state": {"$in": [State.DONE, State.DEAD]}, "ended_at": {"$gte": date(since)}}
        with translated():
            return [
                document["_id"]
                for document in self.jobs.find(these, {"_id": 1}, limit=limit, hint=ENDED_INDEX)
            ]

    def find(self, ids: Sequence[str]) -> dict[str, Found]:
        """Return the jobs that exist under these ids, with their states and results."""
        with translated():
            packed = self._packed(ids)
            stored = {
                document["_id"]: document for document in self.known.find({"_id": {"$in": list(ids)}}, FOUND)
            }
        stored = {job_id: {**pack, "result_size": 0} for job_id, pack in packed.items()} | stored
        return {
            job_id: found(document) for job_id, document in stored.items() if document.get("state") in _STATES
        }

    def is_pushed_by(self, principal: str, job_id: str) -> bool:
        """Return True if there is a job of this id, and it is this principal's."""
        with translated():
            if any(pack.get("pushed_by") == principal for pack in self._packed([job_id]).values()):
                return True
            own = {"_id": job_id, "pushed_by": principal}
            return self.jobs.find_one(own, {"_id": 1}, hint=BY_ID) is not None

    def result(self, job_id: str) -> bytes | None:
        """Return the result of a job, however large; None: the job is missing."""
        with translated():
            stored = self.known.find_one({"_id": job_id}, {"result": 1})
        return result_of(stored) if stored else None


def _shown_state(stored: Document, now: datetime) -> str:
    """Return the state of a job as people see it; empty for a document that is no job."""
    state, due = stored.get("state"), stored.get("eligible_at")
    if state == State.READY and isinstance(due, datetime) and due > now:
        return SCHEDULED
    return state if isinstance(state, str) else ""
