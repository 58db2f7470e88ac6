"""A parent whose children are in no queue any more does not wait for them for ever."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from integration.explained_plans import Explainer
from sluicemq import Dead, FanOut, Forward, Worker
from sluicemq_broker.job.job import Job, Parent
from sluicemq_broker.store import (
    Child,
    Completed,
    QueueStore,
    RolledBack,
    count_missing_children,
    dead_children,
    end_children,
    fan_out,
    forward,
    mark_parents_notified,
    waiting_parents,
)
from sluicemq_broker.store import FanOut as StoredFanOut
from sluicemq_broker.store import Forward as StoredForward
from support.jobs import NOW, a_job, everything
from support.own_queue import SECONDS, OwnQueue
from support.waiting import wait_until

LATER = NOW + 10


def queue(database: Database[dict[str, Any]], name: str) -> QueueStore:
    store = QueueStore(database, f"queue.{name}")
    store.prepare()
    return store


@pytest.fixture
def pages(documents: Database[dict[str, Any]]) -> QueueStore:
    return queue(documents, "pages")


def waiting(store: QueueStore, pages: QueueStore, *ids: str, count: int = 3) -> list[Job]:
    """Parents that wait for ``count`` children each, which are held."""
    store.push([a_job(each) for each in ids], NOW)
    fans = []
    for parent in store.reserve(len(ids), NOW, "worker", 1).jobs:
        made = [a_job(f"{parent.id}.{number}") for number in range(1, count + 1)]
        for job in made:
            job.set_parent(Parent("mail", parent.id, parent.seq, parent.under))
        fans.append(StoredFanOut(parent, tuple(Child(pages, job, inherits=False) for job in made), b"all"))
    assert fan_out(store, fans, LATER) == {}
    return list(pages.reserve(len(ids) * count, LATER, "worker", 2).jobs)


#: A parent whose only child is nowhere: where it is not found, MongoDB could not show all at one moment.
SURELY: dict[str, Any] = {
    "_id": "surely",
    "seq": 1,
    "state": "waiting",
    "children": {"total": 1, "left": 1, "by": "nobody/1"},
    "wait": {"group": 0, "place": 1 << 60},
}


def lost(store: QueueStore, documents: Database[dict[str, Any]]) -> dict[str, int]:
    """How many children of which parents are in no queue."""
    store.jobs.replace_one({"_id": "surely"}, SURELY, upsert=True)

    def look() -> dict[str, int]:
        found = count_missing_children(store, waiting_parents(store, 0).parents, [documents])
        return {parent.id: count for parent, count in found.items()}

    found: dict[str, int] = wait_until(lambda: seen if "surely" in (seen := look()) else None)
    return {job_id: count for job_id, count in found.items() if job_id != "surely"}


def test_of_children_whose_collection_is_gone_their_parents_are_found(
    store: QueueStore, pages: QueueStore, documents: Database[dict[str, Any]]
) -> None:
    waiting(store, pages, "a", "b")
    assert lost(store, documents) == {}
    documents.drop_collection("queue.pages")
    wait_until(lambda: lost(store, documents) == {"a": 3, "b": 3}, what="a look at this moment")


def test_of_children_that_are_done_none_is_missed_and_of_the_others_each(
    store: QueueStore, pages: QueueStore, documents: Database[dict[str, Any]]
) -> None:
    jobs = waiting(store, pages, "a", "b")
    done = [Completed(job, b"", "worker", LATER) for job in jobs if job.id in ("a.1", "b.1")]
    end_children(pages, done, LATER, lambda _name: store)
    assert lost(store, documents) == {}
    documents["queue.pages"].delete_one({"_id": "b.2"})
    wait_until(lambda: lost(store, documents) == {"b": 1}, what="a look at this moment")


@pytest.mark.parametrize("kept", [0.0, 60.0])
def test_children_that_are_kept_when_they_are_done_do_not_stand_in_for_those_that_are_lost(
    store: QueueStore, pages: QueueStore, documents: Database[dict[str, Any]], kept: float
) -> None:
    jobs = waiting(store, pages, "a")
    first = next(job for job in jobs if job.id == "a.1")
    first.keep_result(kept)
    end_children(pages, [Completed(first, b"", "worker", LATER)], LATER, lambda _name: store)
    documents["queue.pages"].delete_one({"_id": "a.2"})
    wait_until(lambda: lost(store, documents) == {"a": 1}, what="a look at this moment")


def test_children_that_have_gone_on_to_another_queue_are_found_there(
    store: QueueStore, pages: QueueStore, documents: Database[dict[str, Any]]
) -> None:
    jobs = waiting(store, pages, "a")
    other = queue(documents, "ink")
    on = [StoredForward(job, other, a_job(job.id), frozenset(), "worker", LATER, None) for job in jobs]
    assert forward(pages, on, LATER) == {}
    assert (everything(pages), lost(store, documents)) == ({}, {})


def test_children_in_another_database_or_put_aside_are_no_lost_ones(
    store: QueueStore, pages: QueueStore, documents: Database[dict[str, Any]]
) -> None:
    waiting(store, pages, "a")
    other = f"{documents.name}_other"
    with_the_child = documents.client[other]["queue.pages"]
    try:
        aside = documents["removed.pages.0a1b2c3d"]
        for job_id, there in (("a.1", with_the_child), ("a.2", aside)):
            child = documents["queue.pages"].find_one_and_delete({"_id": job_id})
            assert child
            there.insert_one(child)
        wait_until(lambda: lost(store, documents) == {}, what="a snapshot with the new collections")
        with_the_child.delete_many({})
        wait_until(lambda: lost(store, documents) == {"a": 1}, what="a look at this moment")
    finally:
        documents.client.drop_database(other)
        documents.drop_collection("removed.pages.0a1b2c3d")


@pytest.mark.parametrize("told", [False, True])
def test_a_dead_child_is_there_until_its_parent_has_heard(
    store: QueueStore, pages: QueueStore, documents: Database[dict[str, Any]], *, told: bool
) -> None:
    jobs = waiting(store, pages, "a")
    pages.roll_back([RolledBack(jobs[0], "no ink", "worker", dead=True)], LATER)
    if told:
        mark_parents_notified(pages, dead_children(pages, NOW, 9))
    expected = {"a": 1} if told else {}
    wait_until(lambda: lost(store, documents) == expected, what="a look at this moment")


def test_children_of_an_earlier_life_do_not_stand_in_for_those_of_this_one(
    store: QueueStore, pages: QueueStore, documents: Database[dict[str, Any]]
) -> None:
    waiting(store, pages, "a")
    documents["queue.pages"].update_many({}, {"$set": {"parent.by": "some-other/1"}})
    wait_until(lambda: lost(store, documents) == {"a": 3}, what="a look at this moment")


def test_parents_come_in_pages_of_their_index(mongo_uri: str, documents: Database[dict[str, Any]]) -> None:
    explainer = Explainer(mongo_uri)
    try:
        with MongoClient[dict[str, Any]](mongo_uri, event_listeners=[explainer]) as client:
            watched = client[documents.name]
            mail, pages = queue(watched, "mail"), queue(watched, "pages")
            ids = [f"p{number:04}" for number in range(450)]
            waiting(mail, pages, *ids, count=1)
            mail.push([a_job("ready")], NOW)
            after: int | None = 0
            seen: list[str] = []
            with explainer.plans() as plans:
                while after is not None:
                    page = waiting_parents(mail, after)
                    seen += [each.parent.id for each in page.parents]
                    after = page.after
        assert seen == ids
        assert all("IXSCAN" in each.stages and each.documents <= 101 for each in plans)
    finally:
        explainer.close()


def test_a_parent_with_many_children_has_a_page_for_itself(store: QueueStore, pages: QueueStore) -> None:
    waiting(store, pages, "a", "b", "c", count=900)
    first = waiting_parents(store, 0)
    assert first.after is not None
    second = waiting_parents(store, first.after)
    assert [[each.parent.id for each in page.parents] for page in (first, second)] == [["a", "b"], ["c"]]


def test_whoever_waits_for_such_a_parent_hears_that_it_is_a_dead_letter(
    jobs: OwnQueue,
) -> None:
    # Given
    pages = f"{jobs.queue}-pages"
    family = FanOut(Forward(pages, delay=1000), Forward(pages, delay=1000))
    with Worker(jobs.endpoint, jobs.queue, lambda _job: family):
        reply = jobs.producer.submit(jobs.queue, b"book", id="book")
        wait_until(lambda: jobs.client.peek(jobs.queue, "waiting"))
    # When: somebody removes its children behind the broker's back
    jobs.broker.collection(pages).delete_many({})
    # Then, some time: while other tests make and drop collections here MongoDB shows no moment of all of them
    with pytest.raises(Dead, match="2 of its children are in no queue any more"):
        reply.result(4 * SECONDS)
    assert jobs.client.counters()["counters"]["children_lost"] >= 1
