"""What else the store does: what expires, who holds what, lost queues and indexes."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.database import Database
from pymongo.errors import AutoReconnect, ServerSelectionTimeoutError

from integration.store_verbs import ME, OTHER, claim, pushed, release, rolled_back
from sluicemq.protocol.errors import LeaseLostError, UnavailableError
from sluicemq_broker.job import State
from sluicemq_broker.store import Found, QueueDefaults, QueueStore, Unclear
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs import expiry
from sluicemq_broker.store.jobs.index_models import INDEXES
from support.between import before
from support.jobs import NOW, a_job, everything, finished, ids, some_jobs, stored

# ----------------------------------------------------------- expire, held, find


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


# ----------------------------------------------------------------------- others


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
