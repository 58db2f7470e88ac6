"""Jobs go on from one queue to another, with their id and their history: many in one transaction.

A job leaves its queue under the hold of its worker's delivery, and is in the other one, in one step: never
in both, never in none. What it leaves behind where somebody asks for it, or where its ``dedupe_id`` is
taken for longer, is a *trace*: ``done``, with ``forwarded_to``.

Kill before: it is reserved still, and is delivered again after the lease. After: it has gone on. A lost
reply is asked for again by the driver; if that is not answered either, a repetition finds the hold that it
went under in the history of the job there, and leaves it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pymongo import UpdateOne
from pymongo.client_session import ClientSession

from sluicemq.protocol.errors import BadFrames, Duplicate, SluiceError
from sluicemq_broker.job import Job
from sluicemq_broker.store.jobs import documents
from sluicemq_broker.store.jobs.documents import PASSED_KEPT, Unreadable
from sluicemq_broker.store.jobs.outcomes import all_held, held, lost, traced, uncertain
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.jobs.transactions import Overtaken, check_statements, transact
from sluicemq_broker.store.values import BY_ID, Document, date, seconds


class Forward(NamedTuple):
    """A job that goes on: as it is held here, where to, and as which job, on whose word.

    ``on`` was accepted there. All that is not ``said`` anew, options by their names and ``payload``, it gets
    from the one here. ``kept_until``: for how long that leaves a trace; None: none.
    """

    job: Job
    to: QueueStore
    on: Job
    said: frozenset[str]
    worker: str
    started_at: float
    kept_until: float | None


def forward(source: QueueStore, forwards: Sequence[Forward], now: float) -> dict[str, SluiceError]:
    """Let jobs of one owner go on, all that can; returns the ids of the others, and why.

    :class:`Duplicate`: a job of this id is there. :class:`LeaseLost`: it is not held any more. Uncertain: it
    is gone, by whoever's verdict. Raises DifferentStore where there are no transactions, and as every
    statement does.
    """
    for store in {each.to for each in forwards}:
        store.prepare(anew=True)  # no transaction can make a collection's indexes
    for store in {each.to for each in forwards if each.job.parent}:
        store.groups.prepare_for_children()
    move = _Move(source, forwards, now)
    transact(source.jobs.database.client, move.look, move.apply, "forwards")
    return move.problems


class _Move:
    """One batch on its way. The first time nobody is expected to be in its way, and nothing is looked up."""

    def __init__(self, source: QueueStore, forwards: Sequence[Forward], now: float) -> None:
        self.problems: dict[str, SluiceError] = {}
        self._source = source
        self._forwards = forwards
        self._now = now
        self._tries = 0
        self._unreadable: dict[str, SluiceError] = {}

    def look(self) -> Sequence[Forward]:
        """Those that can go on; ``problems`` says why the others can't, but of those that have gone on."""
        self._tries += 1
        if self._tries == 1:
            return self._forwards
        here, there = self._here(), self._there()
        self.problems = dict(self._unreadable)
        going = []
        for each in self._forwards:
            job_id, other = each.job.id, there.get((each.to.name, each.job.id), {})
            if not here.get(job_id):
                if not _came_under(other, each.job):
                    self.problems[job_id] = lost(job_id) if job_id in here else uncertain(job_id)
            elif job_id in self._unreadable:
                continue
            elif other and "forwarded_to" not in other and each.to is not self._source:
                name = documents.queue_of(each.to.name)
                self.problems[job_id] = Duplicate(f"queue {name!r} has a job {job_id!r} already", job_id)
            else:
                going.append(each)
        return going

    def apply(self, going: Sequence[Forward], session: ClientSession) -> None:
        """Let them go on; raises :class:`Overtaken` if one is here no more, or its id is there."""
        if going:
            targets = _by_target(going)
            check_statements((1 + (self._tries > 1)) * len(targets), len(going), "forwards")
            self._read(going, session)
            self._leave(going, session)
            for store, jobs in targets.items():
                if self._tries > 1:  # the trace of a job that comes back is in its way
                    trace = {"_id": {"$in": [job.id for job in jobs]}, "forwarded_to": {"$exists": True}}
                    store.jobs.delete_many(trace, hint=BY_ID, session=session)
                store.insert_within(session, jobs, self._now)

    def _read(self, going: Sequence[Forward], session: ClientSession) -> None:
        """Give each job that is to be there what is not said anew, and the history."""
        these = all_held([each.job for each in going])
        found = {each["_id"]: each for each in self._source.jobs.find(these, hint=BY_ID, session=session)}
        if len(found) < len(going):
            raise Overtaken
        for each in going:
            try:
                _succeed(each, found[each.job.id], self._source, self._now)
            except Exception as error:  # noqa: BLE001 - whatever comes of reading what somebody has written
                what = str(error) if isinstance(error, Unreadable) else f"{type(error).__name__}: {error}"
                self._unreadable[each.job.id] = BadFrames(f"job {each.job.id!r} can't go on: {what}")
        if self._unreadable.keys() & found.keys():
            raise Overtaken

    def _leave(self, going: Sequence[Forward], session: ClientSession) -> None:
        jobs = self._source.jobs
        kept = [each for each in going if each.kept_until is not None and each.to is not self._source]
        gone = [each.job for each in going if each.kept_until is None or each.to is self._source]
        if gone and jobs.delete_many(all_held(gone), hint=BY_ID, session=session).deleted_count < len(gone):
            raise Overtaken
        if kept:
            traces = [UpdateOne(held(each.job), _trace(each, self._now)) for each in kept]
            if jobs.bulk_write(traces, ordered=False, session=session).matched_count < len(kept):
                raise Overtaken

    def _here(self) -> dict[str, bool]:
        """True if it is held still, of those whose id is here in the same life."""
        births = {each.job.id: each.job for each in self._forwards}
        wanted = {"seq": 1, "owner": 1, "hold": 1}
        found = self._source.jobs.find({"_id": {"$in": list(births)}}, wanted, hint=BY_ID)
        return {
            each["_id"]: (each.get("owner"), each.get("hold")) == (job.owner, job.reservation.number)
            for each in found
            if (job := births[each["_id"]]).seq == each.get("seq")
        }

    def _there(self) -> dict[tuple[str, str], Document]:
        """What has these ids, where they are to go."""
        there: dict[tuple[str, str], Document] = {}
        for store, jobs in _by_target(self._forwards).items():
            these = {"_id": {"$in": [job.id for job in jobs]}}
            for each in store.jobs.find(these, {"passed": 1, "forwarded_to": 1}, hint=BY_ID):
                there[(store.name, each["_id"])] = each
        return there


def _by_target(forwards: Iterable[Forward]) -> dict[QueueStore, list[Job]]:
    groups: dict[QueueStore, list[Job]] = defaultdict(list)
    for each in forwards:
        groups[each.to].append(each.on)
    return groups


def _succeed(forward: Forward, stored: Document, source: QueueStore, now: float) -> None:
    """What is not said anew is as it was: read with the settings of the queue that it goes to."""
    former = documents.job(stored, forward.to.defaults)
    over = former.expires_at
    ttl = None if over is None else over - seconds(stored["created_at"])
    errors = stored.get("errors")
    story: Document = {"passed": [*_passed(stored), _entry(forward, stored, source, now)][-PASSED_KEPT:]}
    if errors:
        story["errors"] = errors
    forward.on.continue_from(former, forward.said, ttl, story)


def _passed(stored: Document) -> list[Any]:
    passed = stored.get("passed")
    return passed if isinstance(passed, list) else []


def _entry(forward: Forward, stored: Document, source: QueueStore, now: float) -> Document:
    job = forward.job
    return {
        "queue": documents.queue_of(source.name),
        "accepted_at": stored["created_at"],
        "at": date(now),
        "attempts": job.attempts,
        "worker": forward.worker,
        "hold": job.under,
    }


def _came_under(other: Document, job: Job) -> bool:
    """True if a job there is this one, that has gone on under this hold."""
    return any(each.get("hold") == job.under for each in _passed(other) if isinstance(each, dict))


def _trace(forward: Forward, now: float) -> Document:
    job, until = forward.job, forward.kept_until or now
    return traced(job, forward.worker, forward.started_at, now, until, documents.queue_of(forward.to.name))
