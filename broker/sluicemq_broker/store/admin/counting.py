"""Counts of a queue's jobs by state: exact where they are few, estimates where they are many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import gevent
from gevent.event import AsyncResult
from pymongo.errors import ExecutionTimeout

from sluicemq_broker.job import SCHEDULED, State
from sluicemq_broker.store.admin.job_view import SHOWN_STATES, alive, plain, selects
from sluicemq_broker.store.connection import Documents
from sluicemq_broker.store.jobs.documents import ORDER
from sluicemq_broker.store.jobs.index_models import (
    ENDED_INDEX,
    EXPIRY_INDEX,
    LINE_EXPIRY_INDEX,
    LINE_INDEX,
    PACK_INDEX,
    READY_INDEX,
    RESERVED_INDEX,
)
from sluicemq_broker.store.jobs.indexes import has_lines, has_packs, may_have
from sluicemq_broker.store.jobs.many_queues import Branch, ask_together, union
from sluicemq_broker.store.jobs.outcomes import EXPIRED
from sluicemq_broker.store.jobs.pack_contents import PACKS
from sluicemq_broker.store.values import Document, Jobs, date

#: Jobs of a state that are counted one by one, at most; above, the figure is an estimate.
COUNTED_EXACTLY: Final = 10_000
#: Jobs in all from which a sample decides first which states are not worth counting.
SURELY_MANY: Final = 100_000
_INDEX_OF: Final = {
    State.READY: READY_INDEX,
    SCHEDULED: READY_INDEX,
    State.WAITING: LINE_INDEX,
    State.RESERVED: RESERVED_INDEX,
}

#: States for which each queue has an index; for waiting jobs it has one once any job has waited.
_INDEXED: Final = tuple(state for state in SHOWN_STATES if state != State.WAITING)
#: The number of documents, as MongoDB keeps it.
_TOTAL: Final[list[Document]] = [{"$collStats": {"count": {}}}, {"$project": {"count": 1}}]
#: Queues whose totals one statement reads, and whose jobs one counts. 1,000 queues took MongoDB 30 ms of CPU
#: for the totals and 320 for the counts; 560 with five queues a statement.
_TOTALS_TOGETHER, _TOGETHER = 100, 25


#: A row of its own has all packs, ready and reserved ones, by their index alone; and how many it counts.
_PACKS: Final = "packs"
_PACKS_COUNTED: Final = 100_000
#: Documents of a state that are read to count them, however many jobs are in packs: each may have a MiB.
_READ_ANYWAY: Final = 300


class _Counted(NamedTuple):
    """Documents, and the jobs in them as far as these were read: those of reserved packs, or of all packs."""

    documents: int
    jobs: int

    @property
    def more(self) -> int:
        """How many more jobs than documents there are."""
        return self.jobs - self.documents


_NONE: Final = _Counted(0, 0)


class Counting:
    """The counts of one queue at one moment. Raises the driver's errors.

    ``exactly``: jobs of a state that are counted, at most; ``surely_many``: jobs in all from which a sample
    decides first which states are not worth counting.
    """

    def __init__(
        self, jobs: Jobs, now: float, *, exactly: int = COUNTED_EXACTLY, surely_many: int = SURELY_MANY
    ) -> None:
        self._jobs = jobs
        self._now = now
        self._exactly = exactly
        self._surely_many = surely_many

    def counts(self) -> dict[str, Any]:
        """Return ``{ready, scheduled, waiting, reserved, done, dead, exact, oldest}``, in a few ms.

        ``oldest``: when the first ready job became due, None without one. States with less than ``exactly``
        jobs are counted; above, ``exact`` is False and the figure an estimate: the rest of all documents,
        divided between such states as in a random sample (within some 5 % of all, which MongoDB counts
        itself). Expired jobs count as none, though the sweep may not have ended them.
        """
        total = self._jobs.estimated_document_count()  # wrong after a crash of MongoDB
        if total > _READ_ANYWAY:  # with the jobs in packs there are enough for an estimate
            self._exactly = min(self._exactly, max(_READ_ANYWAY, self._exactly - self._packs().more))
        if total < self._surely_many and (found := self._all_at_once()):
            return found
        shares = self._sampled() if total >= self._surely_many else {}
        few = [state for state in SHOWN_STATES if shares.get(state, 0.0) * total < 3 * self._exactly]
        over = self._expired()
        questions = [partial(self._counted, state) for state in few]
        *rows, packs = _together([*questions, self._packs])
        found = dict(zip(few, rows, strict=True))
        counts = {state: counted.documents for state, counted in found.items()}
        many = [state for state in SHOWN_STATES if counts.get(state, self._exactly) >= self._exactly]
        if over.get(State.READY, 0) + over.get(SCHEDULED, 0) >= self._exactly:  # perhaps more: see the sample
            many = [*dict.fromkeys([*many, State.READY, SCHEDULED]), EXPIRED]
            over = {State.WAITING: over[State.WAITING]}
        if len(many) > 1:
            shares = shares or self._sampled()
        rest = total - sum(count for state, count in counts.items() if state not in many)
        counts |= self._shared_out(rest, many, shares)
        if packs.documents >= _PACKS_COUNTED:
            packs = _Counted(total, packs.jobs * total // packs.documents)
        reserved = found.get(State.RESERVED, _NONE)
        more = reserved.more * counts[State.RESERVED] // max(1, reserved.documents)
        counts |= _with_packs(counts, packs.more, more)
        counts |= {state: max(0, counts[state] - count) for state, count in over.items()}
        oldest = self.oldest_ready() if counts[State.READY] else None
        return {**{state: counts[state] for state in SHOWN_STATES}, "exact": not many, "oldest": oldest}

    def total(self) -> int:
        """Return about how many jobs there are, in packs or alone."""
        documents, packs = self._jobs.estimated_document_count(), self._packs()
        if packs.documents < _PACKS_COUNTED:
            return documents + packs.more
        return documents * packs.jobs // packs.documents

    def oldest_ready(self) -> float | None:
        """Return when the first ready job became due; None: no job is ready.

        One step in the index for each priority in use, of the ``_PRIORITIES`` highest: more are rare. None,
        too, where the first job that has not expired takes too long to find.
        """
        due, below = list[float](), float(2**31)
        for _ in range(32):  # priorities
            line = {
                "state": State.READY,
                "priority": {"$gte": -(2**31), "$lt": below},
                "eligible_at": {"$gte": date(0)},
                **alive(self._now),
            }
            try:
                first = self._jobs.find_one(
                    line, {"priority": 1, "eligible_at": 1}, sort=ORDER, max_time_ms=50
                )
            except ExecutionTimeout:  # it would pass over a million that have expired
                return None
            if first is None or not isinstance(first["priority"], int | float):
                break
            below = first["priority"]
            due.append(plain(first["eligible_at"]))
        return min((moment for moment in due if moment <= self._now), default=None)

    def _all_at_once(self) -> dict[str, Any] | None:
        """Count all states by one statement; None if it takes more.

        Six statements of their own, and those for the oldest job, took broker and MongoDB 10 ms of CPU. It
        takes more where a state has too many jobs, or something has expired.
        """
        there = self._jobs.index_information()
        lines = LINE_INDEX in there
        states = [state for state in SHOWN_STATES if lines or state != State.WAITING]
        over = [_over(self._now), *([_over_in_line(self._now)] if lines else [])]
        branches = (
            *(_counting(state, selects(state, self._now), self._exactly) for state in states),
            *(_counting(EXPIRED, state, self._exactly) for state in over),
            *([_counting(_PACKS, PACKS, self._exactly)] if PACK_INDEX in there else []),
        )
        together = union(Branch(self._jobs.name, branch) for branch in branches)
        found = {document["_id"]: document for document in self._jobs.aggregate(together, hint=READY_INDEX)}
        if EXPIRED in found or any(document["documents"] >= self._exactly for document in found.values()):
            return None
        return _figures(found)

    def _counted(self, state: str) -> _Counted:
        """Count the jobs of a state, in up to ``exactly`` documents."""
        if not may_have(self._jobs, state):
            return _NONE
        index = _INDEX_OF.get(state, ENDED_INDEX)
        return self._row(_counting(state, selects(state, self._now), self._exactly), index)

    def _packs(self) -> _Counted:
        """Count the jobs in packs, ready and reserved ones."""
        if not has_packs(self._jobs):
            return _NONE
        return self._row(_counting(_PACKS, PACKS, _PACKS_COUNTED), PACK_INDEX)

    def _row(self, steps: list[Document], index: str) -> _Counted:
        return next((_counted(row) for row in self._jobs.aggregate(steps, hint=index)), _NONE)

    def _expired(self) -> dict[str, int]:
        """Count expired jobs that are not ended yet: few, except for a moment."""
        over = _over(self._now)
        count = partial(self._jobs.count_documents, limit=self._exactly)
        in_line = 0
        if has_lines(self._jobs):
            in_line = count(_over_in_line(self._now), hint=LINE_EXPIRY_INDEX)
        # Both from one sample, or a million would be read to find that none of them is due later.
        later = {"$cond": [{"$gt": ["$eligible_at", date(self._now)]}, SCHEDULED, State.READY]}
        found = self._jobs.aggregate(
            [{"$match": over}, {"$limit": self._exactly}, {"$group": {"_id": later, "count": {"$sum": 1}}}],
            hint=EXPIRY_INDEX,
        )
        return {State.WAITING: in_line, **{document["_id"]: document["count"] for document in found}}

    def _sampled(self) -> dict[str, float]:
        """Return which part of all jobs is in which state, in a random sample."""
        ready, over = {"$eq": ["$state", State.READY]}, {"$lte": ["$expires_at", date(self._now)]}
        expired = {"$and": [ready, {"$eq": [{"$type": "$expires_at"}, "date"]}, over]}
        later = {"$and": [ready, {"$gt": ["$eligible_at", date(self._now)]}]}
        state = {"$cond": [expired, EXPIRED, {"$cond": [later, SCHEDULED, "$state"]}]}
        by_state = {"_id": state, "count": {"$sum": 1}}
        # Documents of a random sample; MongoDB draws it without a scan while it is under 5 % of all.
        sample = self._jobs.aggregate([{"$sample": {"size": 900}}, {"$group": by_state}])
        found = {document["_id"]: document["count"] for document in sample}
        return {state: count / sum(found.values()) for state, count in found.items()}

    def _shared_out(self, rest: int, states: list[str], shares: dict[str, float]) -> dict[str, int]:
        """Divide the rest among these states, each of which has ``exactly`` at least.

        With expired jobs among them there may be fewer: all jobs that would count as ready may have expired.
        """
        least = 0 if EXPIRED in states else self._exactly
        if len(states) == 1:
            return {states[0]: max(least, rest)}
        whole = sum(shares.get(state, 0.0) for state in states) or 1.0
        return {state: max(least, int(rest * shares.get(state, 0.0) / whole)) for state in states}


def small_counts(database: Documents, queues: Sequence[str], now: float) -> dict[str, dict[str, Any]]:
    """Return the counts of queues with few documents, as :meth:`Counting.counts`, 25 by one statement.

    A queue is left out if it has more than :data:`COUNTED_EXACTLY`, or its states don't add up to all of
    them: some jobs wait in groups, or have expired, or MongoDB's total is wrong after a crash. Such few are
    read quickly even without an index. Raises :class:`~sluicemq.protocol.errors.Unavailable`.
    """
    totals = {
        queue: rows[0]["count"]
        for queue, rows in ask_together(database, queues, (_TOTAL,), _TOTALS_TOGETHER).items()
        if rows and rows[0]["count"] <= COUNTED_EXACTLY
    }
    branches = [_counting(state, selects(state, now), COUNTED_EXACTLY) for state in _INDEXED]
    branches.append(_counting(EXPIRED, _over(now), 1))
    branches.append(_counting(_PACKS, PACKS, COUNTED_EXACTLY))
    counts: dict[str, dict[str, Any]] = {}
    for queue, rows in ask_together(database, list(totals), branches, _TOGETHER).items():
        found = {row["_id"]: row for row in rows}
        documents = sum(row["documents"] for row in rows if row["_id"] != _PACKS)
        if EXPIRED not in found and documents == totals[queue]:
            counts[queue] = _figures(found)
    return counts


def _figures(by_state: Mapping[str, Document]) -> dict[str, Any]:
    """Return exact counts from a row for each state in which there are jobs."""
    counts = {state: by_state[state]["documents"] if state in by_state else 0 for state in SHOWN_STATES}
    reserved, packs = (_counted(by_state.get(name, {})).more for name in (State.RESERVED, _PACKS))
    ready = by_state.get(State.READY)
    oldest = None if ready is None else plain(ready["oldest"])
    return {**counts, **_with_packs(counts, packs, reserved), "exact": True, "oldest": oldest}


def _with_packs(counts: Mapping[str, int], more: int, reserved: int) -> dict[str, int]:
    """Return the jobs that are ready and reserved, from their documents.

    ``more``: jobs beyond one in each of all packs; ``reserved``: in reserved ones. Those claimed meanwhile
    may be missing here, or be there twice.
    """
    return {
        State.READY: max(0, counts[State.READY] + max(0, more - reserved)) if counts[State.READY] else 0,
        State.RESERVED: counts[State.RESERVED] + reserved,
    }


def _counted(row: Mapping[str, Any]) -> _Counted:
    documents: int = row.get("documents", 0)
    return _Counted(documents, row.get("jobs", documents))


def _counting(name: str, these: Document, most: int) -> list[Document]:
    """Return a pipeline that counts these jobs, in ``most`` documents at most, in a row with this name."""
    whole: Document = {"_id": {"$literal": name}, "documents": {"$sum": 1}}
    if name in {State.RESERVED, _PACKS}:
        whole["jobs"] = {"$sum": {"$ifNull": ["$left", 1]}}
    if name == State.READY:
        whole["oldest"] = {"$min": "$eligible_at"}
    return [{"$match": these}, {"$limit": most}, {"$group": whole}]


def _over(now: float) -> Document:
    return {"state": State.READY, "expires_at": {"$gte": date(0), "$lte": date(now)}}


def _over_in_line(now: float) -> Document:
    return {"wait.expires_at": {"$gte": date(0), "$lte": date(now)}}


def _together(questions: Sequence[Callable[[], _Counted]]) -> list[_Counted]:
    """Ask all questions at once: that takes as long as the longest of them."""
    answers: list[AsyncResult[_Counted]] = [AsyncResult() for _ in questions]
    for answer, question in zip(answers, questions, strict=True):
        gevent.spawn(_answer, answer, question)
    return [answer.get() for answer in answers]


def _answer(answer: AsyncResult[_Counted], question: Callable[[], _Counted]) -> None:
    try:
        answer.set(question())
    except Exception as error:  # noqa: BLE001 - raised again where the answer is read
        answer.set_exception(error)
