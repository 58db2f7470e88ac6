"""What a broker holds is bounded over all queues, whatever is slow: jobs on their way in, out, and back."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from secrets import token_hex

import pytest

from faults.proxied import ProxiedBroker, RawClient, SharedQueue, shared_queue, wait_quiet
from faults.replica_set import ReplicaSet
from sluicemq import Producer
from sluicemq.protocol import wire
from support.broker_process import BrokerProcess
from support.waiting import wait_until

MIB = 2**20
full = pytest.mark.full
#: What all may take together by default, and how much a broker may grow by it: Python's objects, MongoDB's
#: messages and the sockets' buffers come on top.
HWM_BYTES = 64 * MIB
#: About three times as much, as the documents say: a large message more is what the allocator keeps.
MOST_GROWTH = 3 * HWM_BYTES + 12 * MIB


@pytest.mark.parametrize(
    ("hwm", "jobs", "growth"), [(1_000, 10_000, 60 * MIB), pytest.param(10_000, 80_000, 90 * MIB, marks=full)]
)
@pytest.mark.timeout(600)
def test_commits_that_hang_are_bounded_and_done(mongo_uri: str, hwm: int, jobs: int, growth: int) -> None:
    with shared_queue(mongo_uri, 1, hwm=hwm) as shared, shared.working(shared.a, prefetch=200) as handled:
        hanging = shared.a.proxy.delay(shared.on("delete"), None)
        with growing_by(shared.a.process, growth):
            push(shared, jobs)
            wait_quiet(lambda: sum(handled.values()), 1.5)
        assert sum(handled.values()) <= 5 * hwm, "jobs are handed out though no commit is confirmed"
        hanging.cut()
        all_is_done_once(shared, handled, jobs)


@full
@pytest.mark.timeout(300)
def test_commits_that_fail_are_bounded_and_all_is_done_once_afterwards() -> None:
    hwm, jobs = 1_000, 20_000
    with ReplicaSet() as replica_set, ExitStack() as stack:
        port = replica_set.ports[0]
        uri = f"mongodb://127.0.0.1:{port}/?directConnection=true"
        shared = stack.enter_context(shared_queue(uri, 1, hwm=hwm))
        handled = stack.enter_context(shared.working(shared.a, prefetch=200))
        failing = {
            "failCommands": ["delete"],
            "errorCode": 262,
            "namespace": f"{shared.database.name}.queue.{shared.name}",
        }
        replica_set.fail(port, "failCommand", "alwaysOn", failing)
        push(shared, jobs)
        wait_quiet(lambda: sum(handled.values()), 2.0)
        assert sum(handled.values()) <= 5 * hwm, "jobs are handed out though no commit is confirmed"
        replica_set.fail(port, "failCommand", "off")
        all_is_done_once(shared, handled, jobs)


@pytest.mark.parametrize("verdict", [wire.ROLLBACK, pytest.param(wire.RELEASE, marks=full)])
def test_rollbacks_that_hang_are_bounded_too(mongo_uri: str, verdict: str) -> None:
    hwm = 300
    with shared_queue(mongo_uri, 1, hwm=hwm) as shared:
        hanging = shared.a.proxy.delay(shared.on("update", "ready"), None)
        worker = shared.client(shared.a)
        worker.ready(100)
        with Producer(endpoint=shared.a.endpoint) as producer:
            for number in range(20 * hwm):
                producer.push(shared.name, b"%d" % number)
        while worker.offered(5.0):
            worker.send(
                wire.SETTLE, [[delivery.receipt, verdict, b"why", 60.0] for delivery in worker.take_all()]
            )
            assert len(worker.taken) <= 5 * hwm
            handed = shared.jobs.count_documents({"attempts": {"$gte": 1}})
            assert handed <= 5 * hwm, "jobs are handed out though none is given back"
        hanging.cut()


def test_a_queue_whose_commits_hang_does_not_stop_the_others(mongo_uri: str) -> None:
    jobs, hwm = 3_000, 500
    with shared_queue(mongo_uri, 1, hwm=hwm) as shared, shared.working(shared.a, prefetch=200) as sick:
        hanging = shared.a.proxy.delay(shared.on("delete"), None)
        push(shared, jobs)
        wait_quiet(lambda: sum(sick.values()), 1.5)
        assert sum(sick.values()) < jobs, "nothing has filled the mark"
        with RawClient(shared.a.endpoint, "well") as well:
            well.push(b"first")
            well.ready(10)
            for number in range(100):
                if number:
                    well.push(b"%d" % number)
                [job] = well.take()
                well.commit(job)
        hanging.cut()
        all_is_done_once(shared, sick, jobs)


def push(shared: SharedQueue, jobs: int) -> None:
    """Confirmed, all of them: pushes go on."""
    with Producer(endpoint=shared.a.endpoint) as producer:
        for number in range(jobs):
            producer.push(shared.name, b"%d" % number)


def all_is_done_once(shared: SharedQueue, handled: Counter[bytes], jobs: int) -> None:
    shared.wait_empty(300)
    assert len(handled) == jobs
    assert set(handled.values()) == {1}


@full
@pytest.mark.timeout(600)
def test_large_jobs_of_many_producers_at_once(mongo_uri: str) -> None:
    with shared_queue(mongo_uri, 1) as shared:
        warm(shared.a)
        payload = bytes(12 * MIB - 1024)

        def push_two() -> None:
            with Producer(close_timeout=300, endpoint=shared.a.endpoint) as producer:
                for _ in range(2):
                    producer.push(shared.name, payload)

        with growing_by(shared.a.process, MOST_GROWTH), ThreadPoolExecutor(40) as pool:
            for future in [pool.submit(push_two) for _ in range(40)]:
                future.result()
        assert shared.stored() == 80


@full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("workers", [1, 15])
def test_large_results_that_are_kept_slowly(mongo_uri: str, workers: int) -> None:
    results = 150
    with shared_queue(mongo_uri, 1) as shared, ThreadPoolExecutor(workers) as pool:
        warm(shared.a)
        gate = threading.Event()
        shared.a.proxy.before(shared.on("update", "done"), lambda: gate.wait(10), None)
        producer = shared.client(shared.a)
        for number in range(results):
            producer.push(b"%d" % number, reply="result")
        clients = [shared.client(shared.a) for _ in range(workers)]
        for client in clients:
            client.ready(results // workers)
        with growing_by(shared.a.process, MOST_GROWTH):
            for future in [pool.submit(finish_all, client, results // workers, gate) for client in clients]:
                future.result()
        wait_until(lambda: shared.jobs.count_documents({"state": "done"}) == results, what="all results")


def finish_all(client: RawClient, count: int, gate: threading.Event) -> None:
    """All at once; only then are they written."""
    jobs = client.take(count, 60)
    client.ready(0)  # the others' jobs are theirs
    answers = [client.settle(job, wire.COMMIT, bytes(4 * MIB)) for job in jobs]
    client.offered(5)
    gate.set()
    for answer in answers:
        assert client.answer(answer, 300) == []


@full
@pytest.mark.timeout(600)
def test_large_jobs_of_many_queues_with_slow_workers(mongo_uri: str) -> None:
    queues, jobs = [f"slow{number}" for number in range(30)], 32
    with shared_queue(mongo_uri, 1, queue=queues[0]) as shared, ExitStack() as stack:
        with Producer(close_timeout=300, endpoint=shared.a.endpoint) as producer:
            for _ in range(jobs):
                for queue in queues:
                    producer.push(queue, bytes(MIB))
        shared.a.process.terminate()  # so that nothing is in its memory before
        shared.a.process.restart()
        warm(shared.a)
        with growing_by(shared.a.process, MOST_GROWTH):
            clients = [stack.enter_context(RawClient(shared.a.endpoint, queue)) for queue in queues]
            for client in clients:
                client.ready(1)
            for client in clients:
                client.take(1, 60)
            clients[0].offered(3)
            for _ in range(4):  # and it goes on
                for client in clients:
                    client.commit(client.taken[-1])
                    client.take(1, 60)


def warm(broker: ProxiedBroker) -> None:
    """Let it have done each thing once."""
    with RawClient(broker.endpoint, f"warm{token_hex(2)}") as client:
        client.ready(1)
        for headers in ({}, {"reply": "result"}):
            client.push(bytes(MIB), None, **headers)
            client.commit(client.take()[0])


@contextmanager
def growing_by(broker: BrokerProcess, most: int) -> Iterator[None]:
    """The broker's largest memory meanwhile is at most so many bytes above what it had before."""
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")  # VmHWM begins anew
    before = peak(broker)
    yield
    growth = peak(broker) - before
    assert growth <= most, f"it grew by {growth // MIB} MiB"


def peak(broker: BrokerProcess) -> int:
    """The most memory, in bytes, since this was begun anew."""
    status = Path(f"/proc/{broker.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024
