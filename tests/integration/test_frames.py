"""What producers may send: the three forms of a job, and every header."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgpack
import pytest
import zmq

from support.broker_under_test import AT_ONCE, BrokerUnderTest, serving, spare
from support.raw_sockets import receive
from support.waiting import wait_until


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, spare(pop=16, pop_full=8, ask_full=4, ask=4), poll=0.5, queues=AT_ONCE) as broker:
        yield broker


def in_json(**headers: Any) -> bytes:
    return json.dumps(headers).encode()


def test_a_job_of_one_frame_goes_to_the_queue_of_the_device(broker: BrokerUnderTest) -> None:
    doors = broker.take("pop")
    worker = broker.socket(zmq.PULL, doors.back)
    broker.push(doors.front, b"work")
    assert receive(worker) == [b"work"]


def test_a_job_of_two_frames_goes_to_the_queue_it_names(broker: BrokerUnderTest) -> None:
    doors, other = broker.take("pop"), broker.take("pop")
    worker = broker.socket(zmq.PULL, other.back)
    broker.push(doors.front, other.queue.encode(), b"work")
    assert receive(worker) == [b"work"]
    assert broker.counts(doors.queue)["ready"] == 0


def test_a_job_of_three_frames_has_headers(broker: BrokerUnderTest) -> None:
    doors, other = broker.take("pop"), broker.take("pop_full")
    worker = broker.socket(zmq.PULL, other.back)
    broker.push(doors.front, other.queue.encode(), in_json(id="three"), b"work")
    job_id, _, payload = receive(worker)
    assert (job_id, payload) == (b"three", b"work")


@pytest.mark.parametrize("rest", [[b"work"], [b"", b"work"], [b"{}", b"work"]])
def test_an_empty_queue_frame_means_the_devices_queue(broker: BrokerUnderTest, rest: list[bytes]) -> None:
    doors = broker.take("pop")
    worker = broker.socket(zmq.PULL, doors.back)
    broker.push(doors.front, b"", *rest)
    assert receive(worker) == [b"work"]


def test_an_empty_payload_is_a_job(broker: BrokerUnderTest) -> None:
    doors = broker.take("pop")
    worker = broker.socket(zmq.PULL, doors.back)
    broker.push(doors.front, b"")
    assert receive(worker) == [b""]


def test_a_push_to_an_unknown_queue_makes_it(broker: BrokerUnderTest) -> None:
    doors = broker.take("pop")
    broker.push(doors.front, b"never.heard_of-it", b"work")
    broker.await_count("never.heard_of-it", "ready", 1)


@pytest.mark.parametrize("encode", [lambda headers: json.dumps(headers).encode(), msgpack.packb])
def test_the_users_own_headers_reach_the_worker(broker: BrokerUnderTest, encode: Any) -> None:
    doors = broker.take("pop_full")
    worker = broker.socket(zmq.PULL, doors.back)
    own = {"trace": "a-1", "list": [1, 2.5, None, True], "deep": {"ä": {}}}
    broker.push(doors.front, b"", encode({"id": "own", "priority": 7, "headers": own}), b"work")
    job_id, headers, payload = receive(worker)
    assert (job_id, payload) == (b"own", b"work")
    assert json.loads(headers) == {"attempt": 1, "priority": 7, "headers": own}


def test_a_job_without_an_id_gets_one_and_ids_sort_by_time(broker: BrokerUnderTest) -> None:
    doors = broker.take("pop_full")
    worker = broker.socket(zmq.PULL, doors.back)
    broker.push(doors.front, b"first")
    first = receive(worker)
    broker.push(doors.front, b"second")
    second = receive(worker)
    assert first[0] < second[0]


def test_the_same_id_twice_is_one_job(broker: BrokerUnderTest) -> None:
    doors = broker.take("pop_full")
    producer = broker.socket(zmq.PUSH, doors.front)
    producer.send_multipart([b"", in_json(id="same"), b"once"])
    broker.await_count(doors.queue, "ready", 1)
    producer.send_multipart([b"", in_json(id="same"), b"again"])
    wait_until(lambda: broker.counter("repeated"))
    (job,) = broker.admin.peek(doors.queue)
    assert (job["id"], job["payload"]) == ("same", b"once")


def test_higher_priority_goes_first_and_equals_in_order(broker: BrokerUnderTest) -> None:
    doors = broker.take("pop")
    producer = broker.socket(zmq.PUSH, doors.front)
    for priority, payload in ((0, b"low"), (255, b"high"), (5, b"mid 1"), (5, b"mid 2")):
        producer.send_multipart([b"", in_json(priority=priority), payload])
    broker.await_count(doors.queue, "ready", 4)
    worker = broker.socket(zmq.PULL, doors.back)
    assert [receive(worker) for _ in range(4)] == [[b"high"], [b"mid 1"], [b"mid 2"], [b"low"]]


def _after_delay(when: float) -> dict[str, Any]:
    return {"delay": when - time.time()}


def _at_unix_seconds(when: float) -> dict[str, Any]:
    return {"not_before": when}


def _at_rfc3339(when: float) -> dict[str, Any]:
    return {"not_before": datetime.fromtimestamp(when, UTC).isoformat()}


def _at_rfc3339_zulu(when: float) -> dict[str, Any]:
    return {"not_before": datetime.fromtimestamp(when, UTC).isoformat().replace("+00:00", "Z")}


@pytest.mark.parametrize("headers", [_after_delay, _at_unix_seconds, _at_rfc3339, _at_rfc3339_zulu])
def test_a_delayed_job_is_delivered_when_due_and_not_before(broker: BrokerUnderTest, headers: Any) -> None:
    doors = broker.take("pop")
    worker = broker.socket(zmq.PULL, doors.back)
    due = time.time() + 0.6
    broker.push(doors.front, b"", in_json(**headers(due)), b"work")
    assert receive(worker) == [b"work"]
    assert time.time() >= due - 0.02


def test_a_job_is_not_delivered_after_its_time_to_live(broker: BrokerUnderTest) -> None:
    doors = broker.take("pop")
    producer = broker.socket(zmq.PUSH, doors.front)
    producer.send_multipart([b"", in_json(ttl=0.2), b"stale"])
    producer.send_multipart([b"", in_json(id="fresh", delay=0.4), b"fresh"])
    # When the second one is due, the first one's time is over
    wait_until(lambda: "fresh" in {job.id for job in broker.admin.jobs.list(doors.queue)})
    worker = broker.socket(zmq.PULL, doors.back)
    assert receive(worker) == [b"fresh"]


def test_max_attempts_of_a_job_decides_when_it_is_dead(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask_full")
    worker = broker.socket(zmq.REP, doors.back)
    broker.ask(doors.front, b"", in_json(id="weak", max_attempts=2, reply="accepted"), b"work")
    for attempt in (1, 2):
        _, headers, _ = receive(worker)
        assert json.loads(headers)["attempt"] == attempt
        worker.send_multipart([b"ROLLBACK", b"not today"])
    letter = broker.dead_letter(doors.queue)
    assert (letter["id"], letter["attempts"], letter["reason"]) == ("weak", 2, "not today")


def test_visibility_timeout_of_a_job_gives_it_to_another_worker(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    silent = broker.socket(zmq.REP, doors.back)
    broker.ask(doors.front, b"", in_json(visibility_timeout=0.3, reply="accepted"), b"work")
    assert receive(silent) == [b"work"]
    other = broker.socket(zmq.REP, doors.back)
    assert receive(other) == [b"work"]
    other.send(b"done")
    broker.await_count(doors.queue, "reserved", 0)


def test_what_a_push_sends_unreadable_is_a_dead_letter_with_its_reason(broker: BrokerUnderTest) -> None:
    doors = broker.take("pop")
    broker.push(doors.front, b"", b'{"priorty": 1}', b"the payload")
    letter = broker.dead_letter(doors.queue)
    assert letter["reason"].startswith("BAD_HEADERS: unknown header 'priorty'")
    assert letter["payload"] == b"the payload"
    assert letter["raw_headers"] == b'{"priorty": 1}'
    assert letter["size"] == len(b'{"priorty": 1}the payload')
