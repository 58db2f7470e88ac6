"""Jobs that wait for children are seen, and hear of those that somebody removes."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import AutoReconnect, OperationFailure

from sluicemq import DeadError, FanOut, Forward, Worker
from sluicemq.protocol.errors import NotFoundError
from sluicemq_broker.job import Job, Parent
from sluicemq_broker.store import (
    Child,
    Completed,
    DeadLetters,
    FanOutEntry,
    Inspector,
    Listing,
    QueueStore,
    RolledBack,
    Unclear,
    dead_children,
    end_children,
    fan_out,
    mark_parents_notified,
)
from support.jobs import NOW, ChangesAtOnce, a_job, everything, some_jobs, stored
from support.own_queue import SECONDS, OwnQueue
from support.waiting import wait_until

LATER = NOW + 10


@pytest.fixture
def pages(documents: Database[dict[str, Any]]) -> Iterator[QueueStore]:
    other = QueueStore(documents, "queue.pages")
    other.prepare()
    yield other
    for name in documents.list_collection_names(filter={"name": {"$regex": "^(removed|deleted)[.]"}}):
        documents.drop_collection(name)


def waiting(store: QueueStore, pages: QueueStore, job_id: str = "a", count: int = 3, **settings: Any) -> Job:
    """A parent that waits for ``count`` children, which are ready."""
    store.push([a_job(job_id, **settings)], NOW)
    (parent,) = store.reserve(1, NOW, "worker", 1).jobs
    made = some_jobs(count)
    for number, job in enumerate(made, 1):
        job.id = f"{parent.id}.{number}"
        job.set_parent(Parent("mail", parent.id, parent.seq, parent.under))
    family = FanOutEntry(parent, tuple(Child(pages, job, inherits=False) for job in made), b"all")
    assert fan_out(store, [family], LATER) == {}
    return parent


def in_line(job_id: str, place: int) -> Job:
    job = a_job(job_id, group="g")
    job.line_up(place)
    return job


# --------------------------------------------------------------------------- parents are seen


def test_parents_are_counted_among_them(store: QueueStore, pages: QueueStore, inspector: Inspector) -> None:
    for name in ("a", "b", "c"):
        waiting(store, pages, name)
    store.push([in_line("d", 1), in_line("e", 2)], NOW)
    assert inspector.counts("mail", LATER)["waiting"] == 5
    shown = inspector.peek("mail", "waiting", 10, 1 << 20, LATER)
    assert [row["id"] for row in shown] == ["a", "b", "c", "d", "e"]
    assert (shown[0]["children"]["left"], "wait" in shown[0]) == (3, False)


def test_pages_of_those_that_wait_have_each_parent_once(
    store: QueueStore, pages: QueueStore, documents: Database[dict[str, Any]]
) -> None:
    for name in ("a", "b", "c"):
        waiting(store, pages, name)
    store.push([in_line("d", 1), in_line("e", 2)], NOW)
    found, place = list[str](), None
    for _ in range(5):
        page = Listing(documents).page("mail", "waiting", 1, place, LATER)
        found += [job["id"] for job in page.jobs]
        place = page.next
    assert (found, place) == (["a", "b", "c", "d", "e"], None)


def test_an_ended_parent_does_not_wait(store: QueueStore, pages: QueueStore, inspector: Inspector) -> None:
    waiting(store, pages, "a", keep_done=60.0)
    jobs = pages.reserve(3, LATER, "worker", 2).jobs
    end_children(pages, [Completed(job, b"", "worker", LATER) for job in jobs], LATER, lambda _name: store)
    assert stored(store, "a")["state"] == "done"
    assert inspector.counts("mail", LATER)["waiting"] == 0


def test_a_purge_of_those_that_wait_removes_parents_and_leaves_their_children_alone(
    store: QueueStore, pages: QueueStore, changes: ChangesAtOnce
) -> None:
    waiting(store, pages)
    assert changes.purge("mail", "waiting", LATER) == 1
    assert everything(store) == {}
    jobs = pages.reserve(3, LATER, "worker", 2).jobs
    ended = [Completed(job, b"", "worker", LATER) for job in jobs]
    assert end_children(pages, ended, LATER, lambda _name: store) == ({}, [])


# ------------------------------------------------------------------- children are removed


def cancelled(changes: ChangesAtOnce) -> None:
    changes.cancel("pages", "a.2", LATER)


def purged(changes: ChangesAtOnce) -> None:
    changes.purge("pages", "ready", LATER)


def dropped(changes: ChangesAtOnce) -> None:
    changes.drop("pages", LATER)


def dropped_beside_others(changes: ChangesAtOnce) -> None:
    changes.drop("pages", LATER, shared=True)


ORDERS = {order.__name__: order for order in (cancelled, purged, dropped, dropped_beside_others)}
WHY = {"cancelled": "was cancelled", "purged": "was removed"}


@pytest.mark.parametrize("order", ORDERS)
def test_a_child_that_is_removed_makes_its_parent_a_dead_letter(
    store: QueueStore, pages: QueueStore, changes: ChangesAtOnce, order: str
) -> None:
    waiting(store, pages)
    ORDERS[order](changes)
    parent = stored(store, "a")
    assert parent["state"] == "dead"
    assert WHY.get(order, "was removed with the queue") in parent["errors"][-1]["reason"]
    assert sorted(everything(pages)) == (["a.1", "a.3"] if order == "cancelled" else [])


@pytest.mark.parametrize("order", ["discarded", "removed"])
def test_a_dead_child_of_which_its_parent_has_not_heard_can_be_removed_too(
    store: QueueStore, pages: QueueStore, changes: ChangesAtOnce, order: str
) -> None:
    waiting(store, pages)
    kill(pages, "no ink")
    if order == "removed":
        assert changes.remove_ended("pages", "a.1", LATER)
    else:
        assert sum(changes.discarding("pages", DeadLetters(), LATER, lambda: 9)) == 1
    assert stored(store, "a")["state"] == "dead"
    assert sorted(everything(pages)) == ["a.2", "a.3"]


def kill(pages: QueueStore, reason: str) -> None:
    (first, *others) = pages.reserve(3, LATER, "worker", 2).jobs
    pages.roll_back([RolledBack(first, reason, "worker", dead=True)], LATER)
    pages.release(others)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("step", ["delete_many", "bulk_write", "rename", "drop"])
@pytest.mark.parametrize("after", [False, True])
def test_what_breaks_off_is_not_begun_or_can_be_gone_on_with(
    store: QueueStore,
    pages: QueueStore,
    changes: ChangesAtOnce,
    monkeypatch: pytest.MonkeyPatch,
    order: str,
    step: str,
    *,
    after: bool,
) -> None:
    # Given a broker that is killed before or after a statement of the order
    waiting(store, pages)
    with monkeypatch.context() as patch:
        patch.setattr(Collection, step, breaking(getattr(Collection, step), after=after))
        with suppress(Unclear):
            ORDERS[order](changes)
    # Then the parent is dead, or all of its children are there: in their queue, or where it was put
    children = everything(pages)
    begun = [
        changes.database[name] for name in changes.database.list_collection_names() if "removed." in name
    ]
    children |= {document["_id"]: document for aside in begun for document in aside.find()}
    assert stored(store, "a")["state"] == "dead" or len(children) == 3
    # When another broker goes on, or somebody repeats the order
    changes.resume_drops(LATER)
    with suppress(NotFoundError):
        ORDERS[order](changes)
    assert stored(store, "a")["state"] == "dead"
    assert put_aside(changes) == []


def test_a_deletion_that_breaks_off_once_the_queue_is_put_aside_is_none_that_is_to_be_repeated(
    store: QueueStore, pages: QueueStore, changes: ChangesAtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given: a repetition would take what was pushed since
    waiting(store, pages)
    with monkeypatch.context() as patch:
        patch.setattr(Collection, "bulk_write", breaking(Collection.bulk_write, after=False))
        assert changes.drop("pages", LATER) == 3
    changes.resume_drops(LATER)
    assert stored(store, "a")["state"] == "dead"
    assert put_aside(changes) == []


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_a_fan_out_into_a_queue_that_is_being_removed_is_removed_with_it_or_comes_after(
    store: QueueStore,
    pages: QueueStore,
    changes: ChangesAtOnce,
    monkeypatch: pytest.MonkeyPatch,
    *,
    shared: bool,
    before: bool,
) -> None:
    # Given: when the removal begins nobody waits for any child
    begun: list[Job] = []

    def meeting(statement: Callable[..., Any]) -> Callable[..., Any]:
        def meets(self: Any, *arguments: Any, **options: Any) -> Any:
            if before and not begun:
                begun.append(waiting(store, pages))
            answer = statement(self, *arguments, **options)
            if not begun:
                begun.append(waiting(store, pages))
            return answer

        return meets

    with monkeypatch.context() as patch:
        for name in ("rename", "drop"):
            patch.setattr(Collection, name, meeting(getattr(Collection, name)))
        changes.drop("pages", LATER, shared=shared)
    assert (stored(store, "a")["state"], len(everything(pages))) == (
        ("dead", 0) if before else ("waiting", 3)
    )
    # And: what came after is seen when the queue is removed again
    changes.drop("pages", LATER)
    assert stored(store, "a")["state"] == "dead"


def test_a_removal_of_very_many_children_goes_on_where_it_was_left_and_a_round_does_a_part_of_it(
    store: QueueStore, pages: QueueStore, changes: ChangesAtOnce
) -> None:
    for number in range(6):
        waiting(store, pages, f"p{number}", count=10)

    def dead() -> int:
        return sum(row["state"] == "dead" for row in everything(store).values())

    # When: whoever has ordered it goes on no further than this
    order = changes.dropping("pages", LATER, size=10)
    assert (next(order), dead()) == (60, 0)
    assert (next(order), dead()) == (0, 1)
    # Then: each round does a part of the rest
    seen = []
    while put_aside(changes):
        changes.resume_drops(LATER, size=10, most=2)
        seen.append(dead())
    assert seen[:2] == [3, 5]
    assert dead() == 6
    assert list(order) == []


def test_an_index_that_is_being_built_is_waited_for_by_a_removal(
    store: QueueStore, changes: ChangesAtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.push(some_jobs(3), NOW)
    tried: list[str] = []
    rename = Collection.rename

    def builds(self: Any, name: str, **options: Any) -> Any:
        tried.append(name)
        if len(tried) < 3:
            raise OperationFailure("an index build is currently running", 12587)
        return rename(self, name, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Collection, "rename", builds)
        assert changes.drop("mail", LATER) == 3
    assert len(tried) == 3
    assert everything(store) == {}


def test_a_removal_of_a_queue_without_children_reads_none_of_its_jobs(
    store: QueueStore, changes: ChangesAtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.push(some_jobs(3), NOW)
    read: list[str] = []
    find = Collection.find

    def reads(self: Any, *arguments: Any, **options: Any) -> Any:
        read.append(self.name)
        return find(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Collection, "find", reads)
        assert changes.drop("mail", LATER) == 3
    assert [name for name in read if "mail" in name] == []


def test_an_empty_collection_that_a_killed_broker_has_left_over_is_removed_a_minute_later(
    store: QueueStore,
    changes: ChangesAtOnce,
    monkeypatch: pytest.MonkeyPatch,
    documents: Database[dict[str, Any]],
) -> None:
    # Given one that was to take the place of a queue, and a former version's
    with monkeypatch.context() as patch:
        patch.setattr(Collection, "rename", breaking(Collection.rename, after=False))
        with suppress(Unclear):
            changes.drop("mail", LATER, shared=True)
    documents.create_collection("deleted.mail.0a1b2c3d")
    documents["deleted.no-name-of-ours"].insert_one({})

    def left_over() -> list[str]:
        return sorted(name for name in documents.list_collection_names() if name.startswith("deleted."))

    assert len(left_over()) == 3
    # When, Then
    changes.resume_drops(LATER + 59)
    assert len(left_over()) == 2
    changes.resume_drops(LATER + 61)
    assert left_over() == ["deleted.no-name-of-ours"]
    assert everything(store) == {}


def put_aside(changes: ChangesAtOnce) -> list[str]:
    return [name for name in changes.database.list_collection_names() if name.startswith("removed.")]


def breaking(statement: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    def breaks(self: Any, *arguments: Any, **options: Any) -> Any:
        if after:
            statement(self, *arguments, **options)
        raise AutoReconnect("killed")

    return breaks


def test_a_removed_child_tells_the_parent_of_its_parent_as_well(
    store: QueueStore, pages: QueueStore, changes: ChangesAtOnce, documents: Database[dict[str, Any]]
) -> None:
    # Given a grandchild
    waiting(store, pages, count=1)
    (child,) = pages.reserve(1, LATER, "worker", 5).jobs
    inner = QueueStore(documents, "queue.inner")
    inner.prepare()
    (leaf,) = some_jobs(1)
    leaf.id = "a.1.1"
    leaf.set_parent(Parent("pages", "a.1", child.seq, child.under))
    fan_out(pages, [FanOutEntry(child, (Child(inner, leaf, inherits=False),), b"")], LATER)
    changes.cancel("inner", "a.1.1", LATER)
    # Then its parent is dead, and will tell its own
    (dead,) = dead_children(pages, NOW, 9)
    assert dead.parent
    assert (dead.id, dead.parent.id) == ("a.1", "a")


# ------------------------------------------------------------------ which children count


@pytest.mark.parametrize("told", [False, True])
def test_a_dead_child_that_is_redriven_is_one_still_and_its_parent_hears_if_it_dies_again(
    store: QueueStore, pages: QueueStore, changes: ChangesAtOnce, *, told: bool
) -> None:
    waiting(store, pages)
    kill(pages, "no ink")
    if told:
        mark_parents_notified(pages, dead_children(pages, NOW, 9))
    assert changes.redrive("pages", DeadLetters(), LATER, store).moved == 1
    assert stored(store, "a.1")["parent"]["id"] == "a"
    assert "told" not in stored(store, "a.1")["parent"]


def test_children_of_a_former_fan_out_do_not_count_at_the_next_one(
    store: QueueStore, pages: QueueStore, changes: ChangesAtOnce
) -> None:
    # Given a parent that is redriven, and a child of its first life that is at work still
    waiting(store, pages, count=2)
    changes.cancel("pages", "a.2", LATER)
    (old,) = pages.reserve(1, LATER, "worker", 7).jobs
    changes.redrive("mail", DeadLetters(), LATER)
    (again,) = store.reserve(1, LATER, "worker", 8).jobs
    (new,) = some_jobs(1)
    new.id = "a.9"
    new.set_parent(Parent("mail", "a", again.seq, again.under))
    fan_out(store, [FanOutEntry(again, (Child(pages, new, inherits=False),), b"")], LATER)
    problems, parents = end_children(
        pages, [Completed(old, b"", "worker", LATER)], LATER, lambda _name: store
    )
    assert (problems, parents) == ({}, [])
    assert stored(store, "a")["children"]["left"] == 1


def test_a_popped_child_that_could_not_be_sent_is_counted_once(store: QueueStore, pages: QueueStore) -> None:
    waiting(store, pages, count=2)
    jobs = pages.reserve(1, LATER, "worker", 2).jobs
    for job in jobs:
        job.keep_result(60.0)
    popped = [Completed(job, b"", "worker", LATER) for job in jobs]
    for hold in (3, 4):
        end_children(pages, popped, LATER, lambda _name: store)
        pages.undo_pop([delivery.job for delivery in popped])
        again = pages.reserve(2, LATER, "worker", hold).jobs
        popped = [Completed(job, b"", "worker", LATER) for job in again if job.id == jobs[0].id]
    assert stored(store, "a")["children"]["left"] == 1
    jobs[0].reset()
    assert jobs[0].parent is None


# ------------------------------------------------------------------------ through the doors


@pytest.mark.parametrize("order", ["cancel", "purge", "delete"])
def test_whoever_waits_for_the_parent_hears_of_it(jobs: OwnQueue, order: str) -> None:
    queue, pages = jobs.queue, f"{jobs.queue}-pages"
    reply = jobs.producer.submit(queue, b"book", id=f"{queue}-book")
    with Worker(queue, lambda _job: FanOut(Forward(pages), Forward(pages)), endpoint=jobs.endpoint):
        wait_until(lambda: jobs.client.queues.get(queue).waiting == 1, SECONDS)
    assert [job.id for job in jobs.client.jobs.list(queue, "waiting")] == [f"{queue}-book"]
    match order:
        case "cancel":
            jobs.client.jobs.cancel(pages, f"{queue}-book.1")
        case "purge":
            jobs.client.queues.purge(pages).result()
        case _:
            jobs.client.queues.delete(pages).result()
    with pytest.raises(DeadError, match="child"):
        reply.result(SECONDS)
    assert jobs.client.queues.get(queue).waiting == 0
