"""Jobs go on to another queue: whole, once, with their history, whatever happens in between."""

from collections.abc import Callable
from typing import Any

import pytest
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import AutoReconnect

from sluicemq.protocol.errors import BadFramesError, DuplicateError, LeaseLostError, UncertainError
from sluicemq_broker.job import Job
from sluicemq_broker.store import ForwardEntry, QueueDefaults, QueueStore, RolledBack, Unclear, forward
from sluicemq_broker.store.jobs.documents import PASSED_KEPT
from support.jobs import NOW, a_job, everything, some_jobs, stored

LATER = NOW + 10


@pytest.fixture
def other(documents: Database[dict[str, Any]]) -> QueueStore:
    return QueueStore(documents, "queue.other", QueueDefaults(max_attempts=9))


def reserved(store: QueueStore, *jobs: Job) -> list[Job]:
    """These, pushed and reserved."""
    store.push(list(jobs), NOW)
    return store.reserve(len(jobs), LATER, "worker", 1).jobs


def onward(
    job: Job, to: QueueStore, *said: str, kept_until: float | None = None, **settings: Any
) -> ForwardEntry:
    settings.setdefault("payload", b"")
    on = a_job(job.id, settings.pop("payload"), max_attempts=9, **settings)
    on.accept(int(LATER * 1e6), LATER)
    return ForwardEntry(job, to, on, frozenset(said), "worker", LATER, kept_until)


def test_a_job_is_there_and_no_longer_here_with_all_it_had(store: QueueStore, other: QueueStore) -> None:
    (job,) = reserved(
        store, a_job("a", b"cat", headers={"colour": "red"}, priority=3, max_attempts=7, expires_at=NOW + 60)
    )
    assert forward(store, [onward(job, other)], LATER) == {}
    assert everything(store) == {}
    (there,) = other.reserve(1, LATER + 1, "other worker").jobs
    assert (there.id, there.payload, there.headers, there.priority) == ("a", b"cat", {"colour": "red"}, 3)
    assert (there.max_attempts, there.attempts) == (7, 1)
    assert there.expires_at == LATER + 60  # its time to live begins anew


def test_what_the_worker_says_anew_holds_before_the_queue(store: QueueStore, other: QueueStore) -> None:
    (job,) = reserved(store, a_job("a", b"cat", headers={"colour": "red"}, priority=3))
    on = onward(job, other, "payload", "priority", payload=b"dog", priority=8)
    assert forward(store, [on], LATER) == {}
    (there,) = other.reserve(1, LATER + 1, "other worker").jobs
    assert (there.payload, there.headers, there.priority) == (b"dog", {"colour": "red"}, 8)
    assert there.max_attempts == 9


def test_its_failures_and_the_queues_it_came_through_are_told(store: QueueStore, other: QueueStore) -> None:
    (job,) = reserved(store, a_job("a"))
    store.roll_back([RolledBack(job, "no time", "first")], LATER)
    (job,) = store.reserve(1, LATER, "worker", 2).jobs
    forward(store, [onward(job, other)], LATER)
    there = stored(other, "a")
    assert [row["reason"] for row in there["errors"]] == ["no time"]
    (passed,) = there["passed"]
    assert (passed["queue"], passed["attempts"], passed["worker"]) == (store.name[6:], 2, "worker")


def test_many_go_to_several_queues_at_once_in_their_order(
    store: QueueStore, other: QueueStore, documents: Database[dict[str, Any]]
) -> None:
    third = QueueStore(documents, "queue.third")
    jobs = reserved(store, *some_jobs(40))
    batch = [onward(job, (other, third)[at % 2]) for at, job in enumerate(jobs)]
    for at, move in enumerate(batch):
        move.on.accept(int(LATER * 1e6) + at, LATER)
    assert forward(store, batch, LATER) == {}
    assert everything(store) == {}
    for at, queue in enumerate((other, third)):
        claimed = queue.reserve(40, LATER + 1, "x").jobs
        assert [job.id for job in claimed] == [job.id for job in jobs[at::2]]


def test_an_id_there_already_keeps_only_its_own_job_here(store: QueueStore, other: QueueStore) -> None:
    first, second = reserved(store, a_job("a"), a_job("b"))
    other.push([a_job("a", b"its own")], NOW)
    problems = forward(store, [onward(job, other) for job in (first, second)], LATER)
    assert {problem: type(why) for problem, why in problems.items()} == {"a": DuplicateError}
    assert "queue 'other' has a job 'a' already" in str(problems["a"])
    assert stored(store, "a")["state"] == "reserved"
    assert stored(other, "a")["payload"] == b"its own"
    assert (stored(store, "b"), stored(other, "b")["state"]) == ({}, "ready")


@pytest.mark.parametrize(("there", "error"), [(True, LeaseLostError), (False, UncertainError)])
def test_of_a_job_that_is_held_no_more_nothing_goes_on(
    store: QueueStore, other: QueueStore, error: type[Exception], *, there: bool
) -> None:
    lost, mine = reserved(store, a_job("a"), a_job("b"))
    if there:
        store.release([lost])
        store.reserve(1, LATER, "thief", 7)
    else:
        store.jobs.delete_one({"_id": "a"})
    problems = forward(store, [onward(job, other) for job in (lost, mine)], LATER)
    assert {problem: type(why) for problem, why in problems.items()} == {"a": error}
    assert set(everything(other)) == {"b"}
    assert set(everything(store)) == ({"a"} if there else set())


STEPS = ["find", "delete_many", "insert_many"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [False, True])
def test_one_that_breaks_off_between_two_statements_is_here_still_and_nowhere_else(
    store: QueueStore, other: QueueStore, monkeypatch: pytest.MonkeyPatch, step: str, *, after: bool
) -> None:
    jobs = reserved(store, *some_jobs(3))
    before = everything(store)
    broken: Callable[..., Any] = getattr(Collection, step)

    def breaks(self: Any, *arguments: Any, **options: Any) -> Any:
        if after:
            broken(self, *arguments, **options)
        raise AutoReconnect("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Collection, step, breaks)
        with pytest.raises(Unclear):
            forward(store, [onward(job, other) for job in jobs], LATER)
    # Then, and it can be repeated
    assert (everything(store), everything(other)) == (before, {})
    assert forward(store, [onward(job, other) for job in jobs], LATER) == {}
    assert len(everything(other)) == 3


def test_a_repetition_after_a_lost_reply_finds_what_has_gone_on(store: QueueStore, other: QueueStore) -> None:
    jobs = reserved(store, *some_jobs(3))
    for _ in range(2):
        assert forward(store, [onward(job, other) for job in jobs], LATER) == {}
    assert len(everything(other)) == 3
    other.reserve(3, LATER + 1, "x")
    other.jobs.delete_many({})  # done and gone
    problems = forward(store, [onward(job, other) for job in jobs], LATER)
    assert {type(problem) for problem in problems.values()} == {UncertainError}


def test_what_one_waits_for_leaves_a_trace_and_its_dedupe_id(store: QueueStore, other: QueueStore) -> None:
    (job,) = reserved(store, a_job("a", remember=60.0))
    assert forward(store, [onward(job, other, kept_until=LATER + 60)], LATER) == {}
    assert forward(store, [onward(job, other, kept_until=LATER + 60)], LATER) == {}
    trace = stored(store, "a")
    assert (trace["state"], trace["forwarded_to"], "payload" in trace) == ("done", "other", False)
    assert store.find(["a"])["a"].forwarded_to == "other"
    assert stored(other, "a")["remember"] == 60.0


def test_a_job_that_comes_back_takes_the_place_of_its_trace(store: QueueStore, other: QueueStore) -> None:
    (job,) = reserved(store, a_job("a", b"round"))
    forward(store, [onward(job, other, kept_until=LATER + 60)], LATER)
    (there,) = other.reserve(1, LATER + 1, "x", 5).jobs
    assert forward(other, [onward(there, store)], LATER) == {}
    assert everything(other) == {}
    back = stored(store, "a")
    assert (back["state"], back["payload"], "forwarded_to" in back) == ("ready", b"round", False)
    assert [row["queue"] for row in back["passed"]] == [store.name[6:], "other"]


def test_a_job_may_go_on_in_its_own_queue_and_its_history_is_bounded(store: QueueStore) -> None:
    (job,) = reserved(store, a_job("a", b"0"))
    for number in range(1, PASSED_KEPT + 5):
        on = onward(job, store, "payload", payload=b"%d" % number, kept_until=LATER + 60)
        assert forward(store, [on], LATER) == {}
        (job,) = store.reserve(1, LATER + 1, "worker", number + 1).jobs
    assert (job.payload, job.attempts) == (b"%d" % (PASSED_KEPT + 4), 1)
    assert len(stored(store, "a")["passed"]) == PASSED_KEPT


def test_what_can_not_be_read_stays_and_costs_others_nothing(store: QueueStore, other: QueueStore) -> None:
    first, second = reserved(store, a_job("a"), a_job("b"))
    store.jobs.update_one({"_id": "a"}, {"$set": {"payload": "text"}})
    problems = forward(store, [onward(job, other) for job in (first, second)], LATER)
    assert {problem: type(why) for problem, why in problems.items()} == {"a": BadFramesError}
    assert set(everything(other)) == {"b"}
