"""Jobs that join their children: delivered once more, with the children's results."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import zmq
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import AutoReconnect

from sluicemq import ChildResult, Client, DeadError, FanOut, Forward, Job, Producer, Reject
from sluicemq_broker.job import ChildEnd, Parent
from sluicemq_broker.job import Job as StoredJob
from sluicemq_broker.store import (
    Child,
    Completed,
    DeadLetters,
    EndedParent,
    FailedParent,
    FanOutEntry,
    Portions,
    QueueStore,
    RolledBack,
    Unclear,
    count_failed_children,
    dead_children,
    end_children,
    fail_parents,
    fan_out,
    mark_parents_notified,
)
from support.broker_under_test import AT_ONCE, BrokerUnderTest, serving, spare
from support.jobs import NOW, ChangesAtOnce, a_job, everything, some_jobs, stored
from support.own_queue import SECONDS, working
from support.raw_sockets import receive
from support.waiting import wait_until

LATER = NOW + 10


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, spare(ask=4, ack_full=1), queues=AT_ONCE, poll=0.5, lease=2.0) as broker:
        yield broker


# ------------------------------------------------------------------------ through the doors


def test_a_job_is_delivered_once_more_with_the_results_of_its_children(endpoint: str, queue: str) -> None:
    pages = f"{queue}-pages"
    seen: list[tuple[int, bytes, tuple[ChildResult, ...] | None]] = []

    def book(job: Job) -> FanOut | bytes:
        seen.append((job.attempt, job.payload, job.children))
        if job.children is None:
            return FanOut(*(Forward(pages, b"%d" % n) for n in range(12)), join=True)
        return b"+".join(child.result or b"" for child in job.children)

    with (
        working(endpoint, {queue: book, pages: lambda job: b"p" + job.payload}),
        Producer(endpoint=endpoint) as producer,
    ):
        assert producer.call(queue, b"title", SECONDS, id="a") == b"p0+p1+p2+p3+p4+p5+p6+p7+p8+p9+p10+p11"
    children = tuple(ChildResult(f"a.{n + 1}", b"p%d" % n) for n in range(12))
    assert seen == [(1, b"title", None), (1, b"title", children)]


def test_a_second_delivery_that_fails_comes_again_with_the_results(endpoint: str, queue: str) -> None:
    pages, attempts = f"{queue}-pages", list[int]()

    def book(job: Job) -> FanOut | bytes:
        if job.children is None:
            return FanOut(Forward(pages), join=True)
        attempts.append(job.attempt)
        if job.attempt == 1:
            raise RuntimeError("not yet")
        return job.children[0].result or b""

    with (
        working(endpoint, {queue: book, pages: lambda _job: b"page"}),
        Producer(endpoint=endpoint) as producer,
    ):
        assert producer.call(queue, b"x", SECONDS, backoff="none") == b"page"
    assert attempts == [1, 2]


def test_joins_within_joins_and_a_forward_behind_one(endpoint: str, queue: str) -> None:
    inner, leaf, last = (f"{queue}-{name}" for name in ("inner", "leaf", "last"))

    def sums(to: str, count: int, job: Job) -> FanOut | Forward | bytes:
        if job.children is None:
            return FanOut(*(Forward(to, b"%d" % n) for n in range(count)), join=True)
        total = b"%d" % sum(int(child.result or b"") for child in job.children)
        return Forward(last, total) if to == inner else total

    handlers: dict[str, Callable[[Job], Any]] = {
        queue: partial(sums, inner, 2),
        inner: partial(sums, leaf, 3),
        leaf: lambda job: job.payload,
        last: lambda job: None if job.children else b"sum " + job.payload,
    }
    with working(endpoint, handlers), Producer(endpoint=endpoint) as producer:
        assert producer.call(queue, b"x", SECONDS) == b"sum 6"


def test_a_joined_job_may_fan_out_again(endpoint: str, queue: str) -> None:
    pages, rounds = f"{queue}-pages", list[int]()

    def book(job: Job) -> FanOut | bytes:
        last = int((job.children or [ChildResult("", b"0")])[-1].result or b"")
        rounds.append(last)
        return b"end" if last == 2 else FanOut(Forward(pages, b"%d" % (last + 1)), join=True)

    with (
        working(endpoint, {queue: book, pages: lambda job: job.payload}),
        Producer(endpoint=endpoint) as producer,
    ):
        assert producer.call(queue, b"x", SECONDS) == b"end"
    assert rounds == [0, 1, 2]


def test_a_group_waits_until_the_second_delivery_has_ended(endpoint: str, queue: str) -> None:
    pages, order = f"{queue}-pages", list[str]()

    def book(job: Job) -> FanOut | None:
        order.append(f"{job.id} {'joined' if job.children else 'first'}")
        return FanOut(Forward(pages, delay=0.2), join=True) if order == ["a first"] else None

    with working(endpoint, {queue: book, pages: lambda _job: b"1"}):
        with Producer(endpoint=endpoint) as producer:
            for name in ("a", "b"):
                producer.push(queue, b"x", id=name, group="book")
        wait_until(lambda: len(order) == 3, SECONDS)
    assert order == ["a first", "a joined", "b first"]


def test_a_child_that_fails_makes_a_dead_letter_and_no_second_delivery(endpoint: str, queue: str) -> None:
    pages, joined = f"{queue}-pages", list[Job]()

    def book(job: Job) -> FanOut | None:
        if job.children is None:
            return FanOut(Forward(pages, b"0"), Forward(pages, b"1"), join=True)
        return joined.append(job)

    def draw(job: Job) -> None:
        if job.payload == b"1":
            raise Reject("no ink")

    with (
        working(endpoint, {queue: book, pages: draw}),
        Producer(endpoint=endpoint) as producer,
        pytest.raises(DeadError, match="no ink"),
    ):
        producer.call(queue, b"x", SECONDS)
    assert joined == []


def fail_in_all_ways(client: Client, queues: list[str], book: str) -> None:
    """End the children of a job ``a``: one is rejected, the others are cancelled, removed, and expire."""
    pages, ledger = queues
    wait_until(lambda: client.queues.get(book).waiting, SECONDS)
    (job,) = client.jobs.reserve(pages, 1, wait=SECONDS).jobs
    job.reject("no ink")
    client.jobs.cancel(pages, "a.2")
    client.queues.delete(ledger)


@pytest.mark.parametrize("join", [True, False])
def test_a_job_that_allows_failures_goes_on(endpoint: str, queue: str, *, join: bool) -> None:
    pages, ledger = f"{queue}-pages", f"{queue}-ledger"

    def book(job: Job) -> FanOut | bytes:
        if job.children is not None:
            return json.dumps(
                [child.error or (child.result or b"").decode() for child in job.children]
            ).encode()
        children = [Forward(pages), Forward(pages, delay=1000), Forward(ledger, delay=1000)]
        children.append(Forward(f"{queue}-none", ttl=0.05))
        return FanOut(*children, join=join, allow_failures=True)

    with (
        Producer(endpoint=endpoint) as producer,
        Client(endpoint=endpoint) as client,
        working(endpoint, {queue: book}),
    ):
        reply = producer.submit(queue, b"x", id="a")
        reply.receipt.wait(SECONDS)
        fail_in_all_ways(client, [pages, ledger], queue)
        result = reply.result(SECONDS)
        left = client.jobs.get(pages, "a.1")
    expected = ["no ink", "it was cancelled", "it was removed with the queue", "expired"]
    assert result == (json.dumps(expected).encode() if join else b"")
    assert (left.state, left.parent) == ("dead", None)


def test_results_that_have_no_room_are_named_by_their_ids(endpoint: str, queue: str) -> None:
    pages, large = f"{queue}-pages", 600_000

    def book(job: Job) -> FanOut | bytes:
        if job.children is None:
            return FanOut(*(Forward(pages, b"%d" % n) for n in range(3)), join=True)
        return b"\n".join(
            f"{child.id} {len(child.result or b'')} {child.error}".encode() for child in job.children
        )

    def draw(job: Job) -> bytes:
        return b"small" if job.payload == b"2" else bytes(large)

    with working(endpoint, {queue: book, pages: draw}), Producer(endpoint=endpoint) as producer:
        rows = producer.call(queue, b"x", SECONDS, id="a").decode().split("\n")
    assert rows == [
        "a.1 600000 ",
        "a.2 0 TOO_LARGE: it has 600000 bytes, 448576 are left for what all children return",
        "a.3 5 ",
    ]


def test_rep_workers_get_the_results_in_one_frame(broker: BrokerUnderTest, endpoint: str, queue: str) -> None:
    doors = broker.take("ask")
    asker, worker = broker.socket(zmq.REQ, doors.front), broker.socket(zmq.REP, doors.back)
    asker.send(b"work")
    assert receive(worker) == [b"work"]
    children = [queue.encode(), b"1", b"", queue.encode(), b"\xff", b""]
    worker.send_multipart([b"FANOUT", *children, b'{"join": true}'])
    with working(endpoint, {queue: lambda job: job.payload}):
        payload, ends = receive(worker)
    assert payload == b"work"
    results = [load["result"] for load in json.loads(ends)]
    assert results == ["1", {"base64": "/w=="}]
    worker.send(b"sum")
    assert receive(asker) == [b"sum"]


def test_pull_workers_get_the_results_last(broker: BrokerUnderTest, endpoint: str, queue: str) -> None:
    doors = broker.take("ack_full")
    jobs, commits = broker.socket(zmq.PULL, doors.back), broker.socket(zmq.PUSH, doors.commit)
    with Producer(endpoint=endpoint) as producer:
        reply = producer.submit(doors.queue, b"work", id="a")
        receipt, *_ = receive(jobs)
        options = b'{"join": true, "allow_failures": true}'
        commits.send_multipart(
            [b"FANOUT", receipt, queue.encode(), b"1", b"", queue.encode(), b"2", b"", options]
        )
        with working(endpoint, {queue: reject_two}):
            receipt, job_id, headers, payload, ends = receive(jobs)
        assert (job_id, json.loads(headers)["attempt"], payload) == (b"a", 1, b"work")
        assert json.loads(ends) == [{"id": "a.1", "result": "1"}, {"id": "a.2", "error": "no ink"}]
        commits.send_multipart([b"COMMIT", receipt, b"sum"])
        assert reply.result(SECONDS) == b"sum"


def reject_two(job: Job) -> bytes:
    if job.payload == b"2":
        raise Reject("no ink")
    return job.payload


@pytest.mark.parametrize(
    ("options", "why"),
    [(b'{"join": 1}', "join of a FANOUT is '1'"), (b'{"joins": true}', "a FANOUT has no option 'joins'")],
)
def test_options_that_a_fan_out_does_not_have_roll_the_job_back(
    broker: BrokerUnderTest, endpoint: str, queue: str, options: bytes, why: str
) -> None:
    doors = broker.take("ask")
    worker = broker.socket(zmq.REP, doors.back)
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        producer.push(doors.queue, b"work", id="a", max_attempts=1).wait(SECONDS)
        receive(worker)
        worker.send_multipart([b"FANOUT", queue.encode(), b"1", b"", options])
        wait_until(lambda: client.jobs.list(doors.queue, "dead"), SECONDS)
        (error,) = client.jobs.get(doors.queue, "a").errors or ()
    assert why in error.reason


# ---------------------------------------------------------------------------- the store


@pytest.fixture
def pages(documents: Database[dict[str, Any]]) -> QueueStore:
    return QueueStore(documents, "queue.pages")


def waiting(
    store: QueueStore, pages: QueueStore, count: int = 3, *, may_fail: bool = False, **settings: Any
) -> list[StoredJob]:
    """A parent ``a`` that waits, to be joined; its children, reserved."""
    store.push([a_job("a", **settings)], NOW)
    (parent,) = store.reserve(1, NOW, "worker", 1).jobs
    made = some_jobs(count)
    for number, job in enumerate(made, 1):
        job.id = f"a.{number}"
        job.set_parent(Parent("mail", "a", parent.seq, parent.under, may_fail))
    children = tuple(Child(pages, job, inherits=False) for job in made)
    assert fan_out(store, [FanOutEntry(parent, children, b"", 100)], LATER) == {}
    return pages.reserve(count, LATER, "worker", 2).jobs


def ended(jobs: list[StoredJob]) -> list[Completed]:
    return [Completed(job, f"of {job.id}".encode(), "worker", LATER) for job in jobs]


def joined(store: QueueStore, owner: str = "another") -> list[ChildEnd]:
    """How the children of ``a`` have ended, as its next worker gets it."""
    (parent,) = store.reserve(10, LATER + 3, owner, 5).jobs
    assert parent.id == "a"
    store.release([parent])
    return list(parent.joined or ())


@pytest.mark.parametrize("step", ["delete_many", "bulk_write"])
@pytest.mark.parametrize("after", [False, True])
def test_a_result_is_noted_once_whatever_breaks_off(
    store: QueueStore, pages: QueueStore, monkeypatch: pytest.MonkeyPatch, step: str, *, after: bool
) -> None:
    jobs = waiting(store, pages)
    statement: Callable[..., Any] = getattr(Collection, step)

    def breaks(self: Any, *arguments: Any, **options: Any) -> Any:
        if after:
            statement(self, *arguments, **options)
        raise AutoReconnect("killed")

    for some in (jobs[:2], jobs[2:]):
        with monkeypatch.context() as patch:
            patch.setattr(Collection, step, breaks)
            with pytest.raises(Unclear):
                end_children(pages, ended(some), LATER, lambda _name: store)
        for _ in range(2):  # the second time as after a lost reply
            end_children(pages, ended(some), LATER, lambda _name: store)
    assert joined(store) == [ChildEnd(f"a.{n}", b"of a.%d" % n) for n in (1, 2, 3)]
    assert everything(pages) == {}


def test_the_last_child_says_that_its_parent_is_ready(store: QueueStore, pages: QueueStore) -> None:
    jobs = waiting(store, pages, priority=7)
    assert end_children(pages, ended(jobs[1:]), LATER, lambda _name: store) == ({}, [])
    assert "joined" not in str(store.reserve(10, LATER, "another", 4).jobs)
    _, (parent,) = end_children(pages, ended(jobs[:1]), LATER, lambda _name: store)
    assert (parent.id, parent.joins, parent.priority, parent.group) == ("a", True, 7, None)
    found = stored(store, "a")
    assert (found["state"], found["attempts"], found["children"]["left"]) == ("ready", 0, 0)
    assert found["children"]["room"] == 100 - 3 * len("of a.1")
    assert "wait" not in found


def test_results_go_when_the_job_waits_for_other_children(store: QueueStore, pages: QueueStore) -> None:
    end_children(pages, ended(waiting(store, pages)), LATER, lambda _name: store)
    (parent,) = store.reserve(1, LATER, "worker", 5).jobs
    assert parent.joined is not None
    (child,) = some_jobs(1)
    child.set_parent(Parent("mail", "a", parent.seq, parent.under))
    assert fan_out(store, [FanOutEntry(parent, (Child(pages, child, inherits=False),), b"all")], LATER) == {}
    assert "joined" not in stored(store, "a")


class Families:
    """The queue of the parents, and what a broker hears of them."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self.ended: list[EndedParent] = []

    def store(self, _queue: str) -> QueueStore:
        return self._store

    def on_parents_failed(self, parents: Sequence[FailedParent]) -> None:
        assert parents == []

    def on_parents_ended(self, parents: Sequence[EndedParent]) -> None:
        self.ended += parents


def count_failed(store: QueueStore, pages: QueueStore) -> list[str]:
    families = Families(store)
    found = dead_children(pages, NOW, 10)
    count_failed_children(pages, found, LATER, families, Portions(10))
    return [parent.id for parent in families.ended]


@pytest.mark.parametrize("step", ["update_many", "bulk_write"])
@pytest.mark.parametrize("after", [False, True])
def test_a_failure_is_counted_once_whatever_breaks_off_and_not_again_when_it_was_redriven(
    store: QueueStore,
    pages: QueueStore,
    changes: ChangesAtOnce,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    *,
    after: bool,
) -> None:
    first, second, third = waiting(store, pages, may_fail=True)
    pages.roll_back([RolledBack(job, "no ink", "worker", dead=True) for job in (first, second)], LATER)
    statement: Callable[..., Any] = getattr(Collection, step)

    def breaks(self: Any, *arguments: Any, **options: Any) -> Any:
        if after:
            statement(self, *arguments, **options)
        raise AutoReconnect("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Collection, step, breaks)
        with pytest.raises(Unclear):
            count_failed(store, pages)
    for _ in range(2):
        assert count_failed(store, pages) == []
    assert stored(store, "a")["children"]["left"] == 1
    assert redrive(changes, "pages") == 2
    again = [job for job in pages.reserve(10, LATER + 2, "worker", 3).jobs if job.id != third.id]
    assert [job.parent for job in again] == [None, None]
    _, (parent,) = end_children(pages, ended([third]), LATER, lambda _name: store)
    assert parent.joins
    assert [job.error for job in joined(store)] == ["no ink", "no ink", ""]


def test_a_dead_child_that_was_redriven_before_it_was_counted_is_counted_when_it_is_done(
    store: QueueStore, pages: QueueStore, changes: ChangesAtOnce
) -> None:
    (child,) = waiting(store, pages, 1, may_fail=True)
    pages.roll_back([RolledBack(child, "no ink", "worker", dead=True)], LATER)
    found = dead_children(pages, NOW, 10)
    redrive(changes, "pages")
    families = Families(store)
    count_failed_children(pages, found, LATER, families, Portions(10))
    assert families.ended == []
    work_off(store, pages)
    assert joined(store) == [ChildEnd("a.1", b"of a.1")]


def dead_of_its_child(store: QueueStore, pages: QueueStore, **settings: Any) -> None:
    """A parent ``a`` whose first child is a dead letter, and whose others are done."""
    first, *others = waiting(store, pages, **settings)
    pages.roll_back([RolledBack(first, "no ink", "worker", dead=True)], LATER)
    found = dead_children(pages, NOW, 10)
    fail_parents(store, {job.parent: "no ink" for job in found if job.parent}, LATER)
    mark_parents_notified(pages, found)
    end_children(pages, ended(others), LATER, lambda _name: store)
    assert stored(store, "a")["state"] == "dead"


def redrive(changes: ChangesAtOnce, queue: str) -> int:
    return changes.redrive(queue, DeadLetters(), LATER + 1).moved


def work_off(store: QueueStore, pages: QueueStore) -> None:
    jobs = pages.reserve(10, LATER + 2, "worker", 3).jobs
    assert end_children(pages, ended(jobs), LATER + 2, lambda _name: store)[0] == {}


@pytest.mark.parametrize("parent_too", [False, True])
def test_a_job_that_died_of_a_child_is_joined_when_that_was_redriven_and_is_done(
    store: QueueStore, pages: QueueStore, changes: ChangesAtOnce, *, parent_too: bool
) -> None:
    dead_of_its_child(store, pages)
    assert redrive(changes, "pages") == 1
    if parent_too:
        assert redrive(changes, "mail") == 1
    work_off(store, pages)
    assert [job.id for job in joined(store)] == ["a.1", "a.2", "a.3"]


def test_a_dead_job_of_a_group_waits_for_its_turn_before_it_is_joined(
    store: QueueStore, pages: QueueStore, changes: ChangesAtOnce
) -> None:
    job = a_job("a", group="book")
    job.line_up(5)
    store.push([job], NOW)
    store.groups.promote(["book"], NOW)
    (parent,) = store.reserve(1, NOW, "worker", 1).jobs
    (child,) = some_jobs(1)
    child.id = "a.1"
    child.set_parent(Parent("mail", "a", parent.seq, parent.under))
    fan_out(store, [FanOutEntry(parent, (Child(pages, child, inherits=False),), b"", 100)], LATER)
    pages.roll_back(
        [RolledBack(taken, "no", "worker", dead=True) for taken in pages.reserve(1, LATER, "w", 2).jobs],
        LATER,
    )
    found = dead_children(pages, NOW, 10)
    fail_parents(store, {job.parent: "no" for job in found if job.parent}, LATER)
    redrive(changes, "pages")
    (again,) = pages.reserve(1, LATER + 2, "worker", 3).jobs
    _, (ready,) = end_children(pages, ended([again]), LATER + 2, lambda _name: store)
    assert (ready.joins, ready.group, stored(store, "a")["state"]) == (True, "book", "waiting")
    store.groups.promote(["book"], LATER + 2)
    assert [job.id for job in joined(store)] == ["a.1"]


def test_a_dead_join_is_redriven(store: QueueStore, pages: QueueStore, changes: ChangesAtOnce) -> None:
    end_children(pages, ended(waiting(store, pages)), LATER, lambda _name: store)
    for number in (1, 2):
        (parent,) = store.reserve(1, LATER + 2, "worker", 10 + number).jobs
        store.roll_back([RolledBack(parent, "no", "worker", dead=True)], LATER)
        assert redrive(changes, "mail") == 1
    assert len(joined(store)) == 3


def test_a_job_that_is_worked_on_again_as_a_whole_has_no_results_of_before(
    store: QueueStore, pages: QueueStore, changes: ChangesAtOnce
) -> None:
    dead_of_its_child(store, pages)
    assert redrive(changes, "mail") == 1
    assert stored(store, "a")["state"] == "ready"
    assert joined(store) == []


@pytest.mark.parametrize(
    "bad", [7, [7], [{"id": "a.1"}], [{"id": 3, "result": b""}], [{"id": "x", "result": b""}]]
)
def test_notes_that_somebody_has_damaged_are_set_aside(store: QueueStore, bad: Any) -> None:
    store.push([a_job("a")], NOW)
    store.jobs.update_one({"_id": "a"}, {"$set": {"joined": bad}})
    assert store.reserve(1, LATER, "worker", 1).jobs == []
    assert stored(store, "a")["state"] == "dead"
