"""Forwards: jobs move from one queue into another, with their id and their history, many in one transaction.

A job leaves its queue under the reservation of its worker's delivery and is in the other queue, in one step:
never in both, never in neither. Where somebody waits for its result, or its ``dedupe_id`` is taken for
longer, it leaves a *trace* behind: a ``done`` document with ``forwarded_to``.

Killed before: the job is still reserved, and is delivered again after the lease. Killed after: it has moved.
The driver repeats a commit whose reply was lost. If that is not answered either, a repetition of the forward
finds its own reservation in the history of the job in the other queue, and changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from pymongo import UpdateOne
from pymongo.client_session import ClientSession

from sluicemq.protocol.errors import BadFramesError, SluiceError
from sluicemq_broker.job import Job
from sluicemq_broker.store.jobs import documents
from sluicemq_broker.store.jobs.documents import PASSED_KEPT
from sluicemq_broker.store.jobs.outcomes import all_reserved_as, already_there, reserved_as, traced
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.jobs.transactions import Move, Overtaken, check_statements, require_all
from sluicemq_broker.store.set_aside import Unreadable
from sluicemq_broker.store.values import BY_ID, Document, date, seconds


class ForwardEntry(NamedTuple):
    """A job that moves: as it is reserved here, its target queue, and as which job it is stored there.

    ``on`` was accepted there. It takes all that is not ``said``, options by their names and ``payload``, from
    ``job``. ``kept_until``: how long a trace stays; None: there is none.
    """

    job: Job
    to: QueueStore
    on: Job
    said: frozenset[str]
    worker: str
    started_at: float
    kept_until: float | None


def forward(source: QueueStore, forwards: Sequence[ForwardEntry], now: float) -> dict[str, SluiceError]:
    """Move jobs of one owner into other queues, all that can; return the ids of the others, and why.

    :class:`Duplicate`: the target has a job of this id. :class:`LeaseLost`: the job is no longer reserved so.
    Uncertain: it is missing; any verdict may have ended it. Raises DifferentStore where there are no
    transactions, and the errors of every statement.
    """
    for store in {move.to for move in forwards}:
        store.prepare(again=True)  # a transaction can't make a collection's indexes
    for store in {move.to for move in forwards if move.job.parent}:
        store.groups.prepare_for_children()
    # failpoint forwards
    return _Forwards(source, forwards, now).run()


class _Forwards(Move[ForwardEntry]):
    """One batch of forwards."""

    who = "forwards"
    recognized_by: ClassVar[Document] = {}

    def __init__(self, source: QueueStore, forwards: Sequence[ForwardEntry], now: float) -> None:
        super().__init__(source, forwards, now)
        self._stuck: dict[str, SluiceError] = {}

    def read_targets(self) -> None:
        """Read the documents in the target queues that have the ids of these jobs."""
        self._there: dict[tuple[str, str], Document] = {}
        for store, jobs in _by_target(self._verdicts).items():
            same_ids = {"_id": {"$in": [job.id for job in jobs]}}
            for document in store.known.find(same_ids, {"passed": 1, "forwarded_to": 1}, hint=BY_ID):
                self._there[(store.name, document["_id"])] = document

    def is_done(self, verdict: ForwardEntry, _stored: Mapping[str, Any]) -> bool:
        there, by = self._target(verdict), verdict.job.under
        return any(left.get("hold") == by for left in _passed(there) if isinstance(left, dict))

    def obstacle(self, verdict: ForwardEntry) -> SluiceError | None:
        if problem := self._stuck.get(verdict.job.id):
            return problem
        there = self._target(verdict)
        if there and "forwarded_to" not in there and verdict.to is not self._source:
            return already_there(verdict.to.queue, verdict.job.id)
        return None

    def apply(self, verdicts: Sequence[ForwardEntry], session: ClientSession) -> None:
        targets = _by_target(verdicts)
        check_statements((1 + (self.tries > 1)) * len(targets), len(verdicts), "forwards")
        self._complete_jobs(verdicts, session)
        self._leave(verdicts, session)
        for store, jobs in targets.items():
            if self.tries > 1:  # a job that returns finds its own trace
                trace = {"_id": {"$in": [job.id for job in jobs]}, "forwarded_to": {"$exists": True}}
                # failpoint forwards.remove_trace
                store.jobs.delete_many(trace, hint=BY_ID, session=session)
            store.insert_within(session, jobs, self._now)

    def _target(self, verdict: ForwardEntry) -> Document:
        return self._there.get((verdict.to.name, verdict.job.id), {})

    def _complete_jobs(self, verdicts: Sequence[ForwardEntry], session: ClientSession) -> None:
        """Give each new job what its verdict does not say, and the history, as they are stored."""
        reserved = all_reserved_as([verdict.job for verdict in verdicts])
        found = {
            document["_id"]: document
            for document in self._source.jobs.find(reserved, {"joined": 0}, hint=BY_ID, session=session)
        }
        require_all(len(found), len(verdicts))
        for verdict in verdicts:
            try:
                _continue(verdict, found[verdict.job.id], self._source.queue, self._now)
            except SluiceError as error:
                self._stuck[verdict.job.id] = error
            except Exception as error:  # noqa: BLE001 - anything can come of reading what somebody wrote by hand
                what = str(error) if isinstance(error, Unreadable) else f"{type(error).__name__}: {error}"
                self._stuck[verdict.job.id] = BadFramesError(f"job {verdict.job.id!r} can't go on: {what}")
        if self._stuck.keys() & found.keys():
            raise Overtaken

    def _leave(self, verdicts: Sequence[ForwardEntry], session: ClientSession) -> None:
        """Remove the jobs from the source queue, or leave their traces there."""
        jobs = self._source.jobs
        traces = [
            verdict
            for verdict in verdicts
            if verdict.kept_until is not None and verdict.to is not self._source
        ]
        removed = [
            verdict.job for verdict in verdicts if verdict.kept_until is None or verdict.to is self._source
        ]
        if removed:
            # failpoint forwards.remove
            deleted = jobs.delete_many(all_reserved_as(removed), hint=BY_ID, session=session).deleted_count
            require_all(deleted, len(removed))
        if traces:
            writes = [UpdateOne(reserved_as(trace.job), _trace(trace, self._now)) for trace in traces]
            # failpoint forwards.trace
            written = jobs.bulk_write(writes, ordered=False, session=session)
            require_all(written.matched_count, len(traces))


def _by_target(forwards: Iterable[ForwardEntry]) -> dict[QueueStore, list[Job]]:
    targets: dict[QueueStore, list[Job]] = defaultdict(list)
    for move in forwards:
        targets[move.to].append(move.on)
    return targets


def _continue(forward: ForwardEntry, stored: Document, source: str, now: float) -> None:
    """Complete the new job from the stored one, read with the settings of the queue that it moves to."""
    former = documents.job(stored, forward.to.defaults)
    over = former.expires_at
    ttl = None if over is None else over - seconds(stored["created_at"])
    errors = stored.get("errors")
    left: Document = {
        "queue": source,
        "accepted_at": stored["created_at"],
        "at": date(now),
        "attempts": forward.job.attempts,
        "worker": forward.worker,
        "hold": forward.job.under,
    }
    story: Document = {"passed": [*_passed(stored), left][-PASSED_KEPT:]}
    if errors:
        story["errors"] = errors
    forward.on.continue_from(former, forward.said, ttl, story)
    forward.on.check_due()


def _passed(stored: Document) -> list[Any]:
    passed = stored.get("passed")
    return passed if isinstance(passed, list) else []


def _trace(forward: ForwardEntry, now: float) -> Document:
    job, until = forward.job, forward.kept_until or now
    return traced(job, forward.worker, forward.started_at, now, until, forward.to.queue)
