"""A MongoDB that takes 50 ms for every statement: each main path ends, and does nothing over and over.

What grows with the number of jobs in a transaction, or is tried again for ever, shows here: transactions have
a time limit, of ten seconds in this MongoDB.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient

from faults.mongo_messages import Command
from faults.mongo_proxy import CuttingProxy, Fault, Slow
from sluicemq import (
    Batch,
    Client,
    FanOut,
    Forward,
    Job,
    Producer,
    Publisher,
    Reader,
    Reject,
    Subscription,
    Worker,
)
from support.broker_process import BrokerProcess
from support.long_forms import long
from support.waiting import wait_until

#: Seconds for a statement; and for what a test waits.
SLOWLY, LONGEST = 0.05, 150.0
ROUTE = {"stream": "orders", "queue": "invoices"}
QUEUES = {"limited": {"max_running": 2}, "fair": {"fair": True, "tenant_max_running": 1}, "invoices": {}}


class SlowBroker:
    """A broker whose MongoDB is slow, what its workers have had, and what it has sent."""

    def __init__(self, process: BrokerProcess, statements: Fault[Slow]) -> None:
        self.process = process
        self.endpoint = process.doors["smq"]
        self.worked: Counter[str] = Counter()
        self.order: list[str] = []
        self._statements = statements
        self._seen = 0
        self._lock = threading.Lock()

    def sent(self) -> list[Command]:
        met = self._statements.met
        since, self._seen = self._seen, len(met)
        return [message.command for message in met[since:]]

    def push(self, queue: str, count: int, **options: Any) -> list[str]:
        ids = [f"{queue}-{token_hex(4)}-{number:05}" for number in range(count)]
        with Producer(endpoint=self.endpoint) as producer:
            receipts = [producer.push(queue, b"x", id=job_id, **options) for job_id in ids]
            for receipt in receipts:
                receipt.wait(LONGEST)
        return ids

    def note(self, job: Job) -> None:
        with self._lock:
            self.worked[job.id] += 1
            self.order.append(job.id)

    def had_all(self, ids: list[str]) -> None:
        """Wait until workers had all of these, and no job is left in any queue of theirs."""
        wait_until(lambda: all(job_id in self.worked for job_id in ids), LONGEST, "the work on all jobs")
        assert {self.worked[job_id] for job_id in ids} == {1}

    def empty(self, client: Client, *queues: str) -> None:
        def left() -> int:
            rows = [client.queue(queue_name) for queue_name in queues]
            return sum(int(row[state]) for row in rows for state in ("ready", "waiting", "reserved", "dead"))

        wait_until(lambda: left() == 0, LONGEST, "the end of all jobs")


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[SlowBroker]:
    database = f"test_{token_hex(6)}"
    config = {"broker": {"poll": 0.5}, "devices": [], "queues": QUEUES, "routes": [ROUTE]}
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        with CuttingProxy(mongo_uri) as proxy, BrokerProcess(proxy.uri, database, config=config) as process:
            yield SlowBroker(process, proxy.slow(lambda _command: True, SLOWLY))
            assert "transactions_aborted" not in process.log_text()
            process.wait_log("MongoDB is slow: it takes ")
        mongo.drop_database(database)


@pytest.fixture
def client(broker: SlowBroker) -> Iterator[Client]:
    with Client(timeout=LONGEST, endpoint=broker.endpoint) as client:
        yield client


@pytest.fixture
def queue() -> str:
    return f"q{token_hex(4)}"


@pytest.fixture
def work(broker: SlowBroker) -> Iterator[Callable[..., Worker]]:
    with ExitStack() as stack:

        def start(queue: str, handler: Callable[[Job], Any] | None = None, **options: Any) -> Worker:
            options = {"prefetch": 500, **options}
            return stack.enter_context(
                Worker(queue, handler or broker.note, **options, endpoint=broker.endpoint)
            )

        yield start


@pytest.mark.parametrize("count", [200, long(3000)])
def test_jobs_are_pushed_and_worked_on_once(
    broker: SlowBroker, client: Client, queue: str, work: Callable[..., Worker], count: int
) -> None:
    ids = broker.push(queue, count)
    work(queue)
    broker.had_all(ids)
    broker.empty(client, queue)


@pytest.mark.parametrize("parents", [100, long(1500)])
def test_children_end_at_their_many_parents_with_few_statements(
    broker: SlowBroker, client: Client, queue: str, work: Callable[..., Worker], parents: int
) -> None:
    pages = f"{queue}-pages"
    family = FanOut(Forward(pages, b"x", priority=2), Forward(pages, b"x", priority=1))
    ids = broker.push(queue, parents)
    work(queue, lambda _job: family, prefetch=100)
    wait_until(lambda: client.queues.get(queue).waiting == parents, LONGEST, "all parents")
    broker.sent()
    work(pages)
    broker.had_all([f"{parent}.{number}" for parent in ids for number in (1, 2)])
    broker.empty(client, queue, pages)
    within = [message for message in broker.sent() if "autocommit" in message.body]
    assert len(within) < parents / 2
    assert "abortTransaction" not in {message.name for message in within}


@pytest.mark.parametrize("count", [200, long(2000)])
def test_jobs_are_forwarded_once(
    broker: SlowBroker, client: Client, queue: str, work: Callable[..., Worker], count: int
) -> None:
    ids, then = broker.push(queue, count), f"{queue}-then"
    work(queue, lambda _job: Forward(then))
    work(then)
    broker.had_all(ids)
    broker.empty(client, queue, then)


@pytest.mark.parametrize("count", [5, long(40)])
def test_jobs_of_groups_go_in_their_order(
    broker: SlowBroker, client: Client, queue: str, work: Callable[..., Worker], count: int
) -> None:
    groups = {group: broker.push(queue, count, group=group) for group in ("a", "b", "c")}
    work(queue)
    broker.had_all([job_id for ids in groups.values() for job_id in ids])
    for ids in groups.values():
        assert [job_id for job_id in broker.order if job_id in ids] == ids
    broker.empty(client, queue)


@pytest.mark.full
@pytest.mark.parametrize("name", ["limited", "fair"])
def test_limited_jobs_all_have_their_turn(
    broker: SlowBroker, client: Client, work: Callable[..., Worker], name: str
) -> None:
    ids = broker.push(name, 20, **({"tenant": "t"} if name == "fair" else {}))
    work(name)
    broker.had_all(ids)
    broker.empty(client, name)


@pytest.mark.full
@pytest.mark.parametrize("elsewhere", [False, True])
def test_dead_letters_are_redriven_and_worked_on(
    broker: SlowBroker, client: Client, queue: str, work: Callable[..., Worker], *, elsewhere: bool
) -> None:
    def reject(_job: Job) -> None:
        raise Reject("no")

    ids, to = broker.push(queue, 1000), f"{queue}-to"
    worker = work(queue, reject)
    wait_until(lambda: client.queues.get(queue).dead == len(ids), LONGEST, "all dead letters")
    worker.stop()
    broker.push(to, 1)
    assert client.redrive(queue, to=to if elsewhere else None, wait=LONGEST)["moved"] == len(ids)
    work(to if elsewhere else queue)
    broker.had_all(ids)


@pytest.mark.full
def test_a_purge_and_a_deletion_end(broker: SlowBroker, client: Client, queue: str) -> None:
    broker.push(queue, 2000)
    assert client.purge(queue, wait=LONGEST) == 2000
    broker.push(queue, 100)
    assert client.queues.delete(queue).result() == 100


@pytest.mark.full
def test_a_schedule_pushes_each_run_once(
    broker: SlowBroker, client: Client, queue: str, work: Callable[..., Worker]
) -> None:
    client.schedules.add(queue, queue, b"x", every=1.0)
    work(queue)

    def runs() -> list[str]:
        return [place for place in broker.order if place.startswith(f"{queue}@")]

    wait_until(lambda: len(runs()) >= 4, LONGEST, "four runs")
    client.schedules.delete(queue)
    assert {broker.worked[run] for run in runs()} == {1}


@pytest.mark.full
def test_messages_of_a_stream_go_through_and_end(broker: SlowBroker, work: Callable[..., Worker]) -> None:
    with Publisher(endpoint=broker.endpoint) as publisher:
        published = [publisher.publish("orders", "paid", b"%d" % number) for number in range(2000)]
        numbers = [receipt.wait(LONGEST) for receipt in published]
    with Reader("orders", endpoint=broker.endpoint) as reader:
        assert [message.sequence for message in reader] == numbers
    work("invoices")
    broker.had_all([f"orders-{number}" for number in numbers])
    seen: list[int] = []

    def read(batch: Batch) -> None:
        seen.extend(message.sequence for message in batch)
        if batch.last == numbers[-1]:
            subscription.stop()

    subscription = Subscription("orders", "sums", read, endpoint=broker.endpoint)
    subscription.run()
    assert seen == numbers
