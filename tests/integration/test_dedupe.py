"""One job for each dedupe_id and window, over the real MongoDB: whoever pushes it, and however it ends."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from pymongo.collection import Collection
from pymongo.database import Database

from sluicemq_broker.job import Dedupe, Job
from sluicemq_broker.store import DeadLetters, Pushed, QueueStore, RolledBack, collection, seconds
from sluicemq_broker.store.jobs.index_models import DEDUPE_INDEX, REMOVAL_INDEX
from sluicemq_broker.store.jobs.inserts import judge
from support.jobs import NOW, ChangesAtOnce, a_job, everything, finished, firsts, stored

ME = "me"
WINDOW = 10.0
ORDER = Dedupe("order-7", WINDOW)


def one_of(job_id: str, dedupe: Dedupe = ORDER, **settings: Any) -> Job:
    return a_job(job_id, dedupe=dedupe, **settings)


def ready(_store: QueueStore, _first: Job) -> None:
    """It waits."""


def reserved(store: QueueStore, _first: Job) -> None:
    store.reserve(1, NOW, ME)


def rolled_back(store: QueueStore, _first: Job) -> None:
    [job] = store.reserve(1, NOW, ME).jobs
    store.roll_back([RolledBack(job, "why", "worker", NOW + 3600)], NOW)


def done(store: QueueStore, _first: Job) -> None:
    [job] = store.reserve(1, NOW, ME).jobs
    store.complete([finished(job, b"result")], NOW)


def dead(store: QueueStore, _first: Job) -> None:
    [job] = store.reserve(1, NOW, ME).jobs
    store.roll_back([RolledBack(job, "why", "worker", dead=True)], NOW)


HOW = pytest.mark.parametrize("become", [ready, reserved, rolled_back, done, dead])


@HOW
def test_a_second_push_within_the_window_is_refused_with_the_first_ones_id(
    store: QueueStore, become: Callable[[QueueStore, Job], None]
) -> None:
    first = one_of("first")
    assert store.push([first], NOW) == Pushed()
    become(store, first)
    before = everything(store)
    answer = store.push([one_of("second")], NOW + WINDOW - 0.001)
    assert firsts(answer) == {0: "first"}
    assert "job first has dedupe_id 'order-7' for 0.0 s more" in str(answer.refused[0])
    assert everything(store) == before


@HOW
def test_behind_the_window_it_is_free(store: QueueStore, become: Callable[[QueueStore, Job], None]) -> None:
    first = one_of("first")
    store.push([first], NOW)
    become(store, first)
    state = stored(store, "first")["state"]
    answer = store.push([one_of("second")], NOW + WINDOW)
    third = store.push([one_of("third")], NOW + WINDOW + 1)
    assert answer == Pushed()
    assert firsts(third) == {0: "second"}
    left = stored(store, "first")
    assert left["state"] == state
    assert not left.keys() & {"dedupe_id", "dedupe_until"}
    assert stored(store, "second")["dedupe_id"] == "order-7"


@pytest.mark.parametrize("way", ["cancelled", "purged", "expired"])
def test_a_removed_job_leaves_its_id_to_others(store: QueueStore, changes: ChangesAtOnce, way: str) -> None:
    store.push([one_of("first", expires_at=NOW + 1)], NOW)
    if way == "cancelled":
        changes.cancel("mail", "first", NOW)
    elif way == "purged":
        changes.purge("mail", "ready", NOW)
    else:
        store.expire(NOW + 1)
    assert store.push([one_of("second")], NOW + 2) == Pushed()


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
def test_a_redriven_job_keeps_its_id_in_its_queue_and_contends_for_none_in_another(
    store: QueueStore, changes: ChangesAtOnce, documents: Database[dict[str, Any]], *, elsewhere: bool
) -> None:
    other = QueueStore(documents, collection("other"))
    other.prepare()
    store.push([one_of("first")], NOW)
    other.push([one_of("there")], NOW)
    dead(store, one_of("first"))
    redriven = changes.redrive("mail", DeadLetters(), NOW + 1, other if elsewhere else None)
    assert (redriven.moved, redriven.refused) == (1, {})
    assert firsts(store.push([one_of("second")], NOW + 2)) == ({} if elsewhere else {0: "first"})
    assert firsts(other.push([one_of("third")], NOW + 2)) == {0: "there"}
    assert stored(other if elsewhere else store, "first")["state"] == "ready"


def test_a_claimed_job_knows_how_long_its_id_is_taken(store: QueueStore) -> None:
    store.push([one_of("first")], NOW)
    [job] = store.reserve(1, NOW, ME).jobs
    assert job.dedupe_until == NOW + WINDOW
    assert job.kept_until(NOW + WINDOW - 0.001) == NOW + WINDOW
    assert job.kept_until(NOW + WINDOW) is None


@pytest.mark.parametrize(("remember", "kept"), [(None, WINDOW), (3.0, WINDOW), (60.0, 61.0)])
def test_a_done_job_stays_for_the_longer_of_window_and_memory_without_its_payload(
    store: QueueStore, remember: float | None, kept: float
) -> None:
    store.push([one_of("first", remember=remember)], NOW)
    [job] = store.reserve(1, NOW, ME).jobs
    store.complete([finished(job, b"result")], NOW + 1)
    left = stored(store, "first")
    assert (left["state"], left["result"]) == ("done", b"result")
    assert seconds(left["remove_at"]) == NOW + kept
    assert "payload" not in left


def test_of_several_in_one_push_the_first_has_the_id(store: QueueStore) -> None:
    answer = store.push([a_job("a"), one_of("b"), one_of("c"), one_of("d", Dedupe("other", 1.0))], NOW)
    assert firsts(answer) == {2: "b"}
    assert answer.existing == []
    assert everything(store).keys() == {"a", "b", "d"}


def test_of_several_in_one_push_the_first_takes_over_and_each_hears_its_place(store: QueueStore) -> None:
    store.push([one_of("old"), a_job("known"), one_of("kept", Dedupe("other", 99.0))], NOW)
    jobs = [one_of("x", Dedupe("other", 1.0)), one_of("a"), a_job("known"), one_of("b"), one_of("old")]
    answer = store.push(jobs, NOW + WINDOW)
    assert answer.existing == [2, 4]
    assert firsts(answer) == {0: "kept", 3: "a"}
    assert everything(store).keys() == {"old", "known", "kept", "a"}


def test_the_window_counts_from_the_statement_that_stores_the_job(store: QueueStore) -> None:
    """A push that waited for MongoDB since it was accepted leaves no gap behind it."""
    store.push([one_of("first")], NOW, NOW + 100)
    answer = store.push([one_of("second")], NOW + 1, NOW + 101)
    assert firsts(answer) == {0: "first"}
    assert seconds(stored(store, "first")["dedupe_until"]) == NOW + 100 + WINDOW
    assert seconds(stored(store, "first")["eligible_at"]) == NOW


def test_a_job_pushed_again_is_an_existing_one_and_no_duplicate_of_itself(store: QueueStore) -> None:
    store.push([one_of("first")], NOW)
    assert store.push([one_of("first")], NOW) == Pushed(existing=[0])
    assert store.push([one_of("first")], NOW + WINDOW) == Pushed(existing=[0])
    assert stored(store, "first")["dedupe_id"] == "order-7"


def test_a_job_that_is_there_exists_whichever_index_has_refused_it(store: QueueStore) -> None:
    # Given: MongoDB looks at _id first, but does not promise it
    store.push([one_of("first")], NOW)
    store.push([one_of("second")], NOW + WINDOW)
    answer = judge(store.jobs, [one_of("first"), one_of("second"), one_of("third")], NOW + WINDOW)
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
    answer = slow.push([one_of("new")], NOW + WINDOW)
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


@pytest.mark.parametrize("held_before", [False, True], ids=["a new id", "an id whose window is over"])
def test_of_many_pushes_at_once_one_is_first_and_all_others_hear_its_id(
    store: QueueStore, documents: Database[dict[str, Any]], *, held_before: bool
) -> None:
    brokers = [store, QueueStore(documents, collection("mail"))]
    many, rounds = 16, 10
    start = Barrier(many)
    if held_before:
        store.push([one_of(f"old-{turn}", Dedupe(f"{turn}", WINDOW)) for turn in range(rounds)], NOW)

    def push(number: int) -> list[tuple[str, Pushed]]:
        answers = []
        for turn in range(rounds):
            job = one_of(f"{turn}-{number}", Dedupe(f"{turn}", WINDOW))
            start.wait(60)
            answers.append((job.id, brokers[number % 2].push([job], NOW + WINDOW)))
        return answers

    with ThreadPoolExecutor(many) as threads:
        answers = [
            list(answers_of_one) for answers_of_one in zip(*threads.map(push, range(many)), strict=True)
        ]
    for answer in answers:
        [first] = [job_id for job_id, pushed in answer if pushed == Pushed()]
        assert [firsts(pushed) for job_id, pushed in answer if job_id != first] == [{0: first}] * (many - 1)
    assert len(everything(store)) == rounds * (2 if held_before else 1)


def before_dedupe_ids(jobs: Collection[dict[str, Any]]) -> None:
    jobs.drop_index(DEDUPE_INDEX)


def of_schema_1(jobs: Collection[dict[str, Any]]) -> None:
    jobs.drop_index(DEDUPE_INDEX)
    jobs.drop_index(REMOVAL_INDEX)
    jobs.create_index("remove_at", name=REMOVAL_INDEX, expireAfterSeconds=0)
    there = {"dedupe_id": {"$exists": True}}
    jobs.create_index("dedupe_id", name=DEDUPE_INDEX, unique=True, partialFilterExpression=there)


@pytest.mark.parametrize("age", [before_dedupe_ids, of_schema_1])
def test_a_queue_of_an_older_broker_gets_the_indexes_and_keeps_its_jobs(
    documents: Database[dict[str, Any]], age: Callable[[Collection[dict[str, Any]]], None]
) -> None:
    older = QueueStore(documents, collection("older"))
    older.prepare()
    newer = older.jobs.index_information()
    age(older.jobs)
    older.push([a_job("a"), a_job("b")], NOW)
    store = QueueStore(documents, collection("older"))
    store.prepare()
    store.push([one_of("first")], NOW)
    assert store.jobs.index_information() == newer
    assert firsts(store.push([one_of("second")], NOW)) == {0: "first"}
    assert everything(store).keys() == {"a", "b", "first"}
