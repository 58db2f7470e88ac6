"""Jobs that wait for their children, and are done when these are."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import zmq
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import AutoReconnect

from sluicemq import Client, DeadError, FanOut, Forward, Job, Producer, Reject
from sluicemq.protocol.errors import DuplicateError, LeaseLostError, UncertainError
from sluicemq_broker.job import Job as StoredJob
from sluicemq_broker.job import Parent
from sluicemq_broker.store import (
    Child,
    Completed,
    DeadLetters,
    FanOutEntry,
    Portions,
    QueueStore,
    Redriven,
    RolledBack,
    Unclear,
    dead_children,
    end_children,
    fail_parents,
    fan_out,
    mark_parents_notified,
)
from sluicemq_broker.store.admin.redrives import IntoQueue
from support.broker_under_test import AT_ONCE, BrokerUnderTest, serving, spare
from support.jobs import NOW, ChangesAtOnce, a_job, everything, some_jobs, stored
from support.own_queue import SECONDS, working
from support.raw_sockets import receive
from support.waiting import wait_until

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

LATER = NOW + 10


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, spare(ask=2), queues=AT_ONCE, poll=0.5, lease=2.0) as broker:
        yield broker


# ------------------------------------------------------------------------ through the doors


def test_a_job_is_done_when_its_children_are_and_tells_how_many(endpoint: str, queue: str) -> None:
    pages, one_by_one = f"{queue}-pages", threading.Semaphore(0)
    worked: list[tuple[str, bytes]] = []

    def split(_job: Job) -> FanOut:
        return FanOut(*(Forward(pages, b"page %d" % n) for n in range(3)), Forward(pages), result=b"book")

    def draw(job: Job) -> None:
        assert one_by_one.acquire(timeout=SECONDS)
        worked.append((job.id, job.payload))

    with (
        working(endpoint, {queue: split, pages: draw}),
        Producer(endpoint=endpoint) as producer,
        Client(endpoint=endpoint) as client,
    ):
        reply = producer.submit(queue, b"book", id="book")
        reply.receipt.wait(SECONDS)
        for left in (4, 3, 2, 1):
            wait_until(partial(are_left, client, queue, "book", left), SECONDS)
            assert client.jobs.get(queue, "book").state == "waiting"
            one_by_one.release()
        assert reply.result(SECONDS) == b"book"
    assert sorted(worked) == [
        ("book.1", b"page 0"),
        ("book.2", b"page 1"),
        ("book.3", b"page 2"),
        ("book.4", b"book"),
    ]


def are_left(client: Client, queue: str, job_id: str, left: int) -> bool:
    found = client.show(queue, job_id).get("children", {})
    return (found.get("total"), found.get("left")) == (4, left)


def test_children_of_children_that_go_on_through_other_queues_end_it_too(endpoint: str, queue: str) -> None:
    inner, leaf, last = (f"{queue}-{name}" for name in ("inner", "leaf", "last"))
    ends: list[str] = []
    handlers: dict[str, Callable[[Job], Any]] = {
        queue: lambda _job: FanOut(Forward(inner), Forward(inner), Forward(last)),
        inner: lambda _job: FanOut(Forward(leaf), Forward(leaf)),
        leaf: lambda _job: Forward(last),
        last: lambda job: ends.append(job.id),
    }
    with working(endpoint, handlers), Producer(endpoint=endpoint) as producer:
        assert producer.call(queue, b"x", SECONDS, id="a") == b""
    assert sorted(ends) == ["a.1.1", "a.1.2", "a.2.1", "a.2.2", "a.3"]
    with Client(endpoint=endpoint) as client:
        assert [client.queues.get(handler).dead for handler in handlers] == [0] * 4


def test_a_group_waits_for_the_children_of_its_first_job(endpoint: str, queue: str) -> None:
    pages, order = f"{queue}-pages", list[str]()

    def split(job: Job) -> FanOut | None:
        order.append(job.id)
        return FanOut(Forward(pages, delay=0.2), Forward(pages)) if job.id == "a" else None

    with working(endpoint, {queue: split, pages: lambda job: order.append(job.id)}):
        with Producer(endpoint=endpoint) as producer:
            for name in ("a", "b"):
                producer.push(queue, b"x", id=name, group="book")
        wait_until(lambda: len(order) == 4, SECONDS)
    assert order == ["a", "a.2", "a.1", "b"]


def test_once_a_child_is_dead_so_is_the_job_and_who_waits_hears_why(endpoint: str, queue: str) -> None:
    pages = f"{queue}-pages"

    def draw(job: Job) -> None:
        if job.payload == b"1":
            raise Reject("no ink")

    handlers = {queue: lambda _job: FanOut(*(Forward(pages, b"%d" % n) for n in range(3))), pages: draw}
    with (
        working(endpoint, handlers),
        Producer(endpoint=endpoint) as producer,
        Client(endpoint=endpoint) as client,
    ):
        with pytest.raises(DeadError, match="no ink"):
            producer.call(queue, b"book", SECONDS, id="book")
        assert client.jobs.get(queue, "book").state == "dead"
        assert "book.2" in client.show(queue, "book")["errors"][-1]["reason"]


def test_an_expired_child_is_a_dead_letter_where_others_are_removed(endpoint: str, queue: str) -> None:
    with (
        working(endpoint, {queue: lambda _job: FanOut(Forward(f"{queue}-none", ttl=0.05))}),
        Producer(endpoint=endpoint) as producer,
        pytest.raises(DeadError, match="expired"),
    ):
        producer.call(queue, b"x", SECONDS)


def test_a_rep_worker_fans_out(broker: BrokerUnderTest, endpoint: str, queue: str) -> None:
    doors = broker.take("ask")
    asker, worker = broker.socket(zmq.REQ, doors.front), broker.socket(zmq.REP, doors.back)
    asker.send(b"work")
    receive(worker)
    worker.send_multipart([b"FANOUT", queue.encode(), b"1", b"", queue.encode(), b"2", b'{"priority": 9}'])
    done: list[bytes] = []
    with working(endpoint, {queue: lambda job: done.append(job.payload)}):
        assert receive(asker) == [b""]
    assert sorted(done) == [b"1", b"2"]


def test_a_child_whose_id_is_taken_gives_the_job_back_and_says_so(endpoint: str, queue: str) -> None:
    pages = f"{queue}-pages"
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        producer.push(pages, b"its own", id="a.2", delay=1000).wait(SECONDS)
        producer.push(queue, b"x", id="a", max_attempts=1).wait(SECONDS)
        with working(endpoint, {queue: lambda _job: FanOut(Forward(pages), Forward(pages))}):
            wait_until(lambda: client.peek(queue, "dead"), SECONDS)
        assert "has a job 'a.2' already" in client.show(queue, "a")["errors"][-1]["reason"]
        assert [page.id for page in client.jobs.list(pages)] == []


def test_a_fan_out_that_no_transaction_takes_gives_the_job_back(endpoint: str, queue: str) -> None:
    # Given: children in too many queues; and some that inherit more bytes than a small MongoDB takes at once
    handlers: dict[str, Callable[[Job], Any]] = {
        queue: lambda _job: FanOut(*(Forward(f"{queue}-{number}", b"x") for number in range(101))),
        f"{queue}-large": lambda _job: FanOut(*(Forward(f"{queue}-0") for _ in range(1000))),
    }
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        producer.push(queue, b"x", id="a", max_attempts=1).wait(SECONDS)
        producer.push(f"{queue}-large", bytes(100_000), id="b", max_attempts=1).wait(SECONDS)
        with working(endpoint, handlers):
            for name in handlers:
                wait_until(partial(client.peek, name, "dead"), SECONDS)
        assert "100 queues at most" in client.show(queue, "a")["errors"][-1]["reason"]
        assert "would inherit 100000000 bytes" in client.show(f"{queue}-large", "b")["errors"][-1]["reason"]
        assert f"{queue}-0" not in {listed.name for listed in client.queues.list()}


# ---------------------------------------------------------------------------- the store


@pytest.fixture
def pages(documents: Database[dict[str, Any]]) -> QueueStore:
    return QueueStore(documents, "queue.pages")


def waiting(store: QueueStore, pages: QueueStore, count: int = 3, **settings: Any) -> list[StoredJob]:
    """A parent ``a`` that waits; its children, reserved."""
    store.push([a_job("a", **settings)], NOW)
    (parent,) = store.reserve(1, NOW, "worker", 1).jobs
    assert fan_out(store, [fan(parent, pages, count)], LATER) == {}
    return pages.reserve(count, LATER, "worker", 2).jobs


def fan(parent: StoredJob, pages: QueueStore, count: int) -> FanOutEntry:
    made = some_jobs(count)
    for number, job in enumerate(made, 1):
        job.id = f"{parent.id}.{number}"
        job.set_parent(Parent("mail", parent.id, parent.seq, parent.under))
    return FanOutEntry(parent, tuple(Child(pages, job, inherits=False) for job in made), b"all")


def ended(jobs: list[StoredJob]) -> list[Completed]:
    return [Completed(job, b"", "worker", LATER) for job in jobs]


@pytest.mark.parametrize("step", ["bulk_write", "insert_many"])
@pytest.mark.parametrize("after", [False, True])
def test_a_fan_out_that_breaks_off_has_not_begun(
    store: QueueStore, pages: QueueStore, monkeypatch: pytest.MonkeyPatch, step: str, *, after: bool
) -> None:
    store.push([a_job("a")], NOW)
    (parent,) = store.reserve(1, NOW, "worker", 1).jobs
    before = everything(store)
    with monkeypatch.context() as patch:
        patch.setattr(Collection, step, breaking(getattr(Collection, step), after=after))
        with pytest.raises(Unclear):
            fan_out(store, [fan(parent, pages, 3)], LATER)
    assert (everything(store), everything(pages)) == (before, {})
    for _ in range(2):  # the second time as after a lost reply
        assert fan_out(store, [fan(parent, pages, 3)], LATER) == {}
    assert stored(store, "a")["state"] == "waiting"
    assert len(everything(pages)) == 3


@pytest.mark.parametrize("step", ["delete_many", "bulk_write"])
@pytest.mark.parametrize("after", [False, True])
def test_the_end_of_a_child_is_counted_once_whatever_breaks_off(
    store: QueueStore, pages: QueueStore, monkeypatch: pytest.MonkeyPatch, step: str, *, after: bool
) -> None:
    jobs = waiting(store, pages)
    with monkeypatch.context() as patch:
        patch.setattr(Collection, step, breaking(getattr(Collection, step), after=after))
        with pytest.raises(Unclear):
            end_children(pages, ended(jobs[:2]), LATER, lambda _name: store)
    assert stored(store, "a")["children"]["left"] == 3
    assert len(everything(pages)) == 3
    problems, parents = end_children(pages, ended(jobs[:2]), LATER, lambda _name: store)
    assert (problems, parents) == ({}, [])
    problems, parents = end_children(pages, ended(jobs[:2]), LATER, lambda _name: store)
    assert {type(problem) for problem in problems.values()} == {UncertainError}
    assert stored(store, "a")["children"]["left"] == 1


def breaking(statement: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    def breaks(self: Any, *arguments: Any, **options: Any) -> Any:
        if after:
            statement(self, *arguments, **options)
        raise AutoReconnect("killed")

    return breaks


@pytest.mark.parametrize(("keep", "there"), [({}, False), ({"keep_done": 60.0}, True)])
def test_the_last_child_ends_its_parent_which_is_kept_where_it_says_so(
    store: QueueStore, pages: QueueStore, keep: Any, *, there: bool
) -> None:
    jobs = waiting(store, pages, **keep)
    assert end_children(pages, ended(jobs[1:]), LATER, lambda _name: store) == ({}, [])
    problems, (parent,) = end_children(pages, ended(jobs[:1]), LATER, lambda _name: store)
    assert (problems, parent.id, parent.result) == ({}, "a", b"all")
    assert stored(store, "a").get("state") == ("done" if there else None)
    assert stored(store, "a").get("children", {}).get("left") == (0 if there else None)
    assert everything(pages) == {}


def test_a_child_that_another_worker_has_is_not_counted(store: QueueStore, pages: QueueStore) -> None:
    first, second, _ = waiting(store, pages)
    pages.release([first])
    pages.reserve(1, LATER, "thief", 9)
    problems, _ = end_children(pages, ended([first, second]), LATER, lambda _name: store)
    assert {problem: type(why) for problem, why in problems.items()} == {first.id: LeaseLostError}
    assert stored(store, "a")["children"]["left"] == 2


def test_a_dead_child_is_told_of_until_that_is_noted_and_a_parent_that_is_gone_does_not_mind(
    store: QueueStore, pages: QueueStore
) -> None:
    first, second, _ = waiting(store, pages)
    dead = [RolledBack(job, "no ink", "worker", dead=True) for job in (first, second)]
    pages.roll_back(dead, LATER)
    found = dead_children(pages, NOW, 10)
    assert [job.id for job in found] == [first.id, second.id]
    parents = [job.parent for job in found if job.parent]
    assert fail_parents(store, dict.fromkeys(parents, "no ink"), LATER) == {parents[0]: []}
    assert stored(store, "a")["state"] == "dead"
    mark_parents_notified(pages, found)
    assert dead_children(pages, NOW, 10) == []


def dead_of_its_child(store: QueueStore, pages: QueueStore) -> None:
    """A parent ``a`` whose first child is a dead letter, whose second is done, and whose third is ready."""
    first, second, third = waiting(store, pages)
    pages.roll_back([RolledBack(first, "no ink", "worker", dead=True)], LATER)
    found = dead_children(pages, NOW, 10)
    fail_parents(store, {job.parent: "no ink" for job in found if job.parent}, LATER)
    mark_parents_notified(pages, found)
    end_children(pages, ended([second]), LATER, lambda _name: store)
    pages.release([third])
    assert (stored(store, "a")["state"], stored(store, "a")["children"]["left"]) == ("dead", 2)


def redrive(changes: ChangesAtOnce, queue: str) -> int:
    return changes.redrive(queue, DeadLetters(), LATER + 1).moved


def work_off(store: QueueStore, pages: QueueStore) -> list[str]:
    """Ids of the parents that end as all children that can be worked on are done."""
    jobs = pages.reserve(10, LATER + 2, "worker", 3).jobs
    problems, parents = end_children(pages, ended(jobs), LATER + 2, lambda _name: store)
    assert problems == {}
    return [parent.id for parent in parents]


def test_a_redriven_parent_waits_for_the_children_that_are_left_where_the_failed_one_was_redriven(
    store: QueueStore, pages: QueueStore, changes: ChangesAtOnce
) -> None:
    dead_of_its_child(store, pages)
    assert redrive(changes, "pages") == 1
    assert redrive(changes, "mail") == 1
    parent = stored(store, "a")
    assert (parent["state"], parent["children"]["left"], "ended_at" in parent) == ("waiting", 2, False)
    assert work_off(store, pages) == ["a"]
    assert (everything(store), everything(pages)) == ({}, {})


def test_a_parent_that_died_of_a_child_is_done_when_that_was_redriven_and_all_are_done(
    store: QueueStore, pages: QueueStore, changes: ChangesAtOnce
) -> None:
    dead_of_its_child(store, pages)
    assert redrive(changes, "pages") == 1
    assert work_off(store, pages) == ["a"]
    assert (everything(store), everything(pages)) == ({}, {})


def test_a_parent_stays_a_dead_letter_whoever_works_on_the_dead_letter_of_its_child(
    store: QueueStore, pages: QueueStore, documents: Database[dict[str, Any]]
) -> None:
    # Given: the dead child moves to the queue of on_dead
    dead_of_its_child(store, pages)
    graves = QueueStore(documents, "queue.graves")
    moves = IntoQueue(pages.jobs, graves.jobs, LATER + 1, Portions(10), by_setting=True)
    redriven = Redriven()
    moves.run([job["_id"] for job in pages.jobs.find({"state": "dead"}, {"_id": 1})], redriven)
    assert redriven.moved == 1
    work_off(store, pages)
    assert work_off(store, graves) == []
    assert (stored(store, "a")["state"], everything(graves)) == ("dead", {})


@pytest.mark.parametrize("gone", [False, True])
def test_a_redriven_parent_whose_failed_child_is_dead_or_gone_is_worked_on_again(
    store: QueueStore, pages: QueueStore, changes: ChangesAtOnce, *, gone: bool
) -> None:
    dead_of_its_child(store, pages)
    if gone:
        pages.jobs.delete_one({"_id": "a.1"})
    assert redrive(changes, "mail") == 1
    assert stored(store, "a")["state"] == "ready"
    assert "children" not in stored(store, "a")
    assert work_off(store, pages) == []  # nobody waits for the children of before
    assert stored(store, "a")["state"] == "ready"


def test_a_redriven_child_that_fails_again_ends_the_parent_that_waits_for_it(
    store: QueueStore, pages: QueueStore, changes: ChangesAtOnce
) -> None:
    dead_of_its_child(store, pages)
    redrive(changes, "pages")
    redrive(changes, "mail")
    again = [job for job in pages.reserve(10, LATER + 2, "worker", 3).jobs if job.id == "a.1"]
    pages.roll_back([RolledBack(job, "no paper", "worker", dead=True) for job in again], LATER + 3)
    (child,) = dead_children(pages, NOW, 10)
    assert child.parent
    assert fail_parents(store, {child.parent: "no paper"}, LATER + 3) == {child.parent: []}


def test_of_a_fan_out_where_one_id_is_taken_nothing_is_there(store: QueueStore, pages: QueueStore) -> None:
    pages.push([a_job("a.2")], NOW)
    store.push([a_job("a"), a_job("b")], NOW)
    parents = store.reserve(2, NOW, "worker", 1).jobs
    problems = fan_out(store, [fan(parent, pages, 3) for parent in parents], LATER)
    assert {problem: type(why) for problem, why in problems.items()} == {"a": DuplicateError}
    assert sorted(everything(pages)) == ["a.2", "b.1", "b.2", "b.3"]
