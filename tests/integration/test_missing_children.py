"""Parents whose children are in no queue any more are found."""

import threading
from concurrent.futures import ThreadPoolExecutor
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from integration.explained_plans import Explainer
from sluicemq_broker.job import Job, Parent
from sluicemq_broker.store import (
    Child,
    Completed,
    FanOutEntry,
    ForwardEntry,
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
from support.jobs import NOW, a_job, everything
from support.own_queue import SECONDS

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full

LATER = NOW + 10
#: Of this process alone: the search looks into the databases of other processes that run these tests, too.
OWNER = token_hex(6)


def queue(database: Database[dict[str, Any]], name: str) -> QueueStore:
    store = QueueStore(database, f"queue.{name}")
    store.prepare()
    return store


@pytest.fixture
def pages(documents: Database[dict[str, Any]]) -> QueueStore:
    return queue(documents, "pages")


def waiting(store: QueueStore, pages: QueueStore, *ids: str, count: int = 3) -> list[Job]:
    """Parents that wait for ``count`` children each, which are held."""
    store.push([a_job(job_id) for job_id in ids], NOW)
    fans = []
    for parent in store.reserve(len(ids), NOW, OWNER, 1).jobs:
        made = [a_job(f"{parent.id}.{number}") for number in range(1, count + 1)]
        for job in made:
            job.set_parent(Parent("mail", parent.id, parent.seq, parent.under))
        fans.append(FanOutEntry(parent, tuple(Child(pages, job, inherits=False) for job in made), b"all"))
    assert fan_out(store, fans, LATER) == {}
    return list(pages.reserve(len(ids) * count, LATER, "worker", 2).jobs)


def lost(store: QueueStore, documents: Database[dict[str, Any]]) -> dict[str, int]:
    """How many children of which parents are in no queue."""
    found = count_missing_children(store, waiting_parents(store, 0).parents, [documents])
    return {parent.id: count for parent, count in found.items()}


def test_of_children_whose_collection_is_gone_their_parents_are_found(
    store: QueueStore, pages: QueueStore, documents: Database[dict[str, Any]]
) -> None:
    waiting(store, pages, "a", "b")
    assert lost(store, documents) == {}
    documents.drop_collection("queue.pages")
    assert lost(store, documents) == {"a": 3, "b": 3}


def test_of_children_that_are_done_none_is_missed_and_of_the_others_each(
    store: QueueStore, pages: QueueStore, documents: Database[dict[str, Any]]
) -> None:
    jobs = waiting(store, pages, "a", "b")
    done = [Completed(job, b"", "worker", LATER) for job in jobs if job.id in ("a.1", "b.1")]
    end_children(pages, done, LATER, lambda _name: store)
    assert lost(store, documents) == {}
    documents["queue.pages"].delete_one({"_id": "b.2"})
    assert lost(store, documents) == {"b": 1}


@pytest.mark.parametrize("kept", [0.0, 60.0])
def test_children_that_are_kept_when_they_are_done_do_not_stand_in_for_those_that_are_lost(
    store: QueueStore, pages: QueueStore, documents: Database[dict[str, Any]], kept: float
) -> None:
    jobs = waiting(store, pages, "a")
    first = next(job for job in jobs if job.id == "a.1")
    first.keep_result(kept)
    end_children(pages, [Completed(first, b"", "worker", LATER)], LATER, lambda _name: store)
    documents["queue.pages"].delete_one({"_id": "a.2"})
    assert lost(store, documents) == {"a": 1}


def test_they_are_found_while_others_write_and_make_and_remove_queues(
    store: QueueStore, pages: QueueStore, documents: Database[dict[str, Any]]
) -> None:
    waiting(store, pages, "a", "b")
    documents["queue.pages"].delete_one({"_id": "b.2"})
    others = [queue(documents, f"other-{number}") for number in range(20)]
    begun, over = threading.Barrier(3, timeout=SECONDS), threading.Event()

    def write() -> None:
        begun.wait()
        while not over.is_set():
            others[0].push([a_job()], NOW)

    def make_and_remove() -> None:
        begun.wait()
        while not over.is_set():
            documents.drop_collection(queue(documents, "short-lived").jobs)

    with ThreadPoolExecutor() as busy:
        done = [busy.submit(write), busy.submit(make_and_remove)]
        try:
            begun.wait()
            assert [lost(store, documents) for _ in range(10)] == [{"b": 1}] * 10
        finally:
            over.set()
        for future in done:
            future.result(SECONDS)


def test_children_that_have_gone_on_to_another_queue_are_found_there(
    store: QueueStore, pages: QueueStore, documents: Database[dict[str, Any]]
) -> None:
    jobs = waiting(store, pages, "a")
    other = queue(documents, "ink")
    on = [ForwardEntry(job, other, a_job(job.id), frozenset(), "worker", LATER, None) for job in jobs]
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
        assert lost(store, documents) == {}
        with_the_child.delete_many({})
        assert lost(store, documents) == {"a": 1}
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
    assert lost(store, documents) == expected


def test_children_of_an_earlier_life_do_not_stand_in_for_those_of_this_one(
    store: QueueStore, pages: QueueStore, documents: Database[dict[str, Any]]
) -> None:
    waiting(store, pages, "a")
    documents["queue.pages"].update_many({}, {"$set": {"parent.by": "some-other/1"}})
    assert lost(store, documents) == {"a": 3}


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
                    seen += [parent.parent.id for parent in page.parents]
                    after = page.after
        assert seen == ids
        assert all("IXSCAN" in plan.stages and plan.documents <= 101 for plan in plans)
    finally:
        explainer.close()


def test_a_parent_with_many_children_has_a_page_for_itself(store: QueueStore, pages: QueueStore) -> None:
    waiting(store, pages, "a", "b", "c", count=900)
    first = waiting_parents(store, 0)
    assert first.after is not None
    second = waiting_parents(store, first.after)
    assert [[parent.parent.id for parent in page.parents] for page in (first, second)] == [["a", "b"], ["c"]]
