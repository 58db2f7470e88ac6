"""One job for each dedupe_id and window, over the real MongoDB: whoever pushes it, and however it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from pymongo.database import Database
from pymongo.errors import AutoReconnect

from broker.job import Dedupe, Job
from broker.mongo import Unclear
from broker.store import GivenBack, QueueStore
from broker.store_documents import DEDUPE_INDEX, seconds
from broker.store_inspect import Inspector, collection
from broker.store_push import Pushed, judge
from jobs import NOW, a_job, everything, stored
from sluicemq.errors import Duplicate, SluiceError

ME = "me"
WINDOW = 10.0
ORDER = Dedupe("order-7", WINDOW)


def one_of(job_id: str, dedupe: Dedupe = ORDER, **settings: Any) -> Job:
    return a_job(job_id, dedupe=dedupe, **settings)


def firsts(answer: Pushed) -> dict[int, str]:
    """The ids of the jobs that the refused ones repeat, by position."""
    return {at: error.id for at, error in answer.refused.items() if isinstance(error, Duplicate)}


# --------------------------------------------------------------- how the first ends


def ready(_store: QueueStore, _first: Job) -> None:
    """It waits."""


def reserved(store: QueueStore, _first: Job) -> None:
    store.reserve(1, NOW, ME)


def given_back(store: QueueStore, _first: Job) -> None:
    [job] = store.reserve(1, NOW, ME).jobs
    store.give_back([GivenBack(job, "why", "worker", NOW + 3600)], NOW)


def done(store: QueueStore, _first: Job) -> None:
    [job] = store.reserve(1, NOW, ME).jobs
    store.finish([(job, b"result")], NOW)


def dead(store: QueueStore, _first: Job) -> None:
    [job] = store.reserve(1, NOW, ME).jobs
    store.give_back([GivenBack(job, "why", "worker", dead=True)], NOW)


HOW = pytest.mark.parametrize("become", [ready, reserved, given_back, done, dead])


@HOW
def test_a_second_push_within_the_window_is_refused_with_the_first_ones_id(
    store: QueueStore, become: Callable[[QueueStore, Job], None]
) -> None:
    # Given
    first = one_of("first")
    assert store.push([first], NOW) == Pushed()
    become(store, first)
    before = everything(store)
    # When
    answer = store.push([one_of("second")], NOW + WINDOW - 0.001)
    # Then
    assert firsts(answer) == {0: "first"}
    assert "job first has dedupe_id 'order-7' for 0.0 s more" in str(answer.refused[0])
    assert everything(store) == before


@HOW
def test_once_the_window_is_over_the_next_push_takes_the_id_over(
    store: QueueStore, become: Callable[[QueueStore, Job], None]
) -> None:
    # Given
    first = one_of("first")
    store.push([first], NOW)
    become(store, first)
    state = stored(store, "first")["state"]
    # When
    answer = store.push([one_of("second")], NOW + WINDOW)
    third = store.push([one_of("third")], NOW + WINDOW + 1)
    # Then
    assert answer == Pushed()
    assert firsts(third) == {0: "second"}
    left = stored(store, "first")
    assert left["state"] == state
    assert not left.keys() & {"dedupe_id", "dedupe_until"}
    assert stored(store, "second")["dedupe_id"] == "order-7"


@pytest.mark.parametrize("way", ["cancelled", "purged", "expired"])
def test_a_job_that_is_removed_unfinished_leaves_its_id_to_the_next(
    store: QueueStore, inspector: Inspector, way: str
) -> None:
    # Given
    store.push([one_of("first", expires_at=NOW + 1)], NOW)
    # When
    if way == "cancelled":
        inspector.cancel("mail", "first")
    elif way == "purged":
        inspector.purge("mail", "ready", NOW)
    else:
        store.expire(NOW + 1)
    # Then
    assert store.push([one_of("second")], NOW + 2) == Pushed()


def test_a_claimed_job_knows_how_long_its_id_is_taken(store: QueueStore) -> None:
    # Given
    store.push([one_of("first")], NOW)
    # When
    [job] = store.reserve(1, NOW, ME).jobs
    # Then
    assert job.dedupe_until == NOW + WINDOW
    assert job.kept_until(NOW + WINDOW - 0.001) == NOW + WINDOW
    assert job.kept_until(NOW + WINDOW) is None


@pytest.mark.parametrize(("remember", "kept"), [(None, WINDOW), (3.0, WINDOW), (60.0, 61.0)])
def test_a_done_job_stays_for_the_longer_of_window_and_memory_without_its_payload(
    store: QueueStore, remember: float | None, kept: float
) -> None:
    # Given
    store.push([one_of("first", remember=remember)], NOW)
    [job] = store.reserve(1, NOW, ME).jobs
    # When
    store.finish([(job, b"result")], NOW + 1)
    # Then
    left = stored(store, "first")
    assert (left["state"], left["result"]) == ("done", b"result")
    assert seconds(left["remove_at"]) == NOW + kept
    assert "payload" not in left


# ----------------------------------------------------------------- in one push


def test_of_several_in_one_push_the_first_has_the_id(store: QueueStore) -> None:
    # When
    answer = store.push([a_job("a"), one_of("b"), one_of("c"), one_of("d", Dedupe("other", 1.0))], NOW)
    # Then
    assert firsts(answer) == {2: "b"}
    assert answer.existing == []
    assert everything(store).keys() == {"a", "b", "d"}


def test_of_several_in_one_push_the_first_takes_over_and_each_hears_of_its_own_place(
    store: QueueStore,
) -> None:
    # Given
    store.push([one_of("old"), a_job("known"), one_of("kept", Dedupe("other", 99.0))], NOW)
    # When
    jobs = [one_of("x", Dedupe("other", 1.0)), one_of("a"), a_job("known"), one_of("b"), one_of("old")]
    answer = store.push(jobs, NOW + WINDOW)
    # Then
    assert answer.existing == [2, 4]
    assert firsts(answer) == {0: "kept", 3: "a"}
    assert everything(store).keys() == {"old", "known", "kept", "a"}


def test_the_window_counts_from_the_statement_that_stores_the_job(store: QueueStore) -> None:
    """A push that waited for MongoDB since it was accepted leaves no gap behind it."""
    # When
    store.push([one_of("first")], NOW, NOW + 100)
    answer = store.push([one_of("second")], NOW + 1, NOW + 101)
    # Then
    assert firsts(answer) == {0: "first"}
    assert seconds(stored(store, "first")["dedupe_until"]) == NOW + 100 + WINDOW
    assert seconds(stored(store, "first")["eligible_at"]) == NOW


# -------------------------------------------------------------------- repeated


def test_a_job_pushed_again_is_an_existing_one_and_no_duplicate_of_itself(store: QueueStore) -> None:
    # Given
    store.push([one_of("first")], NOW)
    # Then
    assert store.push([one_of("first")], NOW) == Pushed(existing=[0])
    assert store.push([one_of("first")], NOW + WINDOW) == Pushed(existing=[0])
    assert stored(store, "first")["dedupe_id"] == "order-7"


def test_a_job_that_is_there_exists_whichever_index_has_refused_it(store: QueueStore) -> None:
    # Given: MongoDB looks at _id first, but does not promise it
    store.push([one_of("first")], NOW)
    store.push([one_of("second")], NOW + WINDOW)
    # When
    answer = judge(store.jobs, [one_of("first"), one_of("second"), one_of("third")], NOW + WINDOW)
    # Then
    assert answer.existing == [0, 1]
    assert firsts(answer) == {2: "second"}


def test_an_id_is_not_taken_from_a_job_that_has_come_since_under_the_holders_own_id(
    store: QueueStore, documents: Database[dict[str, Any]]
) -> None:
    # Given: the holder is removed and pushed again between the read and the taking over
    store.push([one_of("old")], NOW)
    other = QueueStore(documents, collection("mail"))

    def come_again() -> None:
        other.jobs.delete_one({"_id": "old"})
        other.push([one_of("old")], NOW + WINDOW)

    slow = QueueStore(documents, collection("mail"))
    slow.jobs = Overtaken(slow.jobs, come_again)  # type: ignore[assignment]
    # When
    answer = slow.push([one_of("new")], NOW + WINDOW)
    # Then
    assert firsts(answer) == {0: "old"}
    assert everything(store).keys() == {"old"}


class Overtaken:
    """A collection where something happens just before an update."""

    def __init__(self, jobs: Any, before: Callable[[], None]) -> None:
        self.jobs = jobs
        self.before = before

    def __getattr__(self, name: str) -> Any:
        if name == "update_many":
            self.before()
        return getattr(self.jobs, name)


# ------------------------------------------------------------------ concurrently


@pytest.mark.parametrize("held_before", [False, True], ids=["a new id", "an id whose window is over"])
def test_of_many_pushes_at_once_one_is_first_and_all_others_hear_its_id(
    store: QueueStore, documents: Database[dict[str, Any]], *, held_before: bool
) -> None:
    # Given
    brokers = [store, QueueStore(documents, collection("mail"))]
    many, rounds = 16, 10
    start = Barrier(many)
    if held_before:
        store.push([one_of(f"old-{each}", Dedupe(f"{each}", WINDOW)) for each in range(rounds)], NOW)

    def push(number: int) -> list[tuple[str, Pushed]]:
        answers = []
        for each in range(rounds):
            job = one_of(f"{each}-{number}", Dedupe(f"{each}", WINDOW))
            start.wait(30)
            answers.append((job.id, brokers[number % 2].push([job], NOW + WINDOW)))
        return answers

    # When
    with ThreadPoolExecutor(many) as threads:
        answers = [list(each) for each in zip(*threads.map(push, range(many)), strict=True)]
    # Then
    for answer in answers:
        [first] = [job_id for job_id, pushed in answer if pushed == Pushed()]
        assert [firsts(pushed) for job_id, pushed in answer if job_id != first] == [{0: first}] * (many - 1)
    assert len(everything(store)) == rounds * (2 if held_before else 1)


# --------------------------------------------------------------- against a model


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
    inspector: Inspector

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
            a_job(each, max_attempts=0, dedupe=Dedupe(name, window) if name else None)
            for each, name, window in batch
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
                self.store.give_back([GivenBack(job, "why", "w", dead=result == "dead")], self.now)
                self.jobs[job.id] = result
            elif kept is not None:
                assert self.store.finish([(job, b"")], self.now) == {}
                self.jobs[job.id] = "done"
            else:
                assert self.store.commit([job]) == {}
                self._gone({job.id})

    @rule()
    def mongodb_removes_what_is_over(self) -> None:
        over = {
            job_id
            for job_id, each in everything(self.store).items()
            if "remove_at" in each and seconds(each["remove_at"]) <= self.now
        }
        self.store.jobs.delete_many({"_id": {"$in": list(over)}})
        self._gone(over)

    @rule(state=st.sampled_from(["ready", "done", "dead"]))
    def purge(self, state: str) -> None:
        self.inspector.purge("mail", state, self.now)
        self._gone({job_id for job_id, each in self.jobs.items() if each == state})

    def _gone(self, ids: set[str]) -> None:
        self.jobs = {job_id: state for job_id, state in self.jobs.items() if job_id not in ids}
        self.holds = {
            name: (job_id, until) for name, (job_id, until) in self.holds.items() if job_id not in ids
        }

    @invariant()
    def each_open_window_has_its_job(self) -> None:
        there = everything(self.store)
        assert {job_id: each["state"] for job_id, each in there.items()} == self.jobs
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
def pushes(store: QueueStore, inspector: Inspector) -> Iterator[type[Pushes]]:
    Pushes.store, Pushes.inspector = store, inspector
    yield Pushes
    del Pushes.store, Pushes.inspector


def check(pushes: type[Pushes], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        pushes,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=examples < 100,  # the short run is the same each time
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_random_pushes_some_of_them_cut_are_told_what_the_model_says(pushes: type[Pushes]) -> None:
    check(pushes, 80, 25)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_many_random_pushes_are_told_what_the_model_says(pushes: type[Pushes]) -> None:
    check(pushes, 1500, 50)


# ------------------------------------------------------------------------ the index


def test_a_queue_of_an_older_broker_gets_the_index_and_keeps_its_jobs(
    documents: Database[dict[str, Any]],
) -> None:
    # Given
    older = QueueStore(documents, collection("older"))
    older.prepare()
    older.jobs.drop_index(DEDUPE_INDEX)
    older.push([a_job("a"), a_job("b")], NOW)
    # When
    store = QueueStore(documents, collection("older"))
    store.prepare()
    store.push([one_of("first")], NOW)
    # Then
    assert firsts(store.push([one_of("second")], NOW)) == {0: "first"}
    assert everything(store).keys() == {"a", "b", "first"}
