"""The store against a short model: random verbs of two owners, a moving present, late verdicts.

No job is lost, none is committed twice by accepted answers, attempts are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pymongo.database import Database

from integration.model_runs import check
from sluicemq.protocol.errors import (
    BadHeadersError,
    DuplicateError,
    LeaseLostError,
    NotFoundError,
    SluiceError,
    UncertainError,
)
from sluicemq_broker.job import Job
from sluicemq_broker.store import DeadLetters, ForwardEntry, QueueStore, Redriven, RolledBack, forward
from sluicemq_broker.store import seconds as seconds_of
from support.jobs import NOW, ChangesAtOnce, a_job, everything, finished

OWNERS = ("one", "two")
MAX_LOSSES, MAX_ATTEMPTS = 3, 4

_holds = count(1)
owners = st.sampled_from(OWNERS)
job_ids = st.sampled_from("abcd")
seconds = st.sampled_from([0, 1, 5])


@dataclass
class Known:
    """What the model knows of one job."""

    job_id: str
    state: str
    owner: str
    attempts: int
    due: float
    expires: float | None
    priority: int
    seq: int
    remember: bool
    created: float
    losses: int = 0
    result: bytes = b""
    done_by: str = ""


class QueueModel(RuleBasedStateMachine):
    """Each rule does one verb on the store and says, in the model's words, what it must have done."""

    store: QueueStore
    other: QueueStore
    changes: ChangesAtOnce

    def __init__(self) -> None:
        super().__init__()
        self.store.jobs.delete_many({})
        self.other.jobs.delete_many({})
        self.away: dict[str, Known] = {}
        self.now = NOW
        self.known: dict[str, Known] = {}
        self.handles: dict[str, list[Job]] = {owner: [] for owner in OWNERS}
        self.pushed: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.seqs: dict[str, int] = {}

    # -------------------------------------------------------------- the verbs

    @rule(seconds=seconds)
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule(
        job_id=job_ids,
        owner=st.sampled_from(["", *OWNERS]),
        delay=seconds,
        ttl=st.sampled_from([None, None, 3]),
        priority=st.integers(0, 2),
        remember=st.booleans(),
    )
    def push(
        self, job_id: str, owner: str, delay: int, ttl: int | None, priority: int, *, remember: bool
    ) -> None:
        job = a_job(
            job_id,
            owner=owner,
            eligible_at=self.now + (0 if owner else delay),
            expires_at=None if ttl is None else self.now + ttl,
            priority=priority,
            max_attempts=MAX_ATTEMPTS,
            remember=10**6 if remember else None,
        )
        answer = self.store.push([job], self.now)
        assert answer.existing == ([0] if job_id in self.known else [])
        if not answer.existing:
            self.pushed[job_id] += 1
            state = "reserved" if owner else "ready"
            self.known[job_id] = Known(
                job_id,
                state,
                owner,
                job.attempts,
                job.eligible_at,
                job.expires_at,
                priority,
                job.seq,
                remember,
                self.now,
            )
            if owner:
                self.handles[owner].append(job)

    @rule(owner=owners, limit=st.integers(1, 4))
    def reserve(self, owner: str, limit: int) -> None:
        due = self._first_due(limit)
        claim = self.store.reserve(limit, self.now, owner)
        for job_id in [job_id for job_id in due if self._spent(job_id)]:
            self._end(job_id, "dead")
        expected = [job_id for job_id in due if self.known[job_id].state == "ready"]
        assert [job.id for job in claim.jobs] == expected
        assert claim.more or len(due) < limit
        for job in claim.jobs:
            known = self.known[job.id]
            known.state, known.owner = "reserved", owner
            known.attempts += 1
            assert (job.attempts, job.losses) == (known.attempts, known.losses)
            self.handles[owner].append(job)

    @rule(owner=owners, data=st.data())
    def commit(self, owner: str, data: st.DataObject) -> None:
        jobs = [job for job in self._some(owner, data) if job.remember is None]
        if not jobs:
            return
        ours = self._ours(jobs)
        # Another job that was pushed under the id since is not the one that is committed.
        there = {job.id for job in jobs if job.id in self.known and self.known[job.id].seq == job.seq}
        problems = self.store.commit(jobs)
        for job_id in ours:
            del self.known[job_id]
        for job in jobs:
            self._check_refusal(job, problems.get(job.id), ours, there)
        self._accept(job.id for job in jobs if job.id not in problems)

    @rule(owner=owners, data=st.data(), result=st.binary(max_size=2))
    def finish(self, owner: str, data: st.DataObject, result: bytes) -> None:
        jobs = [job for job in self._some(owner, data) if job.remember is not None]
        if not jobs:
            return
        ours, there = self._ours(jobs), {job.id for job in jobs if job.id in self.known}
        repeated = {job.id for job in jobs if job.id in there and self.known[job.id].done_by == owner}
        problems = self.store.complete([finished(job, result) for job in jobs], self.now)
        for job_id in ours:
            self._end(job_id, "done")
            self.known[job_id].result, self.known[job_id].done_by = result, owner
        for job in jobs:
            self._check_refusal(job, problems.get(job.id), ours | repeated, there)
        self._accept({job.id for job in jobs} - problems.keys() - repeated)

    @rule(owner=owners, data=st.data(), delay=st.sampled_from([None, 0, 5]), dead=st.booleans())
    def roll_back(self, owner: str, data: st.DataObject, delay: int | None, *, dead: bool) -> None:
        jobs = self._some(owner, data)
        if not jobs:
            return
        ours = self._ours(jobs)
        due = None if delay is None else self.now + delay
        entries = [RolledBack(job, "why", "worker", due, dead=dead) for job in jobs]
        assert self.store.roll_back(entries, self.now) == len(ours)
        for job_id in ours:
            known = self.known[job_id]
            if dead:
                self._end(job_id, "dead")
            else:
                known.state, known.owner = "ready", ""
                known.due = known.due if due is None else due

    @rule(owner=owners, data=st.data())
    def release(self, owner: str, data: st.DataObject) -> None:
        jobs = self._some(owner, data)
        ours = self._ours(jobs)
        assert not jobs or self.store.release(jobs) == len(ours)
        for job_id in ours:
            known = self.known[job_id]
            known.state, known.owner = "ready", ""
            known.attempts -= 1

    @rule(owner=owners)
    def reclaim(self, owner: str) -> None:
        held = [job_id for job_id, known in self.known.items() if known.owner == owner]
        doomed = [job_id for job_id in held if self.known[job_id].losses + 1 >= MAX_LOSSES]
        assert self.store.reclaim(owner, MAX_LOSSES, self.now) == (len(held) - len(doomed), len(doomed))
        for job_id in held:
            known = self.known[job_id]
            known.losses += 1
            known.state, known.owner = "ready", ""
            if job_id in doomed:
                self._end(job_id, "dead")
            else:
                known.attempts -= 1

    @rule(owner=owners, data=st.data(), away=st.booleans())
    def forward(self, owner: str, data: st.DataObject, *, away: bool) -> None:
        """On to the other queue, or on in this one."""
        jobs = [job for job in self._some(owner, data) if self._is_as_it_was(job)]
        if not jobs:
            return
        ours = self._ours(jobs)
        problems = self._forward(self.store, self.other if away else self.store, jobs)
        taken = {our for our in ours if away and our in self.away}
        assert {our for our in ours if our in problems} == taken
        assert all(isinstance(problems[job], DuplicateError) for job in taken)
        for job_id in ours - taken:
            known = self.known.pop(job_id)
            (self.away if away else self.known)[job_id] = self._gone_on(known)

    @rule()
    def come_back(self) -> None:
        """All that is there, but what has an id that is here."""
        jobs = self.other.reserve(10, self.now, "elsewhere", next(_holds)).jobs
        if not jobs:
            return
        problems = self._forward(self.other, self.store, jobs)
        assert problems.keys() == {job.id for job in jobs if job.id in self.known}
        for job in jobs:
            if job.id not in problems:
                self.known[job.id] = self._gone_on(self.away.pop(job.id))
        if problems:
            self.other.release([job for job in jobs if job.id in problems])

    def _forward(self, source: QueueStore, target: QueueStore, jobs: list[Job]) -> dict[str, SluiceError]:
        batch = []
        for job in jobs:
            on = a_job(job.id, b"", max_attempts=MAX_ATTEMPTS, eligible_at=self.now)
            on.accept(on.seq, self.now)
            self.seqs[job.id] = on.seq
            batch.append(ForwardEntry(job, target, on, frozenset(), "worker", self.now, None))
        return forward(source, batch, self.now)

    def _gone_on(self, known: Known) -> Known:
        """Its attempts and its time to live begin anew."""
        left = None if known.expires is None else self.now + (known.expires - known.created)
        return replace(
            known,
            state="ready",
            owner="",
            attempts=0,
            losses=0,
            due=self.now,
            expires=left,
            created=self.now,
            seq=self.seqs[known.job_id],
        )

    def _is_as_it_was(self, job: Job) -> bool:
        known = self.known.get(job.id)
        return known is None or known.owner != job.owner or known.seq == job.seq

    @rule()
    def expire(self) -> None:
        over = {
            job_id for job_id, known in self.known.items() if known.state == "ready" and self._expired(known)
        }
        assert set(self.store.expire(self.now).ids) == over
        for job_id in over:
            del self.known[job_id]

    @rule(job_id=job_ids)
    def promote(self, job_id: str) -> None:
        if self._waits(job_id):
            self.known[job_id].due = min(self.now, self.known[job_id].due)
            self.changes.promote("mail", job_id, self.now)
            return
        with pytest.raises(NotFoundError):
            self.changes.promote("mail", job_id, self.now)

    @rule(job_id=job_ids, priority=st.integers(0, 2), delay=seconds)
    def change(self, job_id: str, priority: int, delay: int) -> None:
        due = self.now + delay
        expires = self.known[job_id].expires if self._waits(job_id) else None
        if expires is not None and due >= expires:
            with pytest.raises(BadHeadersError, match="would not be due before that"):
                self.changes.change("mail", job_id, self.now, priority=priority, due=due)
            return
        if self._waits(job_id):
            self.known[job_id].priority, self.known[job_id].due = priority, due
            self.changes.change("mail", job_id, self.now, priority=priority, due=due)
            return
        with pytest.raises(NotFoundError):
            self.changes.change("mail", job_id, self.now, priority=priority, due=due)

    @rule()
    def redrive(self) -> None:
        dead = [known for known in self.known.values() if known.state == "dead"]
        assert self.changes.redrive("mail", DeadLetters(), self.now) == Redriven(len(dead), 0)
        for known in dead:
            known.state, known.attempts, known.losses, known.due = "ready", 0, 0, self.now
            if known.expires is not None:
                known.expires = self.now + (known.expires - known.created)

    # ---------------------------------------------------------- what must hold

    @invariant()
    def the_store_is_as_the_model_says(self) -> None:
        found = {job_id: _seen(document) for job_id, document in everything(self.store).items()}
        expected = {
            job_id: (known.state, known.owner, known.attempts, known.losses, known.result, known.due)
            for job_id, known in self.known.items()
        }
        assert found == expected

    @invariant()
    def each_is_in_one_queue(self) -> None:
        found = {job_id: (one["state"], one["attempts"]) for job_id, one in everything(self.other).items()}
        assert found == {job_id: (known.state, known.attempts) for job_id, known in self.away.items()}

    @invariant()
    def what_is_held_is_known(self) -> None:
        assert self.store.owners() == {known.owner for known in self.known.values() if known.owner}

    @invariant()
    def nothing_is_committed_more_often_than_it_was_pushed(self) -> None:
        assert all(count <= self.pushed[job_id] for job_id, count in self.accepted.items())

    # ------------------------------------------------------------------ helpers

    def _some(self, owner: str, data: st.DataObject) -> list[Job]:
        """Jobs that this owner has, or once had: its verdicts on the latter come too late."""
        latest = {job.id: job for job in self.handles[owner]}
        if not latest:
            return []
        return data.draw(st.lists(st.sampled_from(list(latest.values())), unique_by=lambda job: job.id))

    def _ours(self, jobs: list[Job]) -> set[str]:
        return {job.id for job in jobs if job.id in self.known and self.known[job.id].owner == job.owner}

    def _first_due(self, limit: int) -> list[str]:
        due = [
            job_id
            for job_id, known in self.known.items()
            if known.state == "ready" and known.due <= self.now and not self._expired(known)
        ]
        order = sorted(
            due,
            key=lambda job_id: (-self.known[job_id].priority, self.known[job_id].due, self.known[job_id].seq),
        )
        return order[:limit]

    def _expired(self, known: Known) -> bool:
        return known.expires is not None and known.expires <= self.now

    def _waits(self, job_id: str) -> bool:
        known = self.known.get(job_id)
        return known is not None and known.state == "ready" and not self._expired(known)

    def _spent(self, job_id: str) -> bool:
        return self.known[job_id].attempts >= MAX_ATTEMPTS

    def _end(self, job_id: str, state: str) -> None:
        self.known[job_id].state, self.known[job_id].owner = state, ""

    def _accept(self, job_ids: Any) -> None:
        self.accepted.update(job_ids)

    def _check_refusal(self, job: Job, problem: Exception | None, ours: set[str], there: set[str]) -> None:
        if job.id in ours:
            assert not isinstance(problem, LeaseLostError)
        elif job.id in there:
            assert isinstance(problem, LeaseLostError)
        else:
            assert isinstance(problem, UncertainError)


def _seen(document: dict[str, Any]) -> tuple[object, ...]:
    return (
        document["state"],
        document.get("owner", ""),
        document["attempts"],
        document.get("losses", 0),
        document.get("result", b""),
        seconds_of(document["eligible_at"]),
    )


@pytest.fixture
def queue(store: QueueStore, documents: Database[dict[str, Any]]) -> Iterator[type[QueueModel]]:
    QueueModel.store, QueueModel.changes = store, ChangesAtOnce(store.jobs.database)
    QueueModel.other = QueueStore(documents, "queue.other")
    yield QueueModel
    del QueueModel.store, QueueModel.changes, QueueModel.other


def test_random_verbs_do_what_the_model_says(queue: type[QueueModel]) -> None:
    check(queue, 20, 40)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_many_random_verbs_do_what_the_model_says(queue: type[QueueModel], times: int) -> None:
    check(queue, 200 * times, 60)
