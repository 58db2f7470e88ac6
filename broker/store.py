"""One queue in MongoDB: its verbs are the queue's verbs, each one statement that is atomic per job.

Every statement that settles a job names the owner that holds it, so that a late one changes
nothing. Several documents in one statement are never a transaction: each document is moved or
not, and the caller learns which. What a lost reply leaves behind is said at each verb.

All methods block the calling greenlet, and raise, of ``broker.mongo``, Unavailable (nothing was
sent), Unclear (it may have been applied) or Refused (repeating it is of no use).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import randrange

from pymongo.errors import BulkWriteError, OperationFailure

from broker.job import Job
from broker.mongo import Documents, durable, translated
from broker.store_documents import (
    ANY_PRIORITY,
    HANDED_OUT,
    INDEXES,
    ORDER,
    REMADE_INDEXES,
    Document,
    Usual,
    date,
    document,
    job,
)
from broker.store_push import Pushed, insert, judge, open_windows, refusals
from broker.store_verdicts import (
    EXPIRED,
    FOUND,
    HOLD,
    Finished,
    Found,
    GivenBack,
    death,
    done,
    done_alike,
    found,
    given_back,
    letter,
    not_done,
)
from sluicemq.errors import LeaseLost, SluiceError, Uncertain

_NONE_SET = Usual()
#: Named wherever ids are given: the jobs asked for are the first of the ready index too, so MongoDB may
#: take that one for as good, and then reads all of it (100,000 keys for 1,000 jobs).
_BY_ID = "_id_"
#: MongoDB's codes for an index of this name, or of these fields, with other options.
_MADE_OTHERWISE = (85, 86)

#: Bytes of jobs in one claim, at most; a job larger than this is claimed alone.
CLAIM_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Claim:
    """Jobs reserved under ``owner``, in order; ``more``: others may lie ready behind them.

    ``buried``: ids of those that are dead letters now, as they had no attempt left.
    """

    jobs: list[Job]
    owner: str
    more: bool
    buried: tuple[str, ...] = ()


class QueueStore:
    """The verbs of one queue; ``collection`` is made with its indexes by :meth:`prepare`."""

    def __init__(self, database: Documents, collection: str, usual: Usual = _NONE_SET) -> None:
        self.name = collection
        self._usual = usual
        self.jobs = durable(database)[collection]
        self._prepared = False

    def prepare(self) -> None:
        """Make the collection and its indexes if they are not there; only the first call asks MongoDB."""
        if not self._prepared:
            with translated():
                self._index()
            self._prepared = True

    def mend(self) -> None:
        """Make the indexes anew if they are missing.

        Another broker may have removed the queue, and a push of ours made the collection again, without.
        """
        with translated():
            if 0 < len(self.jobs.index_information()) <= len(INDEXES):
                self._index()

    def _index(self) -> None:
        """Make what indexes are missing, and anew those of an older schema.

        Crash in between: the next :meth:`prepare` makes what is missing then.
        """
        try:
            self.jobs.create_indexes(INDEXES)
        except OperationFailure as error:
            if error.code not in _MADE_OTHERWISE:
                raise
            for name in REMADE_INDEXES & self.jobs.index_information().keys():
                self.jobs.drop_index(name)
            self.jobs.create_indexes(INDEXES)

    def dropped(self) -> None:
        """The collection was removed: the next :meth:`prepare` makes it again."""
        self._prepared = False

    # ------------------------------------------------------------------ push

    def push(self, jobs: Sequence[Job], now: float, at: float | None = None) -> Pushed:
        """Insert jobs, each ``reserved`` if it has an owner, else ``ready``.

        ``now`` is when they were accepted, ``at`` when this statement is sent (None: the same), from
        which their dedupe windows count; whoever has a ``dedupe_id`` that is another's is refused as
        :class:`~sluicemq.errors.Duplicate`. Of several in one push the first has it.

        Crash or lost reply: each job is stored or not. Repeating the push is harmless, since the
        ids of those stored come back as ``existing``, also where their ``dedupe_id`` has been found first.
        """
        at = now if at is None else at
        open_windows(jobs, at)
        stamp = date(now)
        with translated():
            pushed = insert(self.jobs, [document(each, stamp, self._usual) for each in jobs])
            while taken := pushed.taken:
                pushed.taken = []
                pushed.add(judge(self.jobs, [jobs[each] for each in taken], at), taken)
                free, pushed.taken = pushed.taken, []
                again = [document(jobs[each], stamp, self._usual) for each in free]
                if again:
                    pushed.add(insert(self.jobs, again), free)
        return pushed

    def bury(self, unreadable: Iterable[Document], now: float) -> None:
        """Insert dead letters for messages that never became jobs.

        Each is ``{_id, payload, raw_headers, reason, size}``. Repeating it after a lost reply finds
        them there.
        """
        letters = [letter(each, date(now), self._usual) for each in unreadable]
        with translated():
            insert(self.jobs, letters)

    # --------------------------------------------------------------- reserve

    def reserve(
        self, limit: int, now: float, owner: str, *, before: int | None = None, brokers: int = 1
    ) -> Claim:
        """Claim up to ``limit`` due jobs for ``owner``, in order; ``attempts`` counts this delivery.

        The update's filter repeats the whole filter of the read with its ``now``: a guard on id and
        state alone would also catch a job that was claimed, given back with a delay and so is not
        due. Lost reply: jobs lie reserved under ``owner`` that no memory knows; its retirement frees
        them. ``before`` leaves out jobs from this ``seq`` on. Several ``brokers`` each take a random
        page, so that they don't fight for the same one.
        """
        # Expired ones are left out here, not after the read: else a page of them hides all behind it.
        due = {
            **ANY_PRIORITY,
            "state": "ready",
            "eligible_at": {"$lte": date(now)},
            "expires_at": {"$not": {"$lte": date(now)}},
        }
        if before is not None:
            due["seq"] = {"$lt": before}
        skip = randrange(brokers) * limit  # noqa: S311 - spreads load, keeps no secret
        with translated():
            found, more = self._first(due, limit, skip)
            if skip and not found:
                found, more = self._first(due, limit, 0)
            buried = self._bury_spent(found, now)
            wanted = [each for each in found if not each.spent]
            claimed = self._hold(wanted, due, owner, now) if wanted else []
        for each in claimed:
            each.owner = owner
            each.attempts += 1
        return Claim(claimed, owner, more=more or skip > 0, buried=buried)

    def _first(self, due: Document, limit: int, skip: int) -> tuple[list[Job], bool]:
        """The first due jobs, up to ``limit`` and ``CLAIM_BYTES``; and whether there may be more."""
        found: list[Job] = []
        room = CLAIM_BYTES
        page = self.jobs.find(due, HANDED_OUT, skip=skip, limit=limit, batch_size=limit + 1)
        for stored in page.sort(ORDER):
            found.append(job(stored, self._usual))
            room -= found[-1].size
            if room <= 0:
                return found, True
        return found, len(found) == limit

    def _hold(self, wanted: list[Job], due: Document, owner: str, now: float) -> list[Job]:
        ids = [each.id for each in wanted]
        hold = {
            "$set": {"state": "reserved", "owner": owner, "reserved_at": date(now)},
            "$inc": {"attempts": 1},
        }
        if self.jobs.update_many({"_id": {"$in": ids}, **due}, hold, hint=_BY_ID).modified_count == len(ids):
            return wanted
        won = self._mine(ids, owner)
        return [each for each in wanted if each.id in won]

    def _mine(self, ids: list[str], owner: str) -> set[str]:
        mine = {"_id": {"$in": ids}, "state": "reserved", "owner": owner}
        return {each["_id"] for each in self.jobs.find(mine, {"_id": 1}, hint=_BY_ID)}

    def _bury_spent(self, found: list[Job], now: float) -> tuple[str, ...]:
        """Bury what has no attempt left; returns the ids of those that were not another broker's to bury."""
        spent = [each.id for each in found if each.spent]
        if not spent:
            return ()
        these = {"_id": {"$in": spent}, "state": "ready"}
        if self.jobs.update_many(
            these, death(now, "no attempt is left", self._usual), hint=_BY_ID
        ).modified_count == len(spent):
            return tuple(spent)
        ours = {"_id": {"$in": spent}, "state": "dead", "ended_at": date(now)}
        return tuple(each["_id"] for each in self.jobs.find(ours, {"_id": 1}, hint=_BY_ID))

    def held(self, ids: Sequence[str], owner: str) -> set[str]:
        """Which of these jobs lie reserved under ``owner``."""
        with translated():
            return self._mine(list(ids), owner)

    # ---------------------------------------------------------------- settle

    def commit(self, jobs: Sequence[Job]) -> dict[str, SluiceError]:
        """Remove finished jobs of one owner; returns the ids that it did not remove, and why.

        Lost reply: each is removed or still held; repeating it says :class:`Uncertain` for those
        that are gone, since another verdict could have been the one that removed them.
        """
        ids = [each.id for each in jobs]
        with translated():
            removed = self.jobs.delete_many({"_id": {"$in": ids}, "owner": jobs[0].owner}).deleted_count
            if removed == len(ids):
                return {}
            left = self._states(ids)
        gone = [each for each in ids if each not in left]
        problems: dict[str, SluiceError] = {each: _lost(each) for each in left}
        if len(gone) > removed:
            problems.update({each: _uncertain(each) for each in gone})
        return problems

    def finish(self, finished: Sequence[Finished], now: float) -> dict[str, SluiceError]:
        """Commit jobs that are kept: ``done`` with their result, in their own document.

        Returns the ids that it did not commit, and why. Crash or lost reply: each is done or still
        held; repeating it is harmless.
        """
        too_long: dict[str, SluiceError] = {}
        with translated():
            try:
                written = self.jobs.bulk_write(done_alike(finished, now), ordered=False)
                if written.matched_count == len(finished):
                    return {}
            except BulkWriteError as error:
                refusals(error)  # durability first
                too_long = self._finish_each(finished, now)
            ids = [each.job.id for each in finished if each.job.id not in too_long]
            there = {each["_id"]: each for each in self.jobs.find({"_id": {"$in": ids}}, {"done_by": 1})}
        lost: dict[str, SluiceError] = {
            each.id: _lost(each.id) if each.id in there else _uncertain(each.id)
            for each in (one.job for one in finished)
            if there.get(each.id, {}).get("done_by") != each.owner
        }
        return lost | too_long

    def _finish_each(self, finished: Sequence[Finished], now: float) -> dict[str, SluiceError]:
        """One by one, so that a job whose document would come to over 16 MiB takes no other with it."""
        try:
            self.jobs.bulk_write([done(each, now) for each in finished], ordered=False)
        except BulkWriteError as error:
            return {finished[at].job.id: why for at, why in refusals(error).refused.items()}
        return {}

    def take_back(self, jobs: Sequence[Job]) -> int:
        """Make jobs ready again that were popped, are kept as done and could not be sent; returns how many.

        Crash before: they stay done, unsent; at most once allows that. Repeating it after a lost
        reply finds them done no longer, and changes nothing.
        """
        with translated():
            return self.jobs.bulk_write([not_done(each) for each in jobs], ordered=False).matched_count

    def _states(self, ids: list[str]) -> dict[str, str]:
        return {each["_id"]: each["state"] for each in self.jobs.find({"_id": {"$in": ids}}, {"state": 1})}

    def give_back(self, entries: Sequence[GivenBack], now: float) -> int:
        """Roll back, reject or bury jobs, each with its history; returns how many were ours.

        Lost reply: repeating it finds those moved no longer under their owner and leaves them. The
        attempt is in the filter for the one that we have reserved again in the meantime.
        """
        writes = [given_back(entry, now, self._usual) for entry in entries]
        with translated():
            return self.jobs.bulk_write(writes, ordered=False).matched_count

    def release(self, ids: Sequence[str], owner: str) -> int:
        """Give back jobs that no worker has started: the attempt is not counted, the place is kept."""
        held = {"_id": {"$in": list(ids)}, "state": "reserved", "owner": owner}
        freed = {"$set": {"state": "ready"}, "$unset": HOLD, "$inc": {"attempts": -1}}
        with translated():
            return self.jobs.update_many(held, freed, hint=_BY_ID).modified_count

    # ------------------------------------------------------ owners and sweeps

    def owners(self) -> set[str]:
        """The owners of all reserved jobs; one step in the index for each."""
        with translated():
            return set(self.jobs.distinct("owner", {"state": "reserved"}))

    def reclaim(self, owner: str, max_losses: int, now: float) -> tuple[int, int]:
        """Give back every job of an owner without a live lease; returns how many (ready, dead).

        Nobody knows which of them a worker had, so none is charged an attempt: each counts a loss
        instead, and dies of ``max_losses``. Crash between the two statements: the next sweep ends it.
        """
        held = {"state": "reserved", "owner": owner}
        loss = {"$inc": {"losses": 1, "attempts": -1}}
        with translated():
            # A job that was never lost has no such field.
            doomed = {**held, "losses": {"$gte": max_losses - 1}} if max_losses > 1 else held
            dead = self.jobs.update_many(
                doomed, death(now, "lost with its broker too often", self._usual, losses=1)
            )
            ready = self.jobs.update_many(held, {"$set": {"state": "ready"}, "$unset": HOLD, **loss})
        return ready.modified_count, dead.modified_count

    def held_ids(self, owner: str) -> set[str]:
        """The ids of all jobs reserved under ``owner``, for the audit against memory."""
        with translated():
            return {each["_id"] for each in self.jobs.find({"state": "reserved", "owner": owner}, {"_id": 1})}

    def expire(self, now: float, limit: int = 1000) -> list[str]:
        """End ``ready`` jobs whose time to live is over, at most ``limit``; returns their ids.

        They are removed, or dead letters if the queue's ``on_expiry`` says so. What has been claimed
        since it was found stays as it is. Crash or lost reply: each is ended or not, and the next
        sweep ends the others.
        """
        over = {"expires_at": {"$lte": date(now)}, "state": "ready"}
        with translated():
            ids = [each["_id"] for each in self.jobs.find(over, {"_id": 1}).limit(limit)]
            if not ids or self._end({"_id": {"$in": ids}, **over}, now) == len(ids):
                return ids
            alive = {each for each, state in self._states(ids).items() if state != "dead"}
        return [each for each in ids if each not in alive]

    def _end(self, expired: Document, now: float) -> int:
        if self._usual.on_expiry == "dead":
            dying = death(now, EXPIRED, self._usual)
            return self.jobs.update_many(expired, dying, hint=_BY_ID).modified_count
        return self.jobs.delete_many(expired, hint=_BY_ID).deleted_count

    # ------------------------------------------------------------------ find

    def find(self, ids: Sequence[str]) -> dict[str, Found]:
        """What became of these jobs; an id that is not there is not in the answer."""
        with translated():
            return {each["_id"]: found(each) for each in self.jobs.find({"_id": {"$in": list(ids)}}, FOUND)}


def _lost(each: str) -> LeaseLost:
    return LeaseLost(f"job {each} is no longer held under this receipt")


def _uncertain(each: str) -> Uncertain:
    return Uncertain(f"job {each} is gone, whether by this verdict is not known")
