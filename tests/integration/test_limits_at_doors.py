"""A queue with ``max_running`` or ``rate`` at every door of workers: never more at once, and all get done."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest
import zmq

from sluicemq import Client, Producer, Worker
from sluicemq.protocol import wire
from support.broker_under_test import BrokerUnderTest, Doors, serving, spare
from support.raw_sockets import receive
from support.waiting import TIMEOUT, wait_until

MOST, JOBS = 2, 7
RATE = 50.0


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    devices = [{**device, "prefetch": 10} if "prefetch" in device else device for device in spare(ack=1)]
    devices += spare(ask=1, received=1, pop=1)
    queues: dict[str, Any] = {
        f"{shape}-0": {"max_running": MOST} for shape in ("ack", "ask", "received", "pop")
    }
    queues |= {f"library-{number}": {"max_running": MOST} for number in range(4)}
    queues["slow"] = {"rate": RATE, "burst": 5}
    queues["tenants"] = {"fair": True, "tenant_max_running": MOST}
    queues["slow-tenants"] = {"fair": True, "tenant_rate": RATE, "tenant_burst": 5}
    with serving(mongo_uri, devices, queues=queues, poll=0.5) as broker:
        yield broker
        assert "Traceback" not in broker.process.log_text()


def push(broker: BrokerUnderTest, queue: str, jobs: int = JOBS) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        for number in range(jobs):
            producer.push(queue, b"%d" % number)


def await_running(broker: BrokerUnderTest, queue: str, left: int) -> None:
    """Of so many jobs that are left, as many run as may."""
    wait_until(lambda: sum(broker.counts(queue).values()) == left, what=f"{left} jobs")
    broker.await_count(queue, "reserved", min(MOST, left))


def next_of(workers: list[zmq.Socket[bytes]]) -> tuple[zmq.Socket[bytes], list[bytes]]:
    """The next job that comes to any of these workers."""
    poller = zmq.Poller()
    for worker in workers:
        poller.register(worker, zmq.POLLIN)
    ((worker, _), *_) = poller.poll(int(TIMEOUT * 1000)) or pytest.fail("no job came")
    return worker, receive(worker)


@pytest.mark.parametrize("first", ["workers", "jobs"])
def test_rep_workers_have_so_many_jobs_together(broker: BrokerUnderTest, first: str) -> None:
    """Jobs are inserted reserved where the workers are there first, and claimed where they are not."""
    doors = broker.process.devices
    door = next(row["backend"][0] for row in doors if row["queue"] == "ask-0")
    if first == "jobs":
        push(broker, "ask-0")
    workers = [broker.socket(zmq.REP, door) for _ in range(5)]
    if first == "workers":
        wait_until(lambda: broker.workers("ask-0") == 5, what="the workers")
        push(broker, "ask-0")
    for left in range(JOBS, 0, -1):
        await_running(broker, "ask-0", left)
        worker, _ = next_of(workers)
        assert broker.counts("ask-0")["reserved"] <= MOST
        worker.send(b"done")
    broker.close_sockets()


def test_acknowledging_pull_workers_have_so_many_jobs_together(broker: BrokerUnderTest) -> None:
    doors = broker.take("ack")
    workers = [broker.socket(zmq.PULL, doors.back) for _ in range(3)]
    commits = broker.socket(zmq.PUSH, doors.commit)
    push(broker, doors.queue)
    held = [next_of(workers)[1][0] for _ in range(MOST)]
    for left in range(JOBS, 0, -1):
        await_running(broker, doors.queue, left)
        commits.send_multipart([b"COMMIT", held.pop(0)])
        if left > MOST:
            held.append(next_of(workers)[1][0])
    wait_until(lambda: not broker.counts(doors.queue), what="the last commit")


def test_a_library_worker_has_so_many_jobs_whatever_its_prefetch(broker: BrokerUnderTest) -> None:
    worker, queue = broker.smq(), "library-0"
    worker.ask(wire.READY, queue, 100)
    push(broker, queue)
    held: list[bytes] = []
    for left in range(JOBS, 0, -1):
        while len(held) < min(MOST, left):
            held += [job[0] for job in worker.delivery()]
        assert len(held) == min(MOST, left)
        await_running(broker, queue, left)
        worker.ask(wire.SETTLE, [[held.pop(0), wire.COMMIT, b"", None]])
    wait_until(lambda: not broker.counts(queue), what="the last commit")


def test_a_claim_of_many_jobs_gets_so_many(broker: BrokerUnderTest) -> None:
    queue = "library-1"
    push(broker, queue)
    with Client(endpoint=broker.doors["smq"]) as client, client.jobs.reserve(queue, JOBS, 0.5) as claim:
        assert len(claim) == MOST
        with client.jobs.reserve(queue, JOBS, wait=0.5) as another:
            assert len(another) == 0


@pytest.mark.parametrize("shape", ["received", "pop"])
def test_plain_pull_workers_get_all_jobs_though_few_at_a_time(broker: BrokerUnderTest, shape: str) -> None:
    doors: Doors = broker.take(shape)
    worker = broker.socket(zmq.PULL, doors.back)
    push(broker, doors.queue, 20)
    assert {receive(worker)[-1] for _ in range(20)} == {b"%d" % number for number in range(20)}
    wait_until(lambda: not broker.counts(doors.queue), what="the last commit")


def test_popping_workers_of_the_library_get_all_jobs(broker: BrokerUnderTest) -> None:
    push(broker, "library-2", 20)
    seen: set[bytes] = set()
    with Worker(
        "library-2", lambda job: seen.add(job.payload), pop=True, prefetch=10, endpoint=broker.doors["smq"]
    ):
        wait_until(lambda: len(seen) == 20, what="all jobs")


def test_permits_are_shown_where_a_queue_is(broker: BrokerUnderTest) -> None:
    push(broker, "library-3")
    with Client(endpoint=broker.doors["smq"]) as client, client.jobs.reserve("library-3", JOBS, 0.5):
        assert client.queues.get("library-3").permits == MOST


def test_no_more_jobs_begin_in_a_second_than_the_rate_says(broker: BrokerUnderTest) -> None:
    """Late a job may be on a busy machine, early it is not."""
    began: list[float] = []
    before = monotonic()
    with Worker("slow", lambda _job: began.append(monotonic()), prefetch=100, endpoint=broker.doors["smq"]):
        push(broker, "slow", 40)
        wait_until(lambda: len(began) == 40, what="all jobs")
    assert all(number <= 5 + RATE * (at - before) for number, at in enumerate(began, 1))


def test_each_tenant_has_so_many_and_it_is_told_how_many_are_held_back(broker: BrokerUnderTest) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        for number in range(JOBS):
            producer.push("tenants", b"%d" % number, tenant="flood")
        producer.push("tenants", b"single", tenant="acme")
    worker = broker.smq()
    worker.ask(wire.READY, "tenants", 100)
    got: list[bytes] = []
    while len(got) < MOST + 1:
        got += [job[2] for job in worker.delivery()]
    assert sorted(got) == [b"0", b"1", b"single"]
    assert broker.counts("tenants") == {"reserved": MOST + 1, "ready": JOBS - MOST}
    wait_until(lambda: broker.admin.queues.get("tenants").held_back == 1, what="the flood is held back")


def test_no_more_jobs_of_a_tenant_begin_in_a_second_than_its_rate_says(broker: BrokerUnderTest) -> None:
    began: dict[bytes, list[float]] = {b"acme": [], b"bolt": []}
    before = monotonic()
    with Worker(
        "slow-tenants",
        lambda job: began[job.payload].append(monotonic()),
        prefetch=100,
        endpoint=broker.doors["smq"],
    ):
        with Producer(endpoint=broker.doors["smq"]) as producer:
            for number in range(50):
                tenant = "acme" if number % 5 else "bolt"
                producer.push("slow-tenants", tenant.encode(), tenant=tenant)
        wait_until(lambda: len(began[b"acme"]) == 40, what="all jobs")
    for times in began.values():
        assert all(number <= 5 + RATE * (at - before) for number, at in enumerate(times, 1))
