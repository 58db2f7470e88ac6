"""Queues with ``max_ready`` or ``max_bytes`` at every door: who is refused, who waits; nothing is lost."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
import zmq

from sluicemq import Producer, Worker
from sluicemq.protocol.errors import QueueFullError, TimeoutError
from support.broker_under_test import ANY_PORT, BrokerUnderTest, serving
from support.raw_sockets import code, receive
from support.waiting import TIMEOUT, wait_until

MOST = 5
#: More than one read of a connection brings, and than the kernel keeps for it.
FLOOD = 20_000
BOUNDS = {
    "refuses": {"max_ready": MOST},
    "holds": {"max_ready": MOST, "overflow": "hold"},
    "bytes": {"max_bytes": 100_000},
    "flooded": {"max_ready": 100},
}
_numbers = count()


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    doors = {"frontend": ANY_PORT, "backend": ANY_PORT}
    devices = [{"kind": "queue", "queue": "asked", **doors}, {"kind": "streamer", "queue": "pushed", **doors}]
    queues = {f"{name}-{n}": bounds for name, bounds in BOUNDS.items() for n in range(16)}
    with serving(mongo_uri, devices, queues=queues, poll=0.5) as broker:
        yield broker
        assert "Traceback" not in broker.process.log_text()


@pytest.fixture
def names() -> dict[str, str]:
    """A queue of this test's own with each of the bounds."""
    number = next(_numbers)
    return {name: f"{name}-{number}" for name in BOUNDS}


def ready(broker: BrokerUnderTest, queue: str) -> int:
    return broker.counts(queue)["ready"]


def until_full(producer: Producer, queue: str, payload: bytes) -> Iterator[str]:
    """Push until that is refused; the ids of those that were not."""
    with suppress(QueueFullError):
        while True:
            receipt = producer.push(queue, payload)
            receipt.wait(TIMEOUT)
            yield receipt.id


def work_off(broker: BrokerUnderTest, queue: str, jobs: int) -> set[bytes]:
    """Let a worker take all; their payloads, each of which came once."""
    seen: list[bytes] = []
    with Worker(queue, lambda job: seen.append(job.payload), prefetch=500, endpoint=broker.doors["smq"]):
        wait_until(lambda: len(seen) >= jobs, what=f"{jobs} jobs of {queue}, not {len(seen)}")
        wait_until(lambda: not broker.counts(queue), what="their commits")
    assert len(seen) == jobs
    return set(seen)


def test_the_library_hears_which_jobs_had_no_room(broker: BrokerUnderTest, names: dict[str, str]) -> None:
    queue, before = names["refuses"], broker.ask_counters()["counters"]
    with Producer(endpoint=broker.doors["smq"]) as producer:
        producer.push(queue, b"first").wait(TIMEOUT)
        producer.push(queue, b"second").wait(TIMEOUT)
        receipts = [producer.push(queue, b"%d" % number) for number in range(MOST + 1)]
        for receipt in receipts[: MOST - 2]:
            receipt.wait(TIMEOUT)
        for receipt in receipts[MOST - 2 :]:
            with pytest.raises(QueueFullError, match=f"max_ready = {MOST}"):
                receipt.wait(TIMEOUT)
    assert ready(broker, queue) == MOST
    assert broker.admin.queues.get(queue).full == 1
    after = broker.ask_counters()["counters"]
    assert after["refused"] - before.get("refused", 0) == 3
    assert after["queue_full"] > before.get("queue_full", 0)


def test_there_is_room_again_when_a_worker_takes_some(broker: BrokerUnderTest, names: dict[str, str]) -> None:
    queue = names["refuses"]
    with Producer(endpoint=broker.doors["smq"]) as producer:
        for _ in range(3):
            for number in range(MOST):
                producer.push(queue, b"%d" % number).wait(TIMEOUT)
            with pytest.raises(QueueFullError):
                producer.push(queue, b"no").wait(TIMEOUT)
            work_off(broker, queue, MOST)
            wait_until(lambda: not broker.admin.queues.get(queue).full, what="room")


def test_one_who_asks_is_refused_as_queue_full(broker: BrokerUnderTest, names: dict[str, str]) -> None:
    door = broker.process.devices[0]["frontend"][0]
    queue = names["refuses"].encode()
    asker = broker.socket(zmq.DEALER, door)
    for number in range(MOST + 2):
        asker.send_multipart([b"%d" % number, b"", queue, b'{"reply": "accepted"}', b"x"])
    answers = [receive(asker) for _ in range(MOST + 2)]
    refused = {frames[0]: code(frames[2:]) for frames in answers if frames[2] == b"ERROR"}
    assert refused == {b"%d" % number: "QUEUE_FULL" for number in (MOST, MOST + 1)}
    assert ready(broker, queue.decode()) == MOST


def test_large_jobs_fill_a_queue_by_their_bytes(broker: BrokerUnderTest, names: dict[str, str]) -> None:
    queue = names["bytes"]
    with Producer(endpoint=broker.doors["smq"]) as producer:
        stored = list(until_full(producer, queue, bytes(10_000)))
        assert 9 <= len(stored) <= 10  # one that comes while it is counted may count twice
        with pytest.raises(QueueFullError, match="max_bytes = 100000"):
            producer.push(queue, bytes(10_000)).wait(TIMEOUT)
        work_off(broker, queue, len(stored))
        wait_until(lambda: not broker.admin.queues.get(queue).full, what="room")
        producer.push(queue, bytes(10_000)).wait(TIMEOUT)


def test_what_is_counted_at_the_start_fills_a_queue(broker: BrokerUnderTest, names: dict[str, str]) -> None:
    queue = names["refuses"]
    with Producer(endpoint=broker.doors["smq"]) as producer:
        for _ in range(MOST):
            producer.push(queue, b"x").wait(TIMEOUT)
    broker.process.terminate()
    broker.process.restart()
    with Producer(endpoint=broker.doors["smq"]) as producer, pytest.raises(QueueFullError):
        producer.push(queue, b"no").wait(TIMEOUT)


def test_there_is_room_again_when_an_order_makes_it(broker: BrokerUnderTest, names: dict[str, str]) -> None:
    queue = names["refuses"]
    with Producer(endpoint=broker.doors["smq"]) as producer:
        # Given a full queue, of which the broker has counted all that happened
        for number in range(MOST):
            producer.push(queue, b"%d" % number).wait(TIMEOUT)
        broker.admin.queues.get(queue)
        with pytest.raises(QueueFullError):
            producer.push(queue, b"no").wait(TIMEOUT)
        assert broker.admin.queues.purge(queue, "ready").result() == MOST
        # Then, though nobody asks for its counts and no worker comes
        wait_until(lambda: any(until_full(producer, queue, b"again")), what="room")


@pytest.mark.full
def test_a_push_socket_waits_and_others_do_not(broker: BrokerUnderTest, names: dict[str, str]) -> None:
    door, queue, other = broker.process.devices[1]["frontend"][0], names["flooded"], names["bytes"]
    flood = broker.socket(zmq.PUSH, door, linger=TIMEOUT_MS)
    for number in range(FLOOD):
        flood.send_multipart([queue.encode(), b"%d" % number])
        if not flood.poll(500, zmq.POLLOUT):
            break
    sent = number + 1
    # Then: what one read brings came in besides, and no more
    wait_until(lambda: broker.admin.queues.get(queue).full, what="a full queue")
    assert 100 <= ready(broker, queue) < min(sent, FLOOD // 2)
    broker.push(door, other.encode(), b"goes in")
    broker.await_count(other, "ready", 1)
    # And all of it comes when somebody works
    assert work_off(broker, queue, sent) == {b"%d" % number for number in range(sent)}


def test_the_library_waits_where_the_queue_says_so(broker: BrokerUnderTest, names: dict[str, str]) -> None:
    queue, jobs = names["holds"], 10 * MOST
    with Producer(endpoint=broker.doors["smq"]) as producer, Producer(endpoint=broker.doors["smq"]) as free:
        producer.push(queue, b"0").wait(TIMEOUT)
        for number in range(1, MOST):
            producer.push(queue, b"%d" % number).wait(TIMEOUT)
        waiting = [producer.push(queue, b"%d" % number) for number in range(MOST, jobs)]
        with pytest.raises(TimeoutError):
            waiting[-1].wait(0.5)
        free.push(names["bytes"], b"goes in").wait(TIMEOUT)
        assert ready(broker, queue) < jobs
        assert work_off(broker, queue, jobs) == {b"%d" % number for number in range(jobs)}
        for receipt in waiting:
            receipt.wait(TIMEOUT)


def test_a_clean_stop_takes_in_what_is_in_the_sockets(broker: BrokerUnderTest, names: dict[str, str]) -> None:
    door, queue, jobs = broker.process.devices[1]["frontend"][0], names["flooded"], 3000
    flood = broker.socket(zmq.PUSH, door, sndhwm=jobs + 1, linger=TIMEOUT_MS)
    for number in range(jobs):
        flood.send_multipart([queue.encode(), bytes(10) + b"%d" % number])
    wait_until(lambda: broker.admin.queues.get(queue).full, what="a full queue")
    assert ready(broker, queue) < jobs
    assert broker.process.terminate() == 0
    assert ready(broker, queue) == jobs
    broker.process.restart()


TIMEOUT_MS: Any = int(TIMEOUT * 1000)
