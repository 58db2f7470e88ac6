"""MongoDB applies a statement and its reply is lost: no job is stuck, lost, or confirmed in vain."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from secrets import token_hex
from typing import Any

import pytest
import zmq
from pymongo import MongoClient

from faults.mongo_messages import Command
from faults.mongo_proxy import CuttingProxy, Fault, Held, Watched
from sluicemq import Client, DuplicateError, ExpiredError, Job, Producer, PushReceipt, Retry, Worker
from sluicemq_broker.store.jobs.pack_contents import opened
from support.broker_process import BrokerProcess
from support.ports import tcp
from support.waiting import wait_until

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

#: Longer than a busy machine keeps a broker from its heartbeat: one that is not sure of its lease inserts no
#: job reserved.
LEASE = 30.0
DEVICES = [
    {"kind": "streamer", "frontend": tcp(), "backend": tcp(), "ack": "auto"},
    {"kind": "queue", "frontend": tcp(), "backend": tcp()},
]
CONFIG = {"broker": {"lease": LEASE, "poll": 0.5}, "devices": DEVICES}
SECONDS = 60.0
JOBS = [b"%d" % number for number in range(300)]


full = pytest.mark.full


@pytest.fixture(scope="module")
def proxied(mongo_uri: str) -> Iterator[tuple[CuttingProxy, BrokerProcess]]:
    """One broker for all tests here; each has a queue of its own."""
    with (
        MongoClient[dict[str, Any]](mongo_uri) as mongo,
        CuttingProxy(mongo_uri) as proxy,
        BrokerProcess(proxy.uri, f"test_{token_hex(6)}", config=CONFIG) as broker,
    ):
        yield proxy, broker
        mongo.drop_database(broker.config["broker"]["database"])


@pytest.fixture
def queue(proxied: tuple[CuttingProxy, BrokerProcess], mongo_uri: str) -> Iterator[ProxiedQueue]:
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        yield ProxiedQueue(*proxied, mongo, f"q{token_hex(4)}")


@pytest.fixture
def default(queue: ProxiedQueue) -> ProxiedQueue:
    """The queue with plain doors; the workers of the test before have left."""
    default = queue.of("default")
    wait_until(lambda: default.summary()["workers"] == 0, what="the leaving of the former test's workers")
    return default


class ProxiedQueue:
    """A queue, and what lies between its broker and MongoDB."""

    def __init__(
        self, proxy: CuttingProxy, broker: BrokerProcess, mongo: MongoClient[dict[str, Any]], name: str
    ) -> None:
        self.name = name
        self.doors = broker.doors
        self.endpoint = self.doors["smq"]
        self._args = (proxy, broker, mongo)
        self._proxy = proxy
        self._jobs = mongo[broker.config["broker"]["database"]][f"queue.{self.name}"]
        if self._jobs.name not in self._jobs.database.list_collection_names():
            self._jobs.database.create_collection(self._jobs.name)  # as if it had been pushed to
        self._cuts_before = len(proxy.cuts)

    def of(self, name: str) -> ProxiedQueue:
        """The same with another queue."""
        return ProxiedQueue(*self._args, name)

    @property
    def swallowed(self) -> list[Command]:
        """The statements of this test whose replies were swallowed."""
        return self._proxy.cuts[self._cuts_before :]

    @property
    def cuts(self) -> int:
        return len(self.swallowed)

    def cut(self, chosen: Callable[[Command], bool], times: int) -> None:
        """Swallow the replies to the next so many ``chosen`` statements about the queue."""
        collection = f"queue.{self.name}"
        self._proxy.cut(lambda command: command.collection == collection and chosen(command), times)

    def push(self) -> None:
        """Push all jobs, confirmed."""
        with Producer(endpoint=self.endpoint) as producer:
            for job in JOBS:
                producer.push(self.name, job)

    def in_state(self, state: str) -> list[str]:
        return [job["_id"] for job in self._jobs.find({"state": state}, {"_id": 1})]

    def over(self, dedupe_id: str) -> bool:
        """Return whether the window of a dedupe_id is over, by MongoDB's own clock."""
        held = {"dedupe_id": dedupe_id, "$expr": {"$lte": ["$dedupe_until", "$$NOW"]}}
        return self._jobs.find_one(held) is not None

    def stored(self) -> list[bytes]:
        return sorted(job["payload"] for document in self._jobs.find() for job in opened(document, 0.0))

    @contextmanager
    def working(self, *, fail_first: bool = False) -> Iterator[Handled]:
        """A worker that is known to the broker."""
        handled = Handled()

        def handle(job: Job) -> bytes:
            handled[job.payload] += 1
            handled.attempts.add(job.attempt)
            if fail_first and job.attempt == 1:
                raise Retry("not the first time", delay=0)
            return b"result of " + job.payload

        with Worker(self.name, handle, prefetch=len(JOBS), endpoint=self.endpoint):
            wait_until(lambda: self.summary()["workers"] == 1, what="the worker's coming")
            yield handled

    def look(self) -> None:
        """Have the broker look for ready jobs: it inserts jobs reserved once it knows that none is."""
        with Client(endpoint=self.endpoint) as client, client.jobs.reserve(self.name, 1, 0) as claim:
            assert not len(claim)

    def hold(self, statement: str) -> Fault[Held]:
        """Hold the reply to the next such statement on the queue's collection."""
        return self._proxy.hold(self._on(statement))

    def watch(self, statement: str) -> Fault[Watched]:
        """See such statements go by."""
        return self._proxy.after(self._on(statement), lambda: None, times=None)

    def _on(self, statement: str) -> Callable[[Command], bool]:
        collection = self._jobs.name
        return lambda command: command.name == statement and command.collection == collection

    def wait_all_committed(self) -> None:
        """Wait until nothing is left of the jobs, here or there."""
        wait_until(lambda: not self.stored(), what="commit of all jobs")
        wait_until(lambda: not self.summary()["in_flight"], what="the end of all deliveries")

    def summary(self) -> dict[str, Any]:
        """What the broker says of the queue; perhaps nobody has asked for it yet."""
        with Client(endpoint=self.endpoint) as client:
            nothing = {"workers": 0, "in_flight": 0}
            return next((row for row in client.queues() if row["name"] == self.name), nothing)


class Handled(Counter[bytes]):
    """How often each job was handled, and at which attempts."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts: set[int] = set()


def test_jobs_of_a_claim_that_was_not_answered_are_delivered(queue: ProxiedQueue) -> None:
    queue.push()
    queue.cut(is_claim, 2)
    with queue.working() as handled:
        queue.wait_all_committed()
    # None is sent again: what it has reserved is read back under its number. A busy broker may claim twice.
    numbers = [_update(claim)["$set"]["hold"] for claim in queue.swallowed]
    assert len(set(numbers)) == len(numbers) >= 1
    assert handled == Counter(JOBS)
    assert handled.attempts == {1}


@pytest.mark.parametrize("times", [1, 2, pytest.param(4, marks=full)])
def test_jobs_of_a_push_that_was_not_answered_are_stored_once(queue: ProxiedQueue, times: int) -> None:
    queue.cut(is_push, times)
    queue.push()
    assert queue.cuts == times
    assert {job["state"] for job in queue.swallowed[0].statements} == {"ready"}
    assert queue.stored() == sorted(JOBS)
    with queue.working() as handled:
        queue.wait_all_committed()
    assert handled == Counter(JOBS)


@pytest.mark.parametrize("times", [1, 2, pytest.param(4, marks=full)])
def test_jobs_inserted_reserved_without_an_answer_are_delivered(queue: ProxiedQueue, times: int) -> None:
    with queue.working() as handled:
        queue.look()
        queue.cut(is_reserving_push, times)
        queue.push()
        queue.wait_all_committed()
    assert queue.cuts == times
    assert handled == Counter(JOBS)
    assert handled.attempts == {1}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("working", [False, True], ids=["ready", "inserted reserved"])
def test_duplicates_of_an_unanswered_push_stay(queue: ProxiedQueue, times: int, *, working: bool) -> None:
    with ExitStack() as stack:
        handled = stack.enter_context(queue.working()) if working else None
        # When: each dedupe_id is pushed three times
        queue.cut(is_push, times)
        with Producer(on_refused=lambda *_: None, endpoint=queue.endpoint) as producer:
            receipts = [
                [producer.push(queue.name, job, dedupe_id=job.decode()) for job in JOBS] for _ in range(3)
            ]
        assert queue.cuts == times
        for same in zip(*receipts, strict=True):
            told = Counter(first_of(entry) for entry in same)
            assert list(told.values()) == [3]
            assert told.keys() <= {entry.id for entry in same}
        if handled is None:
            handled = stack.enter_context(queue.working())
        wait_until(lambda: len(queue.in_state("done")) == len(JOBS), what="commit of all jobs")
        assert handled == Counter(JOBS)


def first_of(receipt: PushReceipt) -> str:
    """The id of the job that was first: its own, or the one that it was told."""
    try:
        receipt.wait(SECONDS)
    except DuplicateError as error:
        return error.id
    return receipt.id


def test_an_id_whose_taking_over_was_not_answered_is_taken_over_once(queue: ProxiedQueue) -> None:
    with Producer(endpoint=queue.endpoint) as producer:
        old = producer.push(queue.name, b"old", dedupe_id="d", dedupe_window=0.1)
        old.wait(SECONDS)
        wait_until(lambda: queue.over("d"), what="the end of the window")
        queue.cut(is_taking_over, 1)
        new = producer.push(queue.name, b"new", dedupe_id="d")
        new.wait(SECONDS)
        again = producer.push(queue.name, b"again", dedupe_id="d")
        with pytest.raises(DuplicateError) as refusal:
            again.wait(SECONDS)
    assert queue.cuts == 1
    assert refusal.value.id == new.id
    assert queue.stored() == [b"new", b"old"]


@pytest.mark.parametrize("times", [1, 2])
def test_commits_that_were_not_answered_hold(queue: ProxiedQueue, times: int) -> None:
    queue.cut(is_commit, times)
    with queue.working() as handled:
        queue.push()
        queue.wait_all_committed()
    assert queue.cuts == times
    assert handled == Counter(JOBS)


@pytest.mark.parametrize("times", [1, 2, pytest.param(8, marks=full)])
def test_rollbacks_that_were_not_answered_are_delivered_again(queue: ProxiedQueue, times: int) -> None:
    queue.cut(is_rollback, times)
    with queue.working(fail_first=True) as handled:
        queue.push()
        queue.wait_all_committed()
    assert queue.cuts == times
    assert handled == Counter(2 * JOBS)
    assert handled.attempts == {1, 2}


@pytest.mark.parametrize("times", [1, 2])
def test_popped_jobs_whose_removal_was_not_answered_are_sent(default: ProxiedQueue, times: int) -> None:
    with plain_socket(zmq.PULL, default.doors["pull"]) as puller:
        wait_until(lambda: default.summary()["workers"] == 1, what="the worker's coming")
        default.cut(is_commit, times)
        default.push()
        popped = [puller.recv() for _ in JOBS]
    assert default.cuts == times
    assert Counter(popped) == Counter(JOBS)
    assert default.stored() == []


@pytest.mark.parametrize("headers", [{}, {"id": "asked"}], ids=["forgotten", "remembered"])
def test_an_asker_of_an_unanswered_commit_gets_its_result(default: ProxiedQueue, headers: Any) -> None:
    default.cut(is_finish if headers else is_commit, 2)
    with default.working(), plain_socket(zmq.REQ, default.doors["req"]) as asker:
        asker.send_multipart([b"default", json.dumps(headers).encode(), b"question"])
        assert asker.recv_multipart() == [b"result of question"]
    assert default.cuts == 2


@contextmanager
def plain_socket(kind: int, address: str) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(kind) as socket:
        socket.linger = 0
        socket.rcvtimeo = int(SECONDS * 1000)
        socket.connect(address)
        yield socket


def is_finish(command: Command) -> bool:
    return bool(_update(command).get("$set", {}).get("state") == "done")


def is_claim(command: Command) -> bool:
    return bool(_update(command).get("$set", {}).get("state") == "reserved")


def is_reserving_push(command: Command) -> bool:
    return is_push(command) and any(job["state"] == "reserved" for job in command.statements)


def is_commit(command: Command) -> bool:
    return command.name == "delete"


def is_rollback(command: Command) -> bool:
    return "errors" in _update(command).get("$push", {})


def is_taking_over(command: Command) -> bool:
    return "dedupe_id" in _update(command).get("$unset", {})


def is_push(command: Command) -> bool:
    return command.name == "insert"


def _update(command: Command) -> dict[str, Any]:
    """What the first update of a command does; nothing that is looked for here, if it is a pipeline."""
    update = command.statements[0]["u"] if command.name == "update" else {}
    return {} if isinstance(update, list) else dict(update)


def test_who_waits_for_a_job_that_expires_hears_so_however_late_the_answer_comes(queue: ProxiedQueue) -> None:
    # Given a job that MongoDB has removed, as its time is over, and the broker has not heard of it
    held = queue.hold("delete")
    with Producer(endpoint=queue.endpoint) as producer:
        reply = producer.submit(queue.name, b"x", ttl=0.5)
        [removal] = held.wait()
        # When the broker looks for it meanwhile
        queue.watch("find").wait(3)
        removal.release()
        with pytest.raises(ExpiredError):
            reply.result(SECONDS)
