"""What is committed is gone or remembered, once, under its own hold only, also when the primary goes."""

from collections.abc import Callable
from typing import Any

import pytest
from pymongo.errors import ServerSelectionTimeoutError

from integration.store_verbs import ME, OTHER, at, claim, pushed, release, rolled_back
from sluicemq.protocol.errors import LeaseLostError, TooLargeError, UncertainError
from sluicemq_broker.job import Dedupe, Job, State
from sluicemq_broker.store import Completed, QueueStore, Unclear, date
from support.jobs import NOW, a_job, everything, finished, ids, some_jobs, stored


def test_committed_jobs_are_gone(store: QueueStore) -> None:
    jobs = pushed(store, *some_jobs(3, owner=ME))
    assert store.commit(jobs[:2]) == {}
    assert list(everything(store)) == ids(jobs[2:])


def test_a_commit_of_a_job_held_by_another_says_lease_lost(store: QueueStore) -> None:
    mine, lost, ready = pushed(
        store, a_job("mine", owner=ME), a_job("lost", owner=ME), a_job("ready", owner=ME)
    )
    release(store, ["lost", "ready"])
    claim(store, 1, owner=OTHER)
    before = everything(store)
    problems = store.commit([mine, lost, ready])
    assert {job_id: type(problem) for job_id, problem in problems.items()} == {
        "lost": LeaseLostError,
        "ready": LeaseLostError,
    }
    assert everything(store) == {job_id: before[job_id] for job_id in ("lost", "ready")}


def test_a_repeated_commit_leaves_the_job_that_was_pushed_anew_under_the_id(store: QueueStore) -> None:
    # Given a job that is done, and another that is reserved under its id and by its owner
    [done] = pushed(store, a_job("a", owner=ME, hold=1))
    store.commit([done])
    [anew] = pushed(store, a_job("a", owner=ME, hold=2))
    problems = store.commit([done])
    assert {job_id: type(problem) for job_id, problem in problems.items()} == {"a": UncertainError}
    assert store.commit([anew]) == {}
    assert everything(store) == {}


@pytest.mark.parametrize(
    "repeat",
    [
        lambda store, job: store.release([job]),
        lambda store, job: store.roll_back([rolled_back(job)], NOW),
        lambda store, job: len(store.complete([finished(job)], NOW)) - 1,
        lambda store, job: len(store.commit([job])) - 1,
    ],
    ids=["release", "rollback", "finish", "commit"],
)
def test_a_repetition_leaves_what_was_reserved_again_by_the_same_owner(
    store: QueueStore, repeat: Callable[[QueueStore, Job], int]
) -> None:
    # Given a job that was given back, and that the same owner has claimed again
    pushed(store, a_job("a"))
    [first] = store.reserve(1, NOW, ME, 1).jobs
    store.release([first])
    [again] = store.reserve(1, NOW, ME, 2).jobs
    before = everything(store)
    changed = repeat(store, first)
    assert (changed, everything(store)) == (0, before)
    assert store.commit([again]) == {}


def test_what_a_claim_without_an_answer_has_reserved_is_found_under_its_number(store: QueueStore) -> None:
    pushed(store, a_job("low"), a_job("high", priority=5), a_job("mine", owner=ME, hold=6))
    claim = store.reserve(2, NOW, ME, 7)
    found = store.claimed(ME, 7)
    assert [(job.id, job.owner, job.reservation.number, job.attempts) for job in found] == [
        (job.id, ME, 7, 1) for job in claim.jobs
    ]
    assert store.claimed(ME, 8) == []


def test_a_commit_that_finds_jobs_gone_is_uncertain_about_all_that_are_gone(store: QueueStore) -> None:
    first, second, lost = pushed(store, *some_jobs(3, owner=ME))
    store.release([lost])
    store.commit([first])
    problems = store.commit([first, second, lost])
    assert {job_id: type(problem) for job_id, problem in problems.items()} == {
        first.id: UncertainError, second.id: UncertainError, lost.id: LeaseLostError,
    }  # fmt: skip


def test_a_finished_job_is_remembered_with_its_result_until_its_time_is_over(store: QueueStore) -> None:
    [job] = pushed(store, a_job("a", remember=300.0, owner=ME))
    problems = store.complete([finished(job, b"result")], NOW)
    assert problems == {}
    assert store.find(["a"])["a"].result == b"result"
    assert stored(store, "a")["remove_at"] == date(NOW + 300).replace(tzinfo=None)
    assert not {"payload", "owner", "reserved_at"} & stored(store, "a").keys()


def test_a_kept_job_stays_whole_with_who_did_it_when_and_with_what_result(store: QueueStore) -> None:
    pushed(store, a_job("a", b"payload", headers={"k": "v"}, keep_done=300.0))
    [job] = claim(store).jobs
    before = stored(store, "a")
    problems = store.complete([Completed(job, b"result", "worker", NOW + 1)], NOW + 2)
    assert problems == {}
    expected = {name: value for name, value in before.items() if name not in ("owner", "reserved_at")}
    assert stored(store, "a") == expected | {
        "state": "done", "done_by": ME, "worker": "worker", "result": b"result",
        "started_at": at(NOW + 1), "ended_at": at(NOW + 2), "remove_at": at(NOW + 302),
    }  # fmt: skip


@pytest.mark.parametrize(("remember", "keep_done", "kept"), [(9.0, 60.0, 60), (60.0, 9.0, 60), (0.0, 0.0, 0)])
def test_a_job_that_is_remembered_and_kept_stays_for_the_longer_of_the_two(
    store: QueueStore, remember: float, keep_done: float, kept: float
) -> None:
    [job] = pushed(store, a_job("a", remember=remember, keep_done=keep_done, owner=ME))
    store.complete([finished(job)], NOW)
    assert stored(store, "a")["remove_at"] == at(NOW + kept)
    assert ("payload" in stored(store, "a")) == (keep_done > 0)


@pytest.mark.parametrize("settings", [{"remember": 60.0}, {"keep_done": 60.0}])
def test_a_popped_job_that_was_not_sent_is_as_before(store: QueueStore, settings: dict[str, Any]) -> None:
    pushed(store, a_job("a", headers={"k": "v"}, **settings))
    before = everything(store)
    [job] = claim(store).jobs
    store.complete([finished(job)], NOW)
    counts = [store.undo_pop([job]), store.undo_pop([job])]
    assert counts == [1, 0]
    assert everything(store) == before


def test_a_popped_job_that_was_popped_again_since_is_not_taken_back(store: QueueStore) -> None:
    # Given one that was taken back, and is popped and sent by now
    pushed(store, a_job("a", keep_done=60.0))
    [first] = claim(store, number=1).jobs
    store.complete([finished(first)], NOW)
    store.undo_pop([first])
    [second] = claim(store, number=2).jobs
    store.complete([finished(second)], NOW)
    # When the order lands again
    count = store.undo_pop([first])
    assert count == 0
    assert stored(store, "a")["state"] == "done"


def test_of_many_finished_jobs_each_keeps_its_own_result_and_story(store: QueueStore) -> None:
    jobs = pushed(store, *some_jobs(6, keep_done=9.0, owner=ME))
    jobs[4].keep_done, jobs[5].keep_done, jobs[5].remember = 5.0, 0.0, 9.0
    story = [(b"a", "x"), (b"a", "x"), (b"b", "x"), (b"a", "y"), (b"a", "x"), (b"a", "x")]
    store.complete([Completed(job, *story[at], NOW) for at, job in enumerate(jobs)], NOW)
    found = everything(store)
    assert [(found[job_id]["result"], found[job_id]["worker"]) for job_id in ids(jobs)] == story
    assert [found[job_id]["remove_at"] for job_id in ids(jobs)] == [
        at(NOW + kept) for kept in (9, 9, 9, 9, 5, 9)
    ]
    assert ["payload" in found[job_id] for job_id in ids(jobs)] == [True] * 5 + [False]


def test_a_job_that_grows_too_long_takes_none_of_those_like_it_with_it(store: QueueStore) -> None:
    long = a_job(payload=bytes(12 * 2**20), keep_done=9.0, owner=ME)
    jobs = pushed(store, a_job(keep_done=9.0, owner=ME), long, a_job(keep_done=9.0, owner=ME))
    problems = store.complete([finished(job, bytes(5 * 2**20)) for job in jobs], NOW)
    assert {problem: type(why) for problem, why in problems.items()} == {long.id: TooLargeError}
    assert [row["state"] for row in everything(store).values()] == ["done", "reserved", "done"]


def test_finishing_twice_is_harmless(store: QueueStore) -> None:
    [job] = pushed(store, a_job("a", remember=300.0, owner=ME))
    store.complete([finished(job, b"result")], NOW)
    before = everything(store)
    problems = store.complete([finished(job, b"result")], NOW + 1)
    assert problems == {}
    assert everything(store) == before


def test_a_finish_under_a_lost_owner_changes_nothing_even_when_finished(store: QueueStore) -> None:
    [job] = pushed(store, a_job("a", remember=300.0, owner=ME))
    store.reclaim(ME, 20, NOW)
    [again] = claim(store, owner=OTHER).jobs
    while_held = store.complete([finished(job, b"late")], NOW)
    store.complete([finished(again, b"result")], NOW)
    when_done = store.complete([finished(job, b"late")], NOW)
    assert isinstance(while_held["a"], LeaseLostError)
    assert isinstance(when_done["a"], LeaseLostError)
    assert store.find(["a"])["a"].result == b"result"


def test_a_late_finish_is_not_of_the_hold_its_owner_has_finished_since(store: QueueStore) -> None:
    [job] = pushed(store, a_job("a", remember=300.0, owner=ME, hold=1))
    store.release([job])
    [again] = claim(store, number=2).jobs
    store.complete([finished(again, b"result")], NOW)
    problems = store.complete([finished(job, b"late")], NOW)
    assert isinstance(problems["a"], LeaseLostError)
    assert store.find(["a"])["a"].result == b"result"


def test_a_finish_of_a_job_that_is_gone_is_uncertain_and_the_others_are_finished(store: QueueStore) -> None:
    gone, here = pushed(store, *some_jobs(2, remember=300.0, owner=ME))
    store.commit([gone])
    problems = store.complete([finished(gone, b"1"), finished(here, b"2")], NOW)
    assert {job_id: type(problem) for job_id, problem in problems.items()} == {gone.id: UncertainError}
    assert store.find([here.id])[here.id].state is State.DONE


WRITER = "me"


def lose_primary_after(store: QueueStore, monkeypatch: pytest.MonkeyPatch, write: str) -> None:
    """From the first such write on, no read finds a primary."""
    statement, read, written = getattr(store.jobs, write), store.jobs.find, list[str]()

    def then(*arguments: Any, **options: Any) -> Any:
        written.append(write)
        return statement(*arguments, **options)

    def find(*arguments: Any, **options: Any) -> Any:
        return no_primary() if written else read(*arguments, **options)

    monkeypatch.setattr(store.jobs, write, then)
    monkeypatch.setattr(store.jobs, "find", find)
    monkeypatch.setattr(store.jobs, "with_options", lambda **_options: store.jobs)


def no_primary(*_arguments: Any, **_options: Any) -> Any:
    raise ServerSelectionTimeoutError("no primary")


def a_claim(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """One of the jobs it finds is another broker's by then, so it asks which it has."""
    jobs = some_jobs(3)
    store.push(jobs, NOW)
    update = store.jobs.update_many

    def overtaken(*arguments: Any, **options: Any) -> Any:
        store.jobs.update_one({"_id": jobs[0].id}, {"$set": {"state": "reserved", "owner": "other"}})
        return update(*arguments, **options)

    monkeypatch.setattr(store.jobs, "update_many", overtaken)
    lose_primary_after(store, monkeypatch, "update_many")
    return lambda: store.reserve(10, NOW, WRITER)


def a_commit(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """One of its jobs is gone, so it asks which are left."""
    jobs = some_jobs(3, owner=WRITER)
    store.push(jobs, NOW)
    store.jobs.delete_one({"_id": jobs[0].id})
    monkeypatch.setattr(store.jobs, "find", no_primary)
    return lambda: store.commit(jobs)


@pytest.mark.parametrize("verb", [a_claim, a_commit])
def test_the_outcome_of_the_verb_is_unclear(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch, verb: Callable[..., Callable[[], object]]
) -> None:
    act = verb(store, monkeypatch)
    with pytest.raises(Unclear):
        act()


def test_a_push_without_a_verdict_is_unclear(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a job that is stored, inserted reserved, beside one whose dedupe_id is taken
    store.push([a_job(dedupe=Dedupe("x", 60.0))], NOW)
    born, other = a_job("born", owner=WRITER), a_job(dedupe=Dedupe("x", 60.0))
    find = store.jobs.find
    monkeypatch.setattr(store.jobs, "with_options", lambda **_options: store.jobs)
    monkeypatch.setattr(store.jobs, "find", no_primary)
    # When, then
    with pytest.raises(Unclear):
        store.push([born, other], NOW)
    monkeypatch.setattr(store.jobs, "find", find)
    assert everything(store)["born"]["owner"] == WRITER
