"""Deduplication against a short model: random pushes, some of them cut, beside all that becomes of jobs.

Of all pushes of one dedupe_id within a window one is stored, and everybody else hears its id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pymongo.errors import AutoReconnect

from integration.model_runs import check
from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.job import Dedupe, Job
from sluicemq_broker.store import Pushed, QueueStore, RolledBack, Unclear, seconds
from support.jobs import NOW, ChangesAtOnce, a_job, everything, finished, firsts

ME = "me"


@dataclass
class Cut:
    """A connection that breaks at a chosen write, before or after it is applied."""

    jobs: Any
    at: int = 0
    applied: bool = False
    writes: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.jobs, name)
        if name not in {"insert_many", "update_many"}:
            return real

        def write(*args: Any, **options: Any) -> Any:
            self.writes.append(name)
            cut = len(self.writes) == self.at
            if cut and not self.applied:
                raise AutoReconnect("cut before it was applied")
            try:
                return real(*args, **options)
            finally:
                if cut:
                    raise AutoReconnect("cut after it was applied")

        return write


class Pushes(RuleBasedStateMachine):
    """Random pushes of few ids and dedupe_ids, some cut, beside all that can become of a job."""

    store: QueueStore
    changes: ChangesAtOnce

    def __init__(self) -> None:
        super().__init__()
        self.store.jobs.delete_many({})
        self.now = NOW
        self.jobs: dict[str, str] = {}  # all there is: state by id
        self.holds: dict[str, tuple[str, float]] = {}  # who has a dedupe_id, until when

    @rule(seconds=st.sampled_from([1, 4]))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule(
        batch=st.lists(
            st.tuples(st.sampled_from("abcdef"), st.sampled_from(["", "x", "y"]), st.sampled_from([2, 5])),
            min_size=1,
            max_size=5,
            unique_by=lambda job: job[0],
        ),
        cut=st.integers(0, 4),
        applied=st.booleans(),
    )
    def push(self, batch: list[tuple[str, str, int]], cut: int, *, applied: bool) -> None:
        jobs = [
            a_job(job_id, max_attempts=0, dedupe=Dedupe(name, window) if name else None)
            for job_id, name, window in batch
        ]
        answer = self._push(jobs, cut, applied=applied)
        existing, refused, new = set(), {}, set()
        for at, (job_id, name, window) in enumerate(batch):
            first, until = self.holds.get(name, ("", 0.0))
            if job_id in self.jobs:
                existing.add(at)
            elif until > self.now:
                refused[at] = first
            else:
                new.add(at)
                self.jobs[job_id] = "ready"
                if name:
                    self.holds[name] = (job_id, self.now + window)
        assert firsts(answer) == refused
        if answer.writes_cut:  # what the first try has stored is there already when it is repeated
            assert existing <= set(answer.existing) <= existing | new
        else:
            assert answer.existing == sorted(existing)

    def _push(self, jobs: list[Job], cut: int, *, applied: bool) -> Answer:
        real = self.store.jobs
        self.store.jobs = broken = Cut(real, cut, applied)  # type: ignore[assignment]
        try:
            answer = self.store.push(jobs, self.now)
        except Unclear:
            answer = self.store.push(jobs, self.now)
            return Answer(answer.existing, answer.refused, writes_cut=True)
        finally:
            self.store.jobs = real
        assert len(broken.writes) < cut or not cut
        return Answer(answer.existing, answer.refused)

    @rule(result=st.sampled_from(["done", "dead", "ready"]))
    def work(self, result: str) -> None:
        """As a worker's verdict is settled."""
        for job in self.store.reserve(1, self.now, ME).jobs:
            kept = job.kept_until(self.now)
            if result != "done":
                self.store.roll_back([RolledBack(job, "why", "w", dead=result == "dead")], self.now)
                self.jobs[job.id] = result
            elif kept is not None:
                assert self.store.complete([finished(job, b"")], self.now) == {}
                self.jobs[job.id] = "done"
            else:
                assert self.store.commit([job]) == {}
                self._gone({job.id})

    @rule()
    def mongodb_removes_what_is_over(self) -> None:
        over = {
            job_id
            for job_id, row in everything(self.store).items()
            if "remove_at" in row and seconds(row["remove_at"]) <= self.now
        }
        self.store.jobs.delete_many({"_id": {"$in": list(over)}})
        self._gone(over)

    @rule(state=st.sampled_from(["ready", "done", "dead"]))
    def purge(self, state: str) -> None:
        self.changes.purge("mail", state, self.now)
        self._gone({job_id for job_id, job in self.jobs.items() if job == state})

    def _gone(self, ids: set[str]) -> None:
        self.jobs = {job_id: state for job_id, state in self.jobs.items() if job_id not in ids}
        self.holds = {
            name: (job_id, until) for name, (job_id, until) in self.holds.items() if job_id not in ids
        }

    @invariant()
    def each_open_window_has_its_job(self) -> None:
        there = everything(self.store)
        assert {job_id: row["state"] for job_id, row in there.items()} == self.jobs
        for name, (job_id, until) in self.holds.items():
            if until > self.now:
                assert there[job_id].get("dedupe_id") == name


class Answer(Pushed):
    """What was answered in the end, and whether it had to be asked twice."""

    def __init__(
        self, existing: list[int], refused: dict[int, SluiceError], *, writes_cut: bool = False
    ) -> None:
        super().__init__(existing, refused)
        self.writes_cut = writes_cut


@pytest.fixture
def pushes(store: QueueStore, changes: ChangesAtOnce) -> Iterator[type[Pushes]]:
    Pushes.store, Pushes.changes = store, changes
    yield Pushes
    del Pushes.store, Pushes.changes


def test_random_pushes_some_of_them_cut_are_told_what_the_model_says(pushes: type[Pushes]) -> None:
    check(pushes, 20, 25)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_many_random_pushes_are_told_what_the_model_says(pushes: type[Pushes], times: int) -> None:
    check(pushes, 200 * times, 50)
