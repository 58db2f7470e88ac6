"""Sockets with ``ZMQ_PROBE_ROUTER`` begin with an empty message, which is no job, no question, no answer."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import zmq

from sluicemq import Publisher
from sluicemq.protocol import wire
from support.broker_under_test import ANY_PORT, BrokerUnderTest, serving, spare
from support.raw_sockets import receive
from support.waiting import wait_until

REPLAYED = {
    "kind": "forwarder",
    "stream": "news",
    "frontend": ANY_PORT,
    "backend": ANY_PORT,
    "replay": ANY_PORT,
}


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, [*spare(ask=4), REPLAYED]) as broker:
        yield broker


@pytest.fixture
def broker(shared: BrokerUnderTest) -> Iterator[BrokerUnderTest]:
    """A broker that has counted one probe more after the test, and nothing that could not be read."""
    before = shared.counter("probes")
    yield shared
    shared.close_sockets()
    assert shared.counter("probes") == before + 1
    assert not shared.counter("unreadable")
    assert not shared.counter("bad_verdicts")


def probing(broker: BrokerUnderTest, kind: int, address: str) -> zmq.Socket[bytes]:
    """A socket that sends a probe when it is connected; the broker has it when this returns."""
    before = broker.counter("probes")
    plain = broker.socket(kind, address, probe_router=1)
    wait_until(lambda: broker.counter("probes") > before, what="a probe")
    return plain


def test_each_reply_to_a_probing_req_is_that_of_its_own_question(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    worker = broker.socket(zmq.REP, doors.back)
    asker = probing(broker, zmq.REQ, doors.front)
    for question in (b"first", b"second", b"third"):
        asker.send(question)
        worker.send(receive(worker)[0].upper())
        assert receive(asker) == [question.upper()]


def test_a_probing_dealer_gets_its_answers_and_nothing_else(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    worker = broker.socket(zmq.REP, doors.back)
    asker = probing(broker, zmq.DEALER, doors.front)
    asker.send_multipart([b"1", b"", b"question"])
    worker.send(receive(worker)[0].upper())
    assert receive(asker) == [b"1", b"", b"QUESTION"]


@pytest.mark.parametrize("kind", [zmq.REQ, zmq.DEALER])
def test_each_answer_to_a_probing_asker_of_the_replay_door_is_that_of_its_own_question(
    broker: BrokerUnderTest, kind: int
) -> None:
    with Publisher(endpoint=broker.doors["smq"]) as publisher:
        publisher.publish("news", b"topic", b"what was")
    [replay] = [address for device in broker.process.devices for address in device.get("replay", ())]
    asker = probing(broker, kind, replay)
    for after in (100, 200):
        asker.send_multipart([*([b""] if kind == zmq.DEALER else []), b"news", b'{"after": %d}' % after])
        about = next(frame for frame in receive(asker) if frame)
        assert json.loads(about)["after"] == after


def test_a_probing_client_of_the_library_s_door_is_greeted(broker: BrokerUnderTest) -> None:
    dealer = probing(broker, zmq.DEALER, broker.doors["smq"])
    dealer.send_multipart(wire.encode(wire.PING, 7))
    assert wire.decode(receive(dealer)) == (wire.OK, 7, [None])


@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.ROUTER])
def test_a_probing_worker_has_not_answered_the_job_it_is_sent(broker: BrokerUnderTest, kind: int) -> None:
    doors = broker.take("ask")
    asker = broker.socket(zmq.REQ, doors.front)
    asker.send(b"question")
    broker.await_count(doors.queue, "ready", 1)
    worker = probing(broker, kind, doors.back)
    job = receive(worker)
    worker.send_multipart([*job[:-1], b"answer"])
    assert job[-1] == b"question"
    assert receive(asker) == [b"answer"]
