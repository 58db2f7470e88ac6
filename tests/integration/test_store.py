"""What else the store does: what expires, comes back, who holds what, lost queues and indexes."""

from typing import Any

import pytest
from pymongo.database import Database
from pymongo.errors import AutoReconnect, ServerSelectionTimeoutError

from integration.store_verbs import ME, OTHER, claim, pushed, release, rolled_back
from sluicemq.protocol.errors import LeaseLostError, UnavailableError
from sluicemq_broker.job import ERRORS_KEPT, State
from sluicemq_broker.store import Found, QueueDefaults, QueueStore, Unclear, date
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs import expiry
from sluicemq_broker.store.jobs.index_models import INDEXES
from support.between import before
from support.jobs import NOW, a_job, everything, finished, ids, some_jobs, stored


def test_expired_jobs_are_removed_a_limited_number_at_a_time(store: QueueStore) -> None:
    over = pushed(store, *some_jobs(3, expires_at=NOW))
    pushed(store, a_job("later", expires_at=NOW + 1), a_job("never"))
    first, second, third = (store.expire(NOW, 2).ids for _ in range(3))
    assert sorted(first + second) == sorted(ids(over))
    assert (len(first), len(second), third) == (2, 1, [])
    assert everything(store).keys() == {"later", "never"}


def test_expired_jobs_are_dead_letters_where_the_queue_says_so(documents: Database[dict[str, Any]]) -> None:
    store = QueueStore(documents, "queue.mail", QueueDefaults(on_expiry="dead"))
    over = pushed(store, *some_jobs(3, expires_at=NOW))
    pushed(store, a_job("later", expires_at=NOW + 1), a_job("held", expires_at=NOW, owner=ME))
    first, second, third = (store.expire(NOW, 2).ids for _ in range(3))
    assert sorted(first + second) == sorted(ids(over))
    assert (len(first), len(second), third) == (2, 1, [])
    found = store.find([*ids(over), "later", "held"])
    assert [found.pop(job_id) for job_id in ids(over)] == [
        Found(State.DEAD, "", b"", "expired", expired=True)
    ] * 3
    assert {job_id: left.state for job_id, left in found.items()} == {
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
    claimed = {"$set": {"state": "reserved", "owner": OTHER}}
    before(monkeypatch, expiry, "_end", lambda: store.jobs.update_one({"_id": "a"}, claimed))
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
    ready, held, done, dead = pushed(
        store,
        a_job("ready"),
        a_job("held", owner=ME),
        a_job("done", owner=ME, remember=9.0),
        a_job("dead", owner=ME),
    )
    store.complete([finished(done, b"result")], NOW)
    store.roll_back([rolled_back(dead, "bad", dead=True)], NOW)
    found = store.find([*ids([ready, held, done, dead]), "nowhere"])
    assert found == {
        "ready": Found(State.READY, "", b"", ""),
        "held": Found(State.RESERVED, ME, b"", ""),
        "done": Found(State.DONE, "", b"result", ""),
        "dead": Found(State.DEAD, "", b"", "bad"),
    }


def test_nothing_done_under_a_lost_owner_changes_the_job_of_the_new_one(store: QueueStore) -> None:
    pushed(store, a_job("a"))
    [late] = claim(store).jobs
    store.reclaim(ME, 20, NOW)
    [current] = claim(store, owner=OTHER).jobs
    before = everything(store)
    problems = [store.commit([late]), store.complete([finished(late, b"late")], NOW)]
    moved = [store.roll_back([rolled_back(late)], NOW), release(store, ["a"]), *store.reclaim(ME, 1, NOW)]
    assert [type(problem["a"]) for problem in problems] == [LeaseLostError, LeaseLostError]
    assert moved == [0, 0, 0, 0]
    assert everything(store) == before
    assert store.commit([current]) == {}


def test_a_removed_queue_gets_its_indexes_again_with_new_jobs_not_before(store: QueueStore) -> None:
    indexes = store.jobs.index_information()
    store.jobs.drop()
    store.prepare()
    unknown = store.jobs.index_information()
    store.dropped()
    store.prepare()
    removed = store.jobs.index_information()
    store.prepare(again=True)
    assert (unknown, removed) == ({}, {})
    assert store.jobs.index_information() == indexes


def test_no_primary_means_not_sent_and_a_lost_reply_means_unclear() -> None:
    with pytest.raises(UnavailableError) as not_sent, translated():
        raise ServerSelectionTimeoutError("nobody")
    with pytest.raises(Unclear) as lost, translated():
        raise AutoReconnect("cut")
    assert not isinstance(not_sent.value, Unclear)
    assert isinstance(lost.value.__cause__, AutoReconnect)


def test_a_queue_removed_elsewhere_and_made_again_gets_its_indexes(store: QueueStore) -> None:
    store.jobs.drop()
    store.mend()  # makes no collection that is gone
    assert store.jobs.index_information() == {}
    store.push([a_job()], NOW)
    assert len(store.jobs.index_information()) == 1
    store.mend()
    assert len(store.jobs.index_information()) == 1 + len(INDEXES)


def test_a_job_given_back_is_ready_again_with_its_history_and_its_attempt_counted(store: QueueStore) -> None:
    pushed(store, a_job("a"))
    [job] = claim(store).jobs
    ours = store.roll_back([rolled_back(job, "no luck")], NOW + 1)
    document = stored(store, "a")
    assert ours == 1
    assert document["errors"] == [
        {"at": date(NOW + 1).replace(tzinfo=None), "attempt": 1, "reason": "no luck", "worker": "worker"}
    ]
    assert not {"owner", "reserved_at"} & document.keys()
    [again] = claim(store, now=NOW + 1).jobs
    assert again.attempts == 2


def test_a_job_given_back_with_a_delay_is_due_then_and_never_in_the_past(store: QueueStore) -> None:
    delayed, past = pushed(store, a_job("delayed", owner=ME), a_job("past", owner=ME))
    store.roll_back([rolled_back(delayed, due=NOW + 9), rolled_back(past, due=NOW - 9)], NOW)
    assert claim(store, now=NOW - 1).jobs == []
    assert ids(claim(store, now=NOW).jobs) == ["past"]
    assert ids(claim(store, now=NOW + 9).jobs) == ["delayed"]


def test_a_job_given_back_without_a_delay_keeps_its_place(store: QueueStore) -> None:
    pushed(store, a_job("a"), a_job("b"))
    [job] = claim(store, 1).jobs
    store.roll_back([rolled_back(job)], NOW)
    assert ids(claim(store).jobs) == ["a", "b"]


def test_a_history_keeps_the_last_ten_failures_and_cuts_long_reasons(store: QueueStore) -> None:
    pushed(store, a_job("a", max_attempts=0))
    for number in range(ERRORS_KEPT + 3):
        [job] = claim(store).jobs
        store.roll_back([rolled_back(job, f"{number} " + "x" * 5000)], NOW)
    errors = stored(store, "a")["errors"]
    assert [error["attempt"] for error in errors] == list(range(4, ERRORS_KEPT + 4))
    assert max(len(error["reason"]) for error in errors) == 1000
    [again] = claim(store).jobs
    assert not hasattr(again, "errors")


def test_an_isolated_job_stays_one(store: QueueStore) -> None:
    pushed(store, a_job("a"))
    [job] = claim(store).jobs
    store.roll_back([rolled_back(job, isolated=True)], NOW)
    [first] = claim(store).jobs
    store.roll_back([rolled_back(first)], NOW)
    [second] = claim(store).jobs
    assert first.isolated
    assert second.isolated


def test_a_rejected_job_is_dead_with_its_reason_and_is_not_handed_out(store: QueueStore) -> None:
    [job] = pushed(store, a_job("a", owner=ME))
    store.roll_back([rolled_back(job, "poison", due=NOW + 5, dead=True)], NOW)
    assert store.find(["a"])["a"] == Found(State.DEAD, "", b"", "poison")
    assert stored(store, "a")["ended_at"] == date(NOW).replace(tzinfo=None)
    assert claim(store, now=NOW + 10).jobs == []


def test_only_jobs_that_are_still_ours_are_given_back(store: QueueStore) -> None:
    mine, lost = pushed(store, a_job("mine", owner=ME), a_job("lost", owner=ME))
    release(store, ["lost"])
    claim(store, owner=OTHER)
    before = stored(store, "lost")
    ours = store.roll_back([rolled_back(mine), rolled_back(lost, dead=True)], NOW)
    assert ours == 1
    assert stored(store, "lost") == before


def test_a_released_job_keeps_its_place_and_its_attempt_is_not_counted(store: QueueStore) -> None:
    pushed(store, a_job("a"), a_job("b"))
    claim(store)
    freed = release(store, ["a", "b"])
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


def test_a_reclaim_gives_back_all_jobs_of_one_owner_counting_a_loss_and_no_attempt(store: QueueStore) -> None:
    pushed(store, *some_jobs(3), a_job("theirs", owner=OTHER))
    claim(store)
    answer = store.reclaim(ME, 20, NOW)
    assert answer == (3, 0)
    assert store.owners() == {OTHER}
    assert [(job.losses, job.attempts) for job in claim(store).jobs] == [(1, 1)] * 3


def test_a_job_lost_with_its_broker_too_often_is_dead(store: QueueStore) -> None:
    pushed(store, a_job("a"))
    answers = []
    for _ in range(3):
        claim(store)
        answers.append(store.reclaim(ME, 3, NOW))
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
