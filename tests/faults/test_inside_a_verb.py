"""Between two statements of a verb: another broker acts, or MongoDB ends the transaction."""

from collections import Counter
from collections.abc import Callable, Iterator
from secrets import token_hex
from typing import Any

import pytest

from faults.proxied import Delivered, RawClient, SharedQueue
from faults.replica_set import ReplicaSet
from sluicemq import Client, FanOut, Forward, Job, Producer, Publisher, Reject, Worker
from sluicemq.protocol import wire
from support.broker_process import BrokerProcess
from support.own_queue import SECONDS
from support.waiting import wait_until


def test_a_claim_does_not_take_a_later_job_of_an_id_that_it_has_read(shared: SharedQueue) -> None:
    """Between its read and its update the job is done at the other broker, and its id is pushed anew."""
    here, there = shared.client(shared.a), shared.client(shared.b)
    there.push(b"first", "fixed")

    def done_and_pushed_anew() -> None:
        there.ready(1)
        there.commit(there.take()[0])
        there.ready(0)
        there.push(b"second", "fixed")

    inside = shared.a.proxy.before(shared.on("update", "reserved"), done_and_pushed_anew)
    here.ready(1)
    inside.wait()
    [job] = here.take()
    assert job.payload == b"second"
    here.commit(job)
    shared.wait_empty()
    assert [handed.payload for handed in (*there.taken, *here.taken)] == [b"first", b"second"]


def test_a_claim_whose_jobs_another_broker_takes_first_delivers_none_of_them(shared: SharedQueue) -> None:
    here, there = shared.client(shared.a), shared.client(shared.b)
    for number in range(10):
        there.push(b"%d" % number)

    def taken() -> None:
        there.ready(5)
        there.take(5)

    inside = shared.a.proxy.before(shared.on("update", "reserved"), taken)
    here.ready(10)
    inside.wait()
    here.take(5)
    for job in there.taken:
        there.commit(job)
    there.ready(0)
    for job in here.taken:
        here.commit(job)
    shared.wait_empty()
    assert sorted(job.payload for job in (*there.taken, *here.taken)) == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize("verdict", [wire.COMMIT, wire.ROLLBACK, wire.REJECT])
def test_a_verdict_on_a_removed_job_spares_one_pushed_anew(shared: SharedQueue, verdict: str) -> None:
    """The job is removed by hand, and its id pushed at the other broker, before the verdict is sent on."""
    here, there = shared.client(shared.a), shared.client(shared.b)
    here.ready(1)
    here.push(b"first", "fixed")
    [first] = here.take()

    def removed_and_pushed_anew() -> None:
        shared.jobs.delete_one({"_id": "fixed"})
        there.push(b"second", "fixed")

    name = "delete" if verdict == wire.COMMIT else "update"
    inside = shared.a.proxy.before(shared.on(name), removed_and_pushed_anew)
    answer = here.settle(first, verdict, delay=None)
    inside.wait()
    here.answer(answer)
    here.ready(0)
    second = taken_by_either(here, there)
    assert second.payload == b"second"
    assert second.attempt == 1
    shared.wait_empty()


def taken_by_either(here: RawClient, there: RawClient) -> Delivered:
    """The next job, committed, at whichever of two workers it comes to."""
    there.ready(1)
    while not (here.offered(0.2) or there.offered(0.2)):
        pass
    worker = here if here.offered(0) else there
    [job] = worker.take()
    worker.commit(job)
    there.ready(0)
    return job


def test_a_reservation_that_is_given_back_while_it_is_read_is_delivered_once(shared: SharedQueue) -> None:
    """A release at the other broker lands between the read and the update of a claim."""
    here, there = shared.client(shared.a), shared.client(shared.b)
    there.ready(1)
    there.push(b"first")
    [held] = there.take()
    there.ready(0)
    there.push(b"second")
    inside = shared.a.proxy.before(
        shared.on("update", "reserved"), lambda: there.answer(there.settle(held, wire.RELEASE))
    )
    here.ready(2)
    inside.wait()
    here.take(2)
    for job in here.taken:
        here.commit(job)
    shared.wait_empty()
    assert sorted(job.payload for job in here.taken) == [b"first", b"second"]
    assert {job.attempt for job in here.taken} == {1}


DATABASE = "aborted"
ROUTE = {"stream": "orders", "queue": "invoices"}
COUNT = 40
#: The server's codes for a transaction that is too old, and for one that is too large.
CODES = [251, 290, 388]


class Rig:
    """A broker on a MongoDB that breaks off transactions when told to."""

    def __init__(self, mongo: ReplicaSet, process: BrokerProcess) -> None:
        self.endpoint = process.doors["smq"]
        self.process = process
        self.queue = f"q{token_hex(4)}"
        self.then = f"{self.queue}-then"
        self.worked: Counter[str] = Counter()
        self._mongo = mongo

    def break_off(self, command: str, queue: str, code: int, times: int = 3) -> None:
        """Let so many of these commands about a queue end their transactions."""
        data = {"failCommands": [command], "errorCode": code, "namespace": f"{DATABASE}.queue.{queue}"}
        if code == CODES[0]:
            data["errorLabels"] = ["TransientTransactionError"]
        self._mongo.fail(self._mongo.ports[0], "failCommand", {"times": times}, data)

    def push(self) -> list[str]:
        with Producer(endpoint=self.endpoint) as producer:
            receipts = [producer.push(self.queue, b"x", id=f"{self.queue}-{n:02}") for n in range(COUNT)]
            for receipt in receipts:
                receipt.wait(SECONDS)
        return [receipt.id for receipt in receipts]

    def note(self, job: Job) -> None:
        self.worked[job.id] += 1

    def settle_together(self, queue: str, verdict: str, *onward: Any) -> list[str]:
        """Take all jobs of a queue, and settle them in one request; returns their ids.

        So a transaction has several: of one job alone it is tried again at once, and not counted.
        """
        with RawClient(self.endpoint, queue) as worker:
            worker.ready(COUNT)
            jobs = worker.take(COUNT)
            assert (
                worker.ask(wire.SETTLE, [[job.receipt, verdict, None, None, *onward] for job in jobs]) == []
            )
        return [job.id for job in jobs]

    def ended(self, ids: list[str], *queues: str) -> None:
        """Wait until all these were worked on, once, and nothing is left in these queues."""

        def left(client: Client) -> int:
            rows = [client.queue(queue) for queue in queues]
            return sum(int(row[state]) for row in rows for state in ("ready", "waiting", "reserved", "dead"))

        wait_until(lambda: self.worked.keys() >= set(ids), SECONDS, "the work on all jobs")
        with Client(endpoint=self.endpoint) as client:
            wait_until(lambda: left(client) == 0, SECONDS, "the end of all jobs")
        assert self.worked == Counter(ids)

    def aborted(self) -> int:
        with Client(endpoint=self.endpoint) as client:
            return int(client.counters().counters.get("transactions_aborted", 0))


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ReplicaSet, BrokerProcess]]:
    config = {"broker": {"poll": 0.5}, "devices": [], "routes": [ROUTE]}
    with ReplicaSet() as mongo, BrokerProcess(mongo.uri, DATABASE, config=config) as process:
        yield mongo, process


@pytest.fixture
def rig(running: tuple[ReplicaSet, BrokerProcess]) -> Iterator[Rig]:
    mongo, process = running
    rig = Rig(mongo, process)
    before = rig.aborted()
    yield rig
    mongo.fail(mongo.ports[0], "failCommand", "off")
    assert rig.aborted() > before
    assert "the next one has" in process.log_text()


def working(rig: Rig, queue: str, handler: Callable[[Job], Any], prefetch: int = COUNT) -> Worker:
    return Worker(queue, handler, prefetch=prefetch, endpoint=rig.endpoint)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("code", CODES)
def test_children_end(rig: Rig, code: int) -> None:
    ids = rig.push()
    with (
        working(rig, rig.queue, lambda _job: FanOut(Forward(rig.then))),
        Client(endpoint=rig.endpoint) as client,
    ):
        wait_until(lambda: client.queues.get(rig.queue).waiting == COUNT, SECONDS, "all parents")
    rig.break_off("delete", rig.then, code)
    rig.worked.update(rig.settle_together(rig.then, wire.COMMIT))
    rig.ended([f"{job_id}.1" for job_id in ids], rig.queue, rig.then)


def test_jobs_fan_out(rig: Rig) -> None:
    ids = rig.push()
    rig.break_off("insert", rig.then, CODES[0])
    rig.settle_together(rig.queue, wire.FAN_OUT, [[rig.then, None, None]], None)
    with working(rig, rig.then, rig.note):
        rig.ended([f"{job_id}.1" for job_id in ids], rig.queue, rig.then)


def test_jobs_go_on(rig: Rig) -> None:
    ids = rig.push()
    rig.break_off("insert", rig.then, CODES[0])
    rig.settle_together(rig.queue, wire.FORWARD, [rig.then, None, None])
    with working(rig, rig.then, rig.note):
        rig.ended(ids, rig.queue, rig.then)


def test_dead_letters_are_redriven_into_another_queue(rig: Rig) -> None:
    def reject(_job: Job) -> None:
        raise Reject("no")

    ids = rig.push()
    with Client(endpoint=rig.endpoint) as client, Producer(endpoint=rig.endpoint) as producer:
        with working(rig, rig.queue, reject):
            wait_until(lambda: client.queues.get(rig.queue).dead == COUNT, SECONDS, "all dead letters")
        first = producer.push(rig.then, b"x")
        first.wait(SECONDS)
        rig.break_off("insert", rig.then, CODES[0])
        client.redrive(rig.queue, to=rig.then, wait=SECONDS)
    with working(rig, rig.then, rig.note):
        rig.ended([*ids, first.id], rig.queue, rig.then)


def test_messages_are_routed(rig: Rig) -> None:
    rig.break_off("insert", "invoices", CODES[0])
    with Publisher(endpoint=rig.endpoint) as publisher:
        published = [publisher.publish("orders", "paid", b"x") for _ in range(COUNT)]
        numbers = [receipt.wait(SECONDS) for receipt in published]
    with working(rig, "invoices", rig.note):
        rig.ended([f"orders-{number}" for number in numbers], "invoices")


def test_children_are_purged(rig: Rig) -> None:
    rig.push()
    with Client(endpoint=rig.endpoint) as client:
        with working(rig, rig.queue, lambda _job: FanOut(Forward(rig.then))):
            wait_until(lambda: client.queues.get(rig.queue).waiting == COUNT, SECONDS, "all parents")
        rig.break_off("update", rig.queue, CODES[0])
        assert client.purge(rig.then, wait=SECONDS) == COUNT
        assert client.queues.get(rig.queue).dead == COUNT
        rig.process.wait_log("transactions_aborted: MongoDB has ended a transaction of")
        client.queues.purge(rig.queue, "dead").result()
