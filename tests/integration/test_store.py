"""Each verb of the store, over the real MongoDB: what it moves, what it leaves, what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest
from pymongo.database import Database
from pymongo.errors import AutoReconnect, BulkWriteError, OperationFailure, ServerSelectionTimeoutError

from jobs import NOW, a_job, everything, finished, ids, some_jobs, stored
from sluicemq.errors import LeaseLost, TooLarge, Unavailable, Uncertain
from sluicemq_broker.job.backoff import Backoff
from sluicemq_broker.job.job import ERRORS_KEPT, Dedupe, Hold, Job, State
from sluicemq_broker.store import claims as claims_module
from sluicemq_broker.store.claims import Claim, Claims
from sluicemq_broker.store.connection import Doubtful, Refused, Unclear, translated
from sluicemq_broker.store.documents import QueueDefaults, date
from sluicemq_broker.store.expiry import Expiry
from sluicemq_broker.store.index_models import INDEXES
from sluicemq_broker.store.inserts import MOST_DOUBTS, Insertion, Pushed, refusals
from sluicemq_broker.store.numbered import Insert, Sessions, sessions_of
from sluicemq_broker.store.outcomes import Completed, Found, RolledBack
from sluicemq_broker.store.queue_store import QueueStore

ME, OTHER = "me", "other"


def claim(store: QueueStore, limit: int = 100, now: float = NOW, owner: str = ME, **options: Any) -> Claim:
    return store.reserve(limit, now, owner, **options)


def pushed(store: QueueStore, *jobs: Job) -> list[Job]:
    store.push(jobs, NOW)
    return list(jobs)


def at(seconds: float) -> datetime:
    """A date as MongoDB gives it back."""
    return date(seconds).replace(tzinfo=None)


def rolled_back(job: Job, reason: str = "why", **options: Any) -> RolledBack:
    return RolledBack(job, reason, "worker", **options)


# ------------------------------------------------------------------------- push


def test_a_pushed_job_comes_back_from_a_claim_as_it_was(store: QueueStore) -> None:
    # Given
    job = a_job(
        "id", b"\x00\xff", headers={"a": [1, {"b": None}], "bin": b"\xff"}, priority=7, expires_at=NOW + 9,
        max_attempts=3, visibility_timeout=12.5, remember=60.0, keep_done=5.0,
        backoff=Backoff("fixed", base=3.0),
    )  # fmt: skip
    job.is_asked_for()
    # When
    answer = store.push([job], NOW)
    [claimed] = claim(store).jobs
    # Then
    assert answer == Pushed()
    kept = set(Job.__slots__) - {"created_at", "dedupe", "eligible_at", "seq", "size"}
    expected = {name: getattr(job, name) for name in kept} | {"held": Hold(ME, 0), "attempts": 1}
    assert {name: getattr(claimed, name) for name in kept} == expected


def test_a_push_repeated_by_id_stores_nothing_anew_and_says_which_were_there(store: QueueStore) -> None:
    # Given
    pushed(store, a_job("a", b"first"), a_job("c", b"first"))
    # When
    answer = store.push([a_job("a", b"second"), a_job("b", b"second"), a_job("c", b"second")], NOW)
    # Then
    assert answer == Pushed(existing=[0, 2])
    assert {job_id: each["payload"] for job_id, each in everything(store).items()} == {
        "a": b"first", "b": b"second", "c": b"first",
    }  # fmt: skip


def test_a_job_that_is_too_large_for_mongodb_is_refused_for_good(store: QueueStore) -> None:
    for large in (a_job(payload=bytes(17 * 2**20)), a_job(headers={"a": [1] * 2_000_000})):
        with pytest.raises(Refused) as refusal:
            store.push([large], NOW)
        assert refusal.value.code == "TOO_LARGE"


def test_an_id_twice_in_one_push_is_stored_once(store: QueueStore) -> None:
    assert store.push([a_job("a", b"first"), a_job("a", b"second")], NOW) == Pushed(existing=[1])
    assert stored(store, "a")["payload"] == b"first"


def test_a_push_of_an_id_whose_job_is_done_is_an_existing_one(store: QueueStore) -> None:
    # Given
    [job] = pushed(store, a_job("a", remember=60.0, owner=ME))
    store.complete([finished(job, b"result")], NOW)
    # When
    answer = store.push([a_job("a")], NOW)
    # Then
    assert answer == Pushed(existing=[0])
    assert stored(store, "a")["state"] == "done"


def test_an_insert_that_is_sent_again_stores_no_job_anew_that_is_done_by_now(store: QueueStore) -> None:
    # Given an insert that was applied, whose answer is lost
    insertion = store.insertion([a_job("a", owner=ME), a_job("b")], NOW)
    with lost_answer(insertion):
        insertion.send(NOW)
    # When one of its jobs is done before it is sent again
    store.commit([a_job("a", owner=ME)])
    answer = insertion.send(NOW)
    # Then
    assert answer == Pushed()
    assert everything(store).keys() == {"b"}


def test_an_insert_that_lands_after_it_was_sent_again_is_refused(store: QueueStore) -> None:
    # Given an insert that was sent twice, and was applied the second time
    insertion = store.insertion([a_job("a", owner=ME)], NOW)
    with lost_answer(insertion, applied=False) as late:
        insertion.send(NOW)
    insertion.send(NOW)
    store.commit([a_job("a", owner=ME)])
    # When the first lands, and when it lands after the session has gone on
    again = late[0]()
    store.push([a_job("b")], NOW)
    # Then
    assert again["retriedStmtIds"] == [0]
    with pytest.raises(OperationFailure, match="newer retryable write"):
        late[0]()
    assert everything(store).keys() == {"b"}


def test_an_insert_that_found_its_id_taken_stores_nothing_when_an_earlier_copy_lands_later(
    store: QueueStore,
) -> None:
    # Given a second push of an id, sent twice, which found the first one there
    pushed(store, a_job("a", owner=ME))
    insertion = store.insertion([a_job("a")], NOW)
    with lost_answer(insertion, applied=False) as late:
        insertion.send(NOW)
    answer = insertion.send(NOW)
    # When that is done, and then the first copy lands
    store.commit([a_job("a", owner=ME)])
    with pytest.raises(OperationFailure, match="newer retryable write"):
        late[0]()
    # Then
    assert answer == Pushed(existing=[0])
    assert everything(store) == {}


def test_inserts_have_numbers_that_the_driver_has_not_used(store: QueueStore) -> None:
    """It gives sessions from its pool, in which it has numbered statements of its own."""
    for _ in range(3):
        store.jobs.insert_one({"_id": "x"})
        store.jobs.delete_one({"_id": "x"})
    sessions = Sessions(store.jobs.database.client)
    answer = Insert(sessions, store.jobs.database, store.name).send([{"_id": "a"}])
    assert "retriedStmtIds" not in answer
    assert everything(store).keys() == {"a"}


def test_statements_that_are_refused_leave_their_sessions_to_others(store: QueueStore) -> None:
    # Given
    sessions = sessions_of(store.jobs.database.client)
    store.push([a_job()], NOW)
    before = len(sessions._all)
    # When
    for _ in range(3):
        with pytest.raises(Refused):
            store.push([a_job(headers={"never": object()})], NOW)
    # Then
    assert len(sessions._all) == before


def test_a_claim_leaves_a_job_that_was_pushed_anew_under_an_id_since_it_was_read(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    pushed(store, a_job("a", b"old"))

    def done_and_pushed_anew() -> None:
        store.commit(claim(store, owner=OTHER).jobs)
        pushed(store, a_job("a", b"new"))

    between_read_and_update(store, monkeypatch, done_and_pushed_anew)
    # When
    mine = claim(store)
    # Then
    assert mine.jobs == []
    assert [each.payload for each in claim(store).jobs] == [b"new"]


def test_a_new_job_does_not_die_of_what_a_former_one_of_its_id_has_used_up(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a job without attempts left, which is cancelled and pushed anew while it is claimed
    spent = a_job("a", max_attempts=2)
    spent.attempts = 2
    pushed(store, spent)
    end = Claims._spent_to_dead

    def pushed_anew(self: Claims, *arguments: Any) -> tuple[str, ...]:
        store.jobs.delete_one({"_id": "a"})
        pushed(store, a_job("a", max_attempts=2))
        return end(self, *arguments)

    monkeypatch.setattr(Claims, "_spent_to_dead", pushed_anew)
    # When
    claimed = claim(store)
    # Then
    assert (claimed.jobs, claimed.died) == ([], ())
    assert stored(store, "a")["state"] == "ready"


@pytest.mark.parametrize("code", [64, 91])
def test_an_insert_whose_durability_is_in_doubt_is_sent_again_as_the_same(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    # Given
    insertion = store.insertion([a_job("a", owner=ME)], NOW)
    with monkeypatch.context() as patch:
        command = Database.command
        doubt = {"writeConcernError": {"code": code, "errmsg": "in doubt"}}
        patch.setattr(Database, "command", lambda *args, **options: {**command(*args, **options), **doubt})
        with pytest.raises(Unclear, match="durability"):
            insertion.send(NOW)
    # When
    store.commit([a_job("a", owner=ME)])
    answer = insertion.send(NOW)
    # Then
    assert (answer, everything(store)) == (Pushed(), {})


def test_nothing_else_is_sent_in_the_session_of_an_insert_until_it_is_answered(store: QueueStore) -> None:
    # Given an insert that was applied, whose answer is lost
    insertion = store.insertion([a_job("a", owner=ME)], NOW)
    with lost_answer(insertion):
        insertion.send(NOW)
    # When other jobs are pushed, and the first is done, before it is sent again
    for _ in range(3):
        store.push([a_job()], NOW)
    store.commit([a_job("a", owner=ME)])
    answer = insertion.send(NOW)
    # Then
    assert answer == Pushed()
    assert "a" not in everything(store)


def test_inserts_one_after_the_other_share_one_session(store: QueueStore) -> None:
    sessions = Sessions(store.jobs.database.client)
    for number in range(5):
        insert = Insert(sessions, store.jobs.database, store.name)
        insert.send([{"_id": f"job-{number}"}])
        insert.end(all_stored=True)
    assert len(sessions._all) == 1


def test_a_job_that_is_refused_again_and_again_with_a_code_nobody_knows_is_refused_alone(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    command = Database.command
    refused = {"writeErrors": [{"index": 1, "code": 4_242_424, "errmsg": "strange"}]}
    monkeypatch.setattr(
        Database, "command", lambda *args, **options: {**command(*args, **options), **refused}
    )
    insertion = store.insertion(some_jobs(3), NOW)
    # When
    for _ in range(MOST_DOUBTS - 1):
        with pytest.raises(Doubtful):
            insertion.send(NOW)
    # Then
    answer = insertion.send(NOW)
    assert {at: type(why) for at, why in answer.refused.items()} == {1: TooLarge}


def test_a_job_born_reserved_is_held_and_not_claimed(store: QueueStore) -> None:
    pushed(store, a_job("a", owner=ME), a_job("b"))
    assert ids(claim(store, owner=OTHER).jobs) == ["b"]
    assert store.reservations(ME) == {("a", 0)}
    assert stored(store, "a")["attempts"] == 1


@pytest.mark.parametrize("code", [64, 100])
def test_a_push_whose_durability_is_in_doubt_is_unclear(store: QueueStore, code: int) -> None:
    doubt = {"writeErrors": [{"index": 0, "code": 11000}], "writeConcernErrors": [{"code": code}]}
    with pytest.raises(Unclear, match="durability"):
        refusals(BulkWriteError(doubt))


def test_a_server_in_trouble_is_not_taken_for_a_fault_of_the_job(store: QueueStore) -> None:
    no_shard = {"writeErrors": [{"index": 0, "code": 133, "errmsg": "FailedToSatisfyReadPreference"}]}
    with pytest.raises(Unclear, match="has not taken all"):
        refusals(BulkWriteError(no_shard))


def test_a_duplicate_of_another_unique_index_is_refused_and_not_taken_for_a_stored_job(
    documents: Database[dict[str, Any]],
) -> None:
    # Given
    store = QueueStore(documents, "queue.unique")
    store.jobs.create_index("priority", unique=True)
    pushed(store, a_job(priority=1))
    # When
    answer = store.push([a_job(priority=1), a_job(priority=2)], NOW)
    # Then
    assert answer.existing == []
    assert isinstance(answer.refused.pop(0), TooLarge)
    assert not answer.refused


def test_an_unreadable_message_is_a_dead_letter_with_its_reason_and_may_be_buried_twice(
    store: QueueStore,
) -> None:
    # Given
    letter = {"_id": "a", "payload": b"\xff", "raw_headers": b"{", "reason": "BAD_HEADERS: no", "size": 9}
    # When
    store.keep_unreadable([letter], NOW)
    store.keep_unreadable([letter], NOW)
    # Then
    assert store.find(["a"])["a"] == Found(State.DEAD, "", b"", "BAD_HEADERS: no")
    assert stored(store, "a")["raw_headers"] == b"{"
    assert claim(store).jobs == []


# ---------------------------------------------------------------------- reserve


def test_jobs_are_claimed_by_priority_then_time_then_acceptance(store: QueueStore) -> None:
    # Given
    last, third, second, first = (
        a_job("last", priority=0, eligible_at=NOW - 99),
        a_job("third", priority=5),
        a_job("second", priority=5, eligible_at=NOW - 1),
        a_job("first", priority=9),
    )
    fourth = a_job("fourth", priority=5)
    pushed(store, last, fourth, third, second, first)
    # When
    jobs = claim(store).jobs
    # Then
    assert ids(jobs) == ["first", "second", "third", "fourth", "last"]


def test_a_claim_takes_no_more_than_its_limit_and_says_whether_more_may_lie_ready(store: QueueStore) -> None:
    jobs = pushed(store, *some_jobs(5))
    first, second = claim(store, 3), claim(store, 3)
    assert (ids(first.jobs), first.more) == (ids(jobs[:3]), True)
    assert (ids(second.jobs), second.more) == (ids(jobs[3:]), False)


def test_a_claim_leaves_jobs_from_a_number_on(store: QueueStore) -> None:
    jobs = pushed(store, *some_jobs(3))
    assert ids(claim(store, before=jobs[1].seq).jobs) == ids(jobs[:1])


def test_a_claim_brings_no_more_bytes_than_there_is_room_for_but_one_job_at_least(store: QueueStore) -> None:
    jobs = pushed(store, *some_jobs(4, payload=bytes(1000)))
    assert ids(claim(store, most_bytes=1).jobs) == ids(jobs[:1])
    assert ids(claim(store, most_bytes=2000).jobs) == ids(jobs[1:3])


def test_a_delayed_job_is_claimed_when_it_is_due_and_not_before(store: QueueStore) -> None:
    pushed(store, a_job("a", eligible_at=NOW + 5))
    assert claim(store, now=NOW + 4.999).jobs == []
    assert ids(claim(store, now=NOW + 5).jobs) == ["a"]


def test_a_claimed_job_counts_its_attempt_and_is_nobody_elses(store: QueueStore) -> None:
    # Given
    pushed(store, a_job("a"))
    # When
    [job] = claim(store).jobs
    # Then
    assert (job.attempts, job.owner, stored(store, "a")["attempts"]) == (1, ME, 1)
    assert stored(store, "a")["reserved_at"].timestamp() != 0
    assert claim(store, owner=OTHER).jobs == []


def test_an_expired_job_is_not_claimed_and_does_not_stand_before_others(store: QueueStore) -> None:
    # Given
    pushed(store, *some_jobs(10, expires_at=NOW - 1), a_job("alive"), a_job("later", expires_at=NOW + 1))
    # When
    first = claim(store, 2)
    # Then
    assert ids(first.jobs) == ["alive", "later"]
    assert claim(store, 2) == Claim([], ME, more=False)


def test_a_job_without_attempts_left_goes_to_the_dead_letters_instead_of_a_worker(store: QueueStore) -> None:
    # Given
    spent = a_job("spent", max_attempts=2)
    spent.attempts = 2
    pushed(store, spent, a_job("next"))
    # When
    claimed = claim(store)
    # Then
    assert (ids(claimed.jobs), claimed.died) == (["next"], ("spent",))
    assert claim(store).died == ()
    assert store.find(["spent"])["spent"] == Found(State.DEAD, "", b"", "no attempt is left")


def test_a_job_with_max_attempts_0_never_runs_out_of_them(store: QueueStore) -> None:
    endless = a_job("a", max_attempts=0)
    endless.attempts = 1_000
    pushed(store, endless)
    assert ids(claim(store).jobs) == ["a"]


def test_of_several_brokers_each_claims_from_a_random_page_and_together_they_claim_all(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    jobs = pushed(store, *some_jobs(10))
    pages = iter([1, 1, 3, 0, 2])
    monkeypatch.setattr(claims_module, "randrange", lambda _brokers: next(pages))
    # When
    second_page = claim(store, 3, brokers=4)
    second_again = claim(store, 3, brokers=4)
    beyond_the_end = claim(store, 3, brokers=4)
    # Then
    assert ids(second_page.jobs) == ids(jobs[3:6])
    assert ids(second_again.jobs) == ids(jobs[6:9])
    assert ids(beyond_the_end.jobs) == ids(jobs[:3])
    assert beyond_the_end.more
    assert ids(claim(store, 3, brokers=4).jobs) == ids(jobs[9:])


def test_of_jobs_that_another_broker_took_meanwhile_none_is_claimed(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    pushed(store, a_job("a"), a_job("b"), a_job("c"))
    between_read_and_update(store, monkeypatch, lambda: claim(store, 2, owner=OTHER))
    # When
    mine = claim(store)
    # Then
    assert ids(mine.jobs) == ["c"]
    assert store.reservations(OTHER) == {("a", 0), ("b", 0)}
    assert [stored(store, each)["attempts"] for each in "abc"] == [1, 1, 1]


def test_a_job_given_back_with_a_delay_between_read_and_update_is_not_claimed_early(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    pushed(store, a_job("a"))

    def claimed_and_delayed() -> None:
        [job] = claim(store, owner=OTHER).jobs
        store.roll_back([rolled_back(job, due=NOW + 60)], NOW)

    between_read_and_update(store, monkeypatch, claimed_and_delayed)
    # When
    mine = claim(store)
    # Then
    assert mine.jobs == []
    assert stored(store, "a")["state"] == "ready"


def between_read_and_update(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]
) -> None:
    """Let something happen, once, between the two statements of the next claim."""
    hold = Claims._hold

    def interrupted(self: Claims, *arguments: Any) -> list[Job]:
        monkeypatch.setattr(Claims, "_hold", hold)
        happens()
        return hold(self, *arguments)

    monkeypatch.setattr(Claims, "_hold", interrupted)


# ----------------------------------------------------------------------- commit


def test_committed_jobs_are_gone(store: QueueStore) -> None:
    jobs = pushed(store, *some_jobs(3, owner=ME))
    assert store.commit(jobs[:2]) == {}
    assert list(everything(store)) == ids(jobs[2:])


def test_a_commit_of_a_job_that_is_held_by_another_changes_nothing_and_says_lease_lost(
    store: QueueStore,
) -> None:
    # Given
    mine, lost, ready = pushed(
        store, a_job("mine", owner=ME), a_job("lost", owner=ME), a_job("ready", owner=ME)
    )
    release(store, ["lost", "ready"])
    claim(store, 1, owner=OTHER)
    before = everything(store)
    # When
    problems = store.commit([mine, lost, ready])
    # Then
    assert {job_id: type(problem) for job_id, problem in problems.items()} == {
        "lost": LeaseLost,
        "ready": LeaseLost,
    }
    assert everything(store) == {job_id: before[job_id] for job_id in ("lost", "ready")}


def test_a_repeated_commit_leaves_the_job_that_was_pushed_anew_under_the_id(store: QueueStore) -> None:
    # Given a job that is done, and another that is reserved under its id and by its owner
    [done] = pushed(store, a_job("a", owner=ME, hold=1))
    store.commit([done])
    [anew] = pushed(store, a_job("a", owner=ME, hold=2))
    # When
    problems = store.commit([done])
    # Then
    assert {each: type(problem) for each, problem in problems.items()} == {"a": Uncertain}
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
    # When
    changed = repeat(store, first)
    # Then
    assert (changed, everything(store)) == (0, before)
    assert store.commit([again]) == {}


def test_what_a_claim_without_an_answer_has_reserved_is_found_under_its_number(store: QueueStore) -> None:
    # Given
    pushed(store, a_job("low"), a_job("high", priority=5), a_job("mine", owner=ME, hold=6))
    claim = store.reserve(2, NOW, ME, 7)
    # When
    found = store.claimed(ME, 7)
    # Then
    assert [(each.id, each.owner, each.hold, each.attempts) for each in found] == [
        (each.id, ME, 7, 1) for each in claim.jobs
    ]
    assert store.claimed(ME, 8) == []


def test_a_commit_that_finds_jobs_gone_is_uncertain_about_all_that_are_gone(store: QueueStore) -> None:
    # Given
    first, second, lost = pushed(store, *some_jobs(3, owner=ME))
    store.release([lost])
    store.commit([first])
    # When
    problems = store.commit([first, second, lost])
    # Then
    assert {job_id: type(problem) for job_id, problem in problems.items()} == {
        first.id: Uncertain, second.id: Uncertain, lost.id: LeaseLost,
    }  # fmt: skip


# ----------------------------------------------------------------------- finish


def test_a_finished_job_is_remembered_with_its_result_until_its_time_is_over(store: QueueStore) -> None:
    # Given
    [job] = pushed(store, a_job("a", remember=300.0, owner=ME))
    # When
    problems = store.complete([finished(job, b"result")], NOW)
    # Then
    assert problems == {}
    assert store.find(["a"])["a"].result == b"result"
    assert stored(store, "a")["remove_at"] == date(NOW + 300).replace(tzinfo=None)
    assert not {"payload", "owner", "reserved_at"} & stored(store, "a").keys()


def test_a_kept_job_stays_whole_with_who_did_it_when_and_with_what_result(store: QueueStore) -> None:
    # Given
    pushed(store, a_job("a", b"payload", headers={"k": "v"}, keep_done=300.0))
    [job] = claim(store).jobs
    before = stored(store, "a")
    # When
    problems = store.complete([Completed(job, b"result", "worker", NOW + 1)], NOW + 2)
    # Then
    assert problems == {}
    expected = {name: each for name, each in before.items() if name not in ("owner", "reserved_at")}
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
def test_a_popped_job_that_could_not_be_sent_is_as_it_was_before(
    store: QueueStore, settings: dict[str, Any]
) -> None:
    # Given
    pushed(store, a_job("a", headers={"k": "v"}, **settings))
    before = everything(store)
    [job] = claim(store).jobs
    store.complete([finished(job)], NOW)
    # When
    counts = [store.undo_pop([job]), store.undo_pop([job])]
    # Then
    assert counts == [1, 0]
    assert everything(store) == before


def test_a_popped_job_that_was_popped_again_since_is_not_taken_back(store: QueueStore) -> None:
    # Given one that was taken back, and is popped and sent by now
    pushed(store, a_job("a", keep_done=60.0))
    [first] = claim(store, hold=1).jobs
    store.complete([finished(first)], NOW)
    store.undo_pop([first])
    [second] = claim(store, hold=2).jobs
    store.complete([finished(second)], NOW)
    # When the order lands again
    count = store.undo_pop([first])
    # Then
    assert count == 0
    assert stored(store, "a")["state"] == "done"


def test_of_many_finished_jobs_each_keeps_its_own_result_and_story(store: QueueStore) -> None:
    # Given
    jobs = pushed(store, *some_jobs(6, keep_done=9.0, owner=ME))
    jobs[4].keep_done, jobs[5].keep_done, jobs[5].remember = 5.0, 0.0, 9.0
    story = [(b"a", "x"), (b"a", "x"), (b"b", "x"), (b"a", "y"), (b"a", "x"), (b"a", "x")]
    # When
    store.complete([Completed(job, *story[at], NOW) for at, job in enumerate(jobs)], NOW)
    # Then
    found = everything(store)
    assert [(found[each]["result"], found[each]["worker"]) for each in ids(jobs)] == story
    assert [found[each]["remove_at"] for each in ids(jobs)] == [at(NOW + kept) for kept in (9, 9, 9, 9, 5, 9)]
    assert ["payload" in found[each] for each in ids(jobs)] == [True] * 5 + [False]


def test_a_job_that_grows_too_long_takes_none_of_those_like_it_with_it(store: QueueStore) -> None:
    # Given
    long = a_job(payload=bytes(12 * 2**20), keep_done=9.0, owner=ME)
    jobs = pushed(store, a_job(keep_done=9.0, owner=ME), long, a_job(keep_done=9.0, owner=ME))
    # When
    problems = store.complete([finished(each, bytes(5 * 2**20)) for each in jobs], NOW)
    # Then
    assert {each: type(why) for each, why in problems.items()} == {long.id: TooLarge}
    assert [each["state"] for each in everything(store).values()] == ["done", "reserved", "done"]


def test_finishing_twice_is_harmless(store: QueueStore) -> None:
    # Given
    [job] = pushed(store, a_job("a", remember=300.0, owner=ME))
    store.complete([finished(job, b"result")], NOW)
    before = everything(store)
    # When
    problems = store.complete([finished(job, b"result")], NOW + 1)
    # Then
    assert problems == {}
    assert everything(store) == before


def test_a_finish_under_a_lost_owner_changes_nothing_even_when_another_has_finished_it(
    store: QueueStore,
) -> None:
    # Given
    [job] = pushed(store, a_job("a", remember=300.0, owner=ME))
    store.reclaim(ME, 20, NOW)
    [again] = claim(store, owner=OTHER).jobs
    # When
    while_held = store.complete([finished(job, b"late")], NOW)
    store.complete([finished(again, b"result")], NOW)
    when_done = store.complete([finished(job, b"late")], NOW)
    # Then
    assert isinstance(while_held["a"], LeaseLost)
    assert isinstance(when_done["a"], LeaseLost)
    assert store.find(["a"])["a"].result == b"result"


def test_a_late_finish_is_not_that_of_the_hold_which_the_same_owner_has_finished_since(
    store: QueueStore,
) -> None:
    # Given
    [job] = pushed(store, a_job("a", remember=300.0, owner=ME, hold=1))
    store.release([job])
    [again] = claim(store, hold=2).jobs
    store.complete([finished(again, b"result")], NOW)
    # When
    problems = store.complete([finished(job, b"late")], NOW)
    # Then
    assert isinstance(problems["a"], LeaseLost)
    assert store.find(["a"])["a"].result == b"result"


def test_a_finish_of_a_job_that_is_gone_is_uncertain_and_the_others_are_finished(store: QueueStore) -> None:
    # Given
    gone, here = pushed(store, *some_jobs(2, remember=300.0, owner=ME))
    store.commit([gone])
    # When
    problems = store.complete([finished(gone, b"1"), finished(here, b"2")], NOW)
    # Then
    assert {job_id: type(problem) for job_id, problem in problems.items()} == {gone.id: Uncertain}
    assert store.find([here.id])[here.id].state is State.DONE


# -------------------------------------------------------------------- give back


def test_a_job_given_back_is_ready_again_with_its_history_and_its_attempt_counted(store: QueueStore) -> None:
    # Given
    pushed(store, a_job("a"))
    [job] = claim(store).jobs
    # When
    ours = store.roll_back([rolled_back(job, "no luck")], NOW + 1)
    # Then
    document = stored(store, "a")
    assert ours == 1
    assert document["errors"] == [
        {"at": date(NOW + 1).replace(tzinfo=None), "attempt": 1, "reason": "no luck", "worker": "worker"}
    ]
    assert not {"owner", "reserved_at"} & document.keys()
    [again] = claim(store, now=NOW + 1).jobs
    assert again.attempts == 2


def test_a_job_given_back_with_a_delay_is_due_then_and_never_in_the_past(store: QueueStore) -> None:
    # Given
    delayed, past = pushed(store, a_job("delayed", owner=ME), a_job("past", owner=ME))
    # When
    store.roll_back([rolled_back(delayed, due=NOW + 9), rolled_back(past, due=NOW - 9)], NOW)
    # Then
    assert claim(store, now=NOW - 1).jobs == []
    assert ids(claim(store, now=NOW).jobs) == ["past"]
    assert ids(claim(store, now=NOW + 9).jobs) == ["delayed"]


def test_a_job_given_back_without_a_delay_keeps_its_place(store: QueueStore) -> None:
    pushed(store, a_job("a"), a_job("b"))
    [job] = claim(store, 1).jobs
    store.roll_back([rolled_back(job)], NOW)
    assert ids(claim(store).jobs) == ["a", "b"]


def test_a_history_keeps_the_last_ten_failures_and_cuts_long_reasons(store: QueueStore) -> None:
    # Given
    pushed(store, a_job("a", max_attempts=0))
    # When
    for number in range(ERRORS_KEPT + 3):
        [job] = claim(store).jobs
        store.roll_back([rolled_back(job, f"{number} " + "x" * 5000)], NOW)
    # Then
    errors = stored(store, "a")["errors"]
    assert [each["attempt"] for each in errors] == list(range(4, ERRORS_KEPT + 4))
    assert max(len(each["reason"]) for each in errors) == 1000
    [again] = claim(store).jobs
    assert not hasattr(again, "errors")


def test_a_suspect_stays_one(store: QueueStore) -> None:
    # Given
    pushed(store, a_job("a"))
    [job] = claim(store).jobs
    store.roll_back([rolled_back(job, suspect=True)], NOW)
    # When
    [first] = claim(store).jobs
    store.roll_back([rolled_back(first)], NOW)
    [second] = claim(store).jobs
    # Then
    assert first.suspect
    assert second.suspect


def test_a_rejected_job_is_dead_with_its_reason_and_is_not_handed_out(store: QueueStore) -> None:
    [job] = pushed(store, a_job("a", owner=ME))
    store.roll_back([rolled_back(job, "poison", due=NOW + 5, dead=True)], NOW)
    assert store.find(["a"])["a"] == Found(State.DEAD, "", b"", "poison")
    assert stored(store, "a")["ended_at"] == date(NOW).replace(tzinfo=None)
    assert claim(store, now=NOW + 10).jobs == []


def test_only_jobs_that_are_still_ours_are_given_back(store: QueueStore) -> None:
    # Given
    mine, lost = pushed(store, a_job("mine", owner=ME), a_job("lost", owner=ME))
    release(store, ["lost"])
    claim(store, owner=OTHER)
    before = stored(store, "lost")
    # When
    ours = store.roll_back([rolled_back(mine), rolled_back(lost, dead=True)], NOW)
    # Then
    assert ours == 1
    assert stored(store, "lost") == before


def test_a_released_job_keeps_its_place_and_its_attempt_is_not_counted(store: QueueStore) -> None:
    # Given
    pushed(store, a_job("a"), a_job("b"))
    claim(store)
    # When
    freed = release(store, ["a", "b"])
    # Then
    assert freed == 2
    assert "errors" not in stored(store, "a")
    assert [(job.id, job.attempts) for job in claim(store).jobs] == [("a", 1), ("b", 1)]


def test_an_orphan_is_freed_under_its_own_hold_only(store: QueueStore) -> None:
    pushed(store, a_job("a", owner=ME, hold=2))
    assert store.free("a", ME, 1) == 0
    assert stored(store, "a")["state"] == "reserved"
    assert store.free("a", ME, 2) == 1
    assert stored(store, "a")["state"] == "ready"


def test_a_release_frees_only_what_the_owner_holds(store: QueueStore) -> None:
    pushed(store, a_job("a", owner=ME), a_job("b", owner=OTHER), a_job("c"))
    before = everything(store)
    assert release(store, ["b", "c"]) == 0
    assert everything(store) == before


# ---------------------------------------------------------------------- reclaim


def test_a_reclaim_gives_back_all_jobs_of_one_owner_counting_a_loss_and_no_attempt(store: QueueStore) -> None:
    # Given
    pushed(store, *some_jobs(3), a_job("theirs", owner=OTHER))
    claim(store)
    # When
    answer = store.reclaim(ME, 20, NOW)
    # Then
    assert answer == (3, 0)
    assert store.owners() == {OTHER}
    assert [(job.losses, job.attempts) for job in claim(store).jobs] == [(1, 1)] * 3


def test_a_job_lost_with_its_broker_too_often_is_dead(store: QueueStore) -> None:
    # Given
    pushed(store, a_job("a"))
    # When
    answers = []
    for _ in range(3):
        claim(store)
        answers.append(store.reclaim(ME, 3, NOW))
    # Then
    assert answers == [(1, 0), (1, 0), (0, 1)]
    assert store.find(["a"])["a"] == Found(State.DEAD, "", b"", "lost with its broker too often")
    assert stored(store, "a")["losses"] == 3


def test_where_one_loss_is_too_many_a_job_is_dead_of_the_first(store: QueueStore) -> None:
    pushed(store, a_job("a", owner=ME))
    assert store.reclaim(ME, 1, NOW) == (0, 1)
    assert stored(store, "a")["losses"] == 1


def test_reclaiming_twice_changes_nothing_more(store: QueueStore) -> None:
    pushed(store, a_job(owner=ME))
    store.reclaim(ME, 20, NOW)
    before = everything(store)
    assert store.reclaim(ME, 20, NOW) == (0, 0)
    assert everything(store) == before


# ------------------------------------------------------------ expire, held, find


def test_expired_jobs_are_removed_a_limited_number_at_a_time(store: QueueStore) -> None:
    # Given
    over = pushed(store, *some_jobs(3, expires_at=NOW))
    pushed(store, a_job("later", expires_at=NOW + 1), a_job("never"))
    # When
    first, second, third = (store.expire(NOW, 2).ids for _ in range(3))
    # Then
    assert sorted(first + second) == sorted(ids(over))
    assert (len(first), len(second), third) == (2, 1, [])
    assert everything(store).keys() == {"later", "never"}


def test_expired_jobs_are_dead_letters_where_the_queue_says_so(
    documents: Database[dict[str, Any]],
) -> None:
    # Given
    store = QueueStore(documents, "queue.mail", QueueDefaults(on_expiry="dead"))
    over = pushed(store, *some_jobs(3, expires_at=NOW))
    pushed(store, a_job("later", expires_at=NOW + 1), a_job("held", expires_at=NOW, owner=ME))
    # When
    first, second, third = (store.expire(NOW, 2).ids for _ in range(3))
    # Then
    assert sorted(first + second) == sorted(ids(over))
    assert (len(first), len(second), third) == (2, 1, [])
    found = store.find([*ids(over), "later", "held"])
    assert [found.pop(each) for each in ids(over)] == [
        Found(State.DEAD, "", b"", "expired", expired=True)
    ] * 3
    assert {each: left.state for each, left in found.items()} == {
        "later": State.READY, "held": State.RESERVED,
    }  # fmt: skip


def test_a_rejection_in_the_same_word_is_no_expiry(store: QueueStore) -> None:
    [job] = pushed(store, a_job("a", owner=ME))
    store.roll_back([rolled_back(job, "expired", dead=True)], NOW)
    assert not store.find(["a"])["a"].expired


@pytest.mark.parametrize("on_expiry", ["drop", "dead"])
def test_a_job_that_is_claimed_while_it_expires_is_not_told_to_have_expired(
    documents: Database[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, on_expiry: str
) -> None:
    # Given another broker whose clock is a little behind
    store = QueueStore(documents, "queue.mail", QueueDefaults(on_expiry=on_expiry))
    pushed(store, a_job("a", expires_at=NOW), a_job("b", expires_at=NOW))
    end = Expiry._end

    def claimed_before(self: Expiry, *arguments: Any) -> int:
        store.jobs.update_one({"_id": "a"}, {"$set": {"state": "reserved", "owner": OTHER}})
        return end(self, *arguments)

    monkeypatch.setattr(Expiry, "_end", claimed_before)
    # Then
    assert store.expire(NOW).ids == ["b"]
    assert stored(store, "a")["state"] == "reserved"


def test_a_reserved_job_never_expires(store: QueueStore) -> None:
    pushed(store, a_job("a", expires_at=NOW + 1))
    claim(store)
    assert store.expire(NOW + 2).ids == []
    assert stored(store, "a")["state"] == "reserved"


def test_what_is_held_is_told_by_owner(store: QueueStore) -> None:
    pushed(store, a_job("a", owner=ME), a_job("b", owner=OTHER), a_job("c"))
    assert store.owners() == {ME, OTHER}
    assert store.reservations(ME) == {("a", 0)}
    assert store.reservations(OTHER) == {("b", 0)}


def test_find_tells_what_became_of_a_job(store: QueueStore) -> None:
    # Given
    ready, held, done, dead = pushed(
        store,
        a_job("ready"),
        a_job("held", owner=ME),
        a_job("done", owner=ME, remember=9.0),
        a_job("dead", owner=ME),
    )
    store.complete([finished(done, b"result")], NOW)
    store.roll_back([rolled_back(dead, "bad", dead=True)], NOW)
    # When
    found = store.find([*ids([ready, held, done, dead]), "nowhere"])
    # Then
    assert found == {
        "ready": Found(State.READY, "", b"", ""),
        "held": Found(State.RESERVED, ME, b"", ""),
        "done": Found(State.DONE, "", b"result", ""),
        "dead": Found(State.DEAD, "", b"", "bad"),
    }


# ------------------------------------------------------------------------ others


def test_nothing_done_under_a_lost_owner_changes_the_job_of_the_new_one(store: QueueStore) -> None:
    # Given
    pushed(store, a_job("a"))
    [late] = claim(store).jobs
    store.reclaim(ME, 20, NOW)
    [current] = claim(store, owner=OTHER).jobs
    before = everything(store)
    # When
    problems = [store.commit([late]), store.complete([finished(late, b"late")], NOW)]
    moved = [store.roll_back([rolled_back(late)], NOW), release(store, ["a"]), *store.reclaim(ME, 1, NOW)]
    # Then
    assert [type(each["a"]) for each in problems] == [LeaseLost, LeaseLost]
    assert moved == [0, 0, 0, 0]
    assert everything(store) == before
    assert store.commit([current]) == {}


def test_a_queue_that_was_removed_gets_its_indexes_again(store: QueueStore) -> None:
    # Given
    indexes = store.jobs.index_information()
    store.jobs.drop()
    # When
    store.prepare()
    unprepared = store.jobs.index_information()
    store.dropped()
    store.prepare()
    # Then
    assert unprepared == {}
    assert store.jobs.index_information() == indexes


def test_no_primary_means_not_sent_and_a_lost_reply_means_unclear() -> None:
    with pytest.raises(Unavailable) as not_sent, translated():
        raise ServerSelectionTimeoutError("nobody")
    with pytest.raises(Unclear) as lost, translated():
        raise AutoReconnect("cut")
    assert not isinstance(not_sent.value, Unclear)
    assert isinstance(lost.value.__cause__, AutoReconnect)


def test_a_queue_that_another_broker_removed_and_a_push_made_again_gets_its_indexes_back(
    store: QueueStore,
) -> None:
    # Given
    store.jobs.drop()
    store.mend()  # makes no collection that is gone
    assert store.jobs.index_information() == {}
    store.push([a_job()], NOW)
    assert len(store.jobs.index_information()) == 1
    # When
    store.mend()
    # Then
    assert len(store.jobs.index_information()) == 1 + len(INDEXES)


def test_a_dead_letter_is_not_removed_before_its_dedupe_window_is_over(
    documents: Database[dict[str, Any]],
) -> None:
    store = QueueStore(documents, "retained", QueueDefaults(dead_retention=1.0))
    store.prepare()
    store.push([a_job(way, dedupe=Dedupe(way, 300.0)) for way in ("rejected", "lost")], NOW)
    rejected, _lost = claim(store).jobs
    store.jobs.update_one({"_id": "lost"}, {"$set": {"losses": 1}})
    # When
    store.roll_back([rolled_back(rejected, dead=True)], NOW)
    store.reclaim(ME, 2, NOW)
    # Then
    for letter in store.jobs.find():
        assert (letter["state"], letter["remove_at"]) == ("dead", letter["dedupe_until"])


def release(store: QueueStore, job_ids: list[str]) -> int:
    """Release jobs of ours by their ids."""
    return store.release([a_job(each, owner=ME) for each in job_ids])


@contextmanager
def lost_answer(
    insertion: Insertion, *, applied: bool = True
) -> Iterator[list[Callable[[], dict[str, Any]]]]:
    """The answer to an insert is lost; what is not applied can be sent later, by what this gives."""
    kept: list[Callable[[], dict[str, Any]]] = []
    statement = insertion._statement
    real = statement._database

    class Cut:
        def command(self, command: dict[str, Any], **options: Any) -> dict[str, Any]:
            if applied:
                real.command(command, **options)
            else:
                kept.append(lambda: real.command(command, **options))
            raise AutoReconnect("cut")

    statement._database = Cut()  # type: ignore[assignment]
    with pytest.raises(Unclear):
        yield kept
    statement._database = real
