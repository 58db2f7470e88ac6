"""Inserts of jobs into a queue's collection, and the rules of ``dedupe_id``.

The document of a job has its ``dedupe_id`` until its window is over (``dedupe_until``), in any state; the
unique index makes it one document, over all brokers. Nothing is swept: the next push with this id that finds
the window over takes the id from its holder. Where the holder's document is removed (cancelled, purged,
expired), the id is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Final

from pymongo.read_concern import ReadConcern

from sluicemq.protocol.errors import DuplicateError
from sluicemq_broker.job import Job
from sluicemq_broker.store.errors import (
    Doubtful,
    Refused,
    applied,
    translated,
)
from sluicemq_broker.store.jobs.documents import QueueDefaults
from sluicemq_broker.store.jobs.find_packs import find_packed
from sluicemq_broker.store.jobs.index_models import DEDUPE_INDEX
from sluicemq_broker.store.jobs.numbered_inserts import Insert
from sluicemq_broker.store.jobs.packs import stored_together, together
from sluicemq_broker.store.values import BY_ID, Document, Jobs, date, seconds
from sluicemq_broker.store.write_results import ALL_STORED, Pushed, outcome

#: How often a job is tried that MongoDB refuses with an unknown code: for some five seconds.
MOST_DOUBTS = 9


class Insertion:
    """Jobs on their way into a collection: sent again and again, until the outcome of each is known.

    A repetition is no other statement (``numbered_inserts``), so a job that was stored, done and removed
    meanwhile is not stored again.
    """

    def __init__(
        self,
        new_statement: Callable[[], Insert],
        jobs: Jobs,
        accepted: Sequence[Job],
        now: float,
        defaults: QueueDefaults,
        *,
        repeated: bool = False,
    ) -> None:
        """Insert the jobs ``accepted`` into the collection ``jobs``; they were accepted at ``now``.

        ``repeated``: some may have been pushed before, among other jobs, and lie in packs with these.
        """
        self._collection = jobs
        self._new_statement = new_statement
        self._jobs = accepted
        self._stamp = date(now)
        self._defaults = defaults
        self._left: Sequence[int] = range(len(accepted))  # positions in the statement under way
        self._statement = new_statement()
        self._part: Pushed | None = None  # their outcome
        self._doubts = 0
        self._pushed = Pushed()
        self._repeated = repeated

    def send(self, at: float) -> Pushed:
        """Send what is open still; ``at``: now, from which dedupe windows count.

        Raises as every statement; call it again after :class:`~sluicemq.protocol.errors.Unavailable`.
        """
        try:
            with translated():
                return self._send(at)
        except Refused:
            self._statement.give_up()
            raise

    def _send(self, at: float) -> Pushed:
        if self._repeated:
            self._leave_out_packed()
        while True:
            if self._left:
                self._pushed.add(self._insert(at), self._left)
                self._left = ()
            taken = self._pushed.taken
            if not taken:
                return self._pushed
            with applied():
                judged = judge(self._collection, [self._jobs[place] for place in taken], at)
            self._pushed.taken = []
            self._pushed.add(judged, taken)
            self._left, self._pushed.taken = self._pushed.taken, []
            self._statement = self._new_statement()

    def _insert(self, at: float) -> Pushed:
        if self._part is None:
            jobs = [self._jobs[place] for place in self._left]
            open_windows(jobs, at)
            parts = together(jobs)
            answer = self._statement.send(
                [stored_together(part, self._stamp, self._defaults) for part in parts]
            )
            self._part = _of_each(self._outcome(answer), parts)
        self._statement.end(all_stored=self._part == ALL_STORED)
        part, self._part = self._part, None
        return part

    def _leave_out_packed(self) -> None:
        known = self._collection.with_options(read_concern=ReadConcern("majority"))
        there = find_packed(known, [job.id for job in self._jobs], ended=True)
        self._pushed.existing = [at for at, job in enumerate(self._jobs) if job.id in there]
        self._left = [at for at, job in enumerate(self._jobs) if job.id not in there]
        self._repeated = False

    def _outcome(self, answer: Document) -> Pushed:
        """Read the outcome of each job; after several tries an unknown code is taken for the job's fault."""
        try:
            return outcome(answer)
        except Doubtful:
            self._doubts += 1
            if self._doubts < MOST_DOUBTS:
                raise
            return outcome(answer, repeatable=False)


def _of_each(outcome: Pushed, parts: Sequence[Sequence[Job]]) -> Pushed:
    """Return the outcome of each job: what became of a pack became of all jobs in it."""
    if outcome == ALL_STORED:
        return outcome
    starts = [0, *accumulate(len(part) for part in parts)]
    return Pushed(
        [number for at in outcome.existing for number in range(starts[at], starts[at + 1])],
        {number: why for at, why in outcome.refused.items() for number in range(starts[at], starts[at + 1])},
        [starts[at] for at in outcome.taken],
    )


def open_windows(jobs: Iterable[Job], at: float) -> None:
    """Start the dedupe windows: they count from the statement that stores the job."""
    for job in jobs:
        if job.dedupe:
            job.claim_dedupe_id(at + job.dedupe.window)


def judge(collection: Jobs, jobs: Sequence[Job], at: float) -> Pushed:
    """Judge jobs whose ``dedupe_id`` another job has; ``taken`` in the answer are jobs to insert again.

    ``existing``: the job itself is there, whatever index MongoDB has named, and though another job may have
    its ``dedupe_id``. ``refused``: the holder's window is open. Otherwise the ``dedupe_id`` is free, or is
    freed here; the guard on ``dedupe_until`` spares a holder that came in the meantime. Crash or lost reply:
    a document has lost a ``dedupe_id`` whose window was over, which changes nothing.
    """
    # The judgement must hold after a change of primary.
    known = collection.with_options(read_concern=ReadConcern("majority"))
    stored = {
        document["_id"] for document in known.find({"_id": {"$in": [job.id for job in jobs]}}, {"_id": 1})
    }
    held = _holders(known, {job.dedupe.id for job in jobs if job.dedupe})
    holders = {document["dedupe_id"]: document for document in held if _is_open(document, at)}
    over = [document["_id"] for document in held if not _is_open(document, at)]
    if over:
        # failpoint jobs.free_dedupe_ids
        collection.update_many(
            {"_id": {"$in": over}, "$or": [{"dedupe_until": {"$not": {"$gt": date(at)}}}, *_STRANGE]},
            {"$unset": {"dedupe_id": "", "dedupe_until": ""}},
            hint=BY_ID,
        )
    judged = Pushed()
    for position, job in enumerate(jobs):
        holder = holders.get(job.dedupe.id) if job.dedupe else None
        if job.id in stored:
            judged.existing.append(position)
        elif holder:
            judged.refused[position] = _duplicate(holder, at)
        else:
            judged.taken.append(position)
    return judged


#: Holders that somebody wrote by hand: without this a push would find the id taken, free, taken ... for ever.
_STRANGE: Final[list[Document]] = [
    {"dedupe_id": {"$type": "array"}},
    {"dedupe_until": {"$type": "array"}},
    {"dedupe_until": {"$gt": datetime.max}},  # noqa: DTZ901 - as dates are read
]


def _holders(collection: Jobs, names: set[str]) -> list[Document]:
    wanted = {"dedupe_id": 1, "dedupe_until": 1}
    return list(collection.find({"dedupe_id": {"$in": list(names)}}, wanted, hint=DEDUPE_INDEX))


def _is_open(holder: Document, at: float) -> bool:
    """Return True while no other job may have its ``dedupe_id``; False for one written by hand."""
    until = holder.get("dedupe_until")
    return isinstance(holder["dedupe_id"], str) and isinstance(until, datetime) and seconds(until) > at


def _duplicate(holder: Document, at: float) -> DuplicateError:
    first, left = str(holder["_id"]), seconds(holder["dedupe_until"]) - at
    return DuplicateError(
        f"not stored: job {first} has dedupe_id {holder['dedupe_id']!r} for {left:.1f} s more; "
        "push it after that, or with another dedupe_id",
        first,
    )
