"""Doors of each kind: several, that connect, on unix sockets, with probes; and the FORWARDER."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from sluicemq import Publisher
from sluicemq.protocol import wire
from support.broker_under_test import ANY_PORT, BrokerUnderTest, serving, spare
from support.ports import tcp
from support.raw_sockets import receive
from support.waiting import wait_until

PRODUCER, WORKER, COMMITS, ASKER, ANSWERER = (tcp() for _ in range(5))

DEVICES: list[dict[str, Any]] = [
    {
        "kind": "streamer",
        "queue": "many",
        "ack": "explicit",
        "frontend": [ANY_PORT, ANY_PORT],
        "backend": [ANY_PORT, ANY_PORT],
        "commit": [ANY_PORT, ANY_PORT],
    },
    {
        "kind": "queue",
        "queue": "many_asked",
        "frontend": [ANY_PORT, ANY_PORT],
        "backend": [ANY_PORT, ANY_PORT],
    },
    {
        "kind": "streamer",
        "queue": "dialled",
        "ack": "explicit",
        "frontend": f">{PRODUCER}",
        "backend": f">{WORKER}",
        "commit": f">{COMMITS}",
    },
    {"kind": "queue", "queue": "dialled_asked", "frontend": f">{ASKER}", "backend": f">{ANSWERER}"},
    {"kind": "forwarder", "frontend": [ANY_PORT, ANY_PORT], "backend": [ANY_PORT, ANY_PORT]},
]


@pytest.fixture(scope="module")
def shared(mongo_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerUnderTest]:
    folder = tmp_path_factory.mktemp("doors")
    local = {
        "kind": "queue",
        "queue": "local",
        "frontend": f"@ipc://{folder}/asked",
        "backend": f"ipc://{folder}/work",
    }
    with serving(mongo_uri, [*DEVICES, local]) as broker:
        yield broker


def device(broker: BrokerUnderTest, queue: str) -> dict[str, Any]:
    return next(row for row in broker.process.devices if row["queue"] == queue)


def test_every_producer_door_and_every_worker_door_of_a_queue_is_open(broker: BrokerUnderTest) -> None:
    doors = device(broker, "many")
    workers = [broker.socket(zmq.PULL, address) for address in doors["backend"]]
    producers = [broker.socket(zmq.PUSH, address) for address in doors["frontend"]]
    wait_until(lambda: broker.workers("many") == 2)
    for producer in producers:
        producer.send(b"work")
    receipts = [receive(worker)[0] for worker in workers]  # prefetch is 1: each has one
    for address, receipt in zip(doors["commit"], receipts, strict=True):
        broker.push(address, b"COMMIT", receipt)
    broker.await_count("many", "reserved", 0)
    assert broker.counts("many")["ready"] == 0


def test_an_answer_goes_back_through_the_door_where_it_was_asked_for(broker: BrokerUnderTest) -> None:
    doors = device(broker, "many_asked")
    askers = [broker.socket(zmq.REQ, address) for address in doors["frontend"]]
    workers = [broker.socket(zmq.REP, address) for address in doors["backend"]]
    wait_until(lambda: broker.workers("many_asked") == 2)
    for number, asker in enumerate(askers):
        asker.send(b"%d" % number)
    # Each has one before any answers: else the first may get both.
    jobs = [receive(worker)[0] for worker in workers]
    for worker, job in zip(workers, jobs, strict=True):
        worker.send(b"result of " + job)
    assert [receive(asker) for asker in askers] == [[b"result of 0"], [b"result of 1"]]


def test_a_streamer_whose_doors_connect_serves_those_that_bind(broker: BrokerUnderTest) -> None:
    commits = broker.socket(zmq.PUSH, COMMITS, bind=True)
    worker = broker.socket(zmq.PULL, WORKER, bind=True)
    producer = broker.socket(zmq.PUSH, PRODUCER, bind=True)
    producer.send(b"work")
    receipt, payload = receive(worker)
    assert payload == b"work"
    commits.send_multipart([b"COMMIT", receipt])
    broker.await_count("dialled", "reserved", 0)


def test_a_queue_whose_doors_connect_serves_clients_and_workers_that_bind(broker: BrokerUnderTest) -> None:
    asker = broker.socket(zmq.REQ, ASKER, bind=True)
    worker = broker.socket(zmq.REP, ANSWERER, bind=True)
    asker.send(b"work")
    assert receive(worker) == [b"work"]
    worker.send(b"done")
    assert receive(asker) == [b"done"]


def test_a_door_that_connects_finds_a_worker_that_was_away(broker: BrokerUnderTest) -> None:
    for answer in (b"before", b"after"):
        worker = broker.socket(zmq.REP, ANSWERER, bind=True)
        asker = broker.socket(zmq.REQ, ASKER, bind=True)
        asker.send(b"work")
        assert receive(worker) == [b"work"]
        worker.send(answer)
        assert receive(asker) == [answer]
        worker.unbind(ANSWERER)
        broker.close_sockets()


def test_doors_can_be_unix_sockets(broker: BrokerUnderTest) -> None:
    doors = device(broker, "local")
    asker, worker = broker.socket(zmq.REQ, doors["frontend"][0]), broker.socket(zmq.REP, doors["backend"][0])
    asker.send(b"work")
    assert receive(worker) == [b"work"]
    worker.send(b"done")
    assert receive(asker) == [b"done"]
    assert Path(doors["frontend"][0].removeprefix("ipc://")).is_socket()


def _subscribed(
    broker: BrokerUnderTest, address: str, topic: bytes, publishers: list[zmq.Socket[bytes]]
) -> Any:
    """A subscriber whose subscription has reached every publisher."""
    subscriber = broker.socket(zmq.SUB, address)
    subscriber.subscribe(topic)
    for publisher in publishers:
        assert receive(publisher) == [b"\x01" + topic]  # an XPUB hears of subscriptions
    return subscriber


def test_a_forwarder_relays_from_every_publisher_to_who_subscribed(broker: BrokerUnderTest) -> None:
    doors = device(broker, "")
    publishers = [broker.socket(zmq.XPUB, address) for address in doors["frontend"]]
    red, all_of_it = (
        _subscribed(broker, address, topic, publishers)
        for address, topic in zip(doors["backend"], (b"red", b""), strict=True)
    )
    for publisher in publishers:
        publisher.send_multipart([b"red.1", b"a"])
        publisher.send_multipart([b"blue.1", b"b"])
    assert [receive(red) for _ in range(2)] == [[b"red.1", b"a"]] * 2
    assert sorted(receive(all_of_it) for _ in range(4)) == [[b"blue.1", b"b"]] * 2 + [[b"red.1", b"a"]] * 2
    assert not red.poll(0)


REPLAYED = {
    "kind": "forwarder",
    "stream": "news",
    "frontend": ANY_PORT,
    "backend": ANY_PORT,
    "replay": ANY_PORT,
}


@pytest.fixture(scope="module")
def probed_doors(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, [*spare(ask=4), REPLAYED]) as broker:
        yield broker


@pytest.fixture
def probed_broker(probed_doors: BrokerUnderTest) -> Iterator[BrokerUnderTest]:
    """A broker that has counted one probe more after the test, and nothing that could not be read."""
    before = probed_doors.counter("probes")
    yield probed_doors
    probed_doors.close_sockets()
    assert probed_doors.counter("probes") == before + 1
    assert not probed_doors.counter("unreadable")
    assert not probed_doors.counter("bad_verdicts")


def probing(broker: BrokerUnderTest, kind: int, address: str) -> zmq.Socket[bytes]:
    """A socket that sends a probe when it is connected; the broker has it when this returns."""
    before = broker.counter("probes")
    plain = broker.socket(kind, address, probe_router=1)
    wait_until(lambda: broker.counter("probes") > before, what="a probe")
    return plain


def test_each_reply_to_a_probing_req_is_that_of_its_own_question(probed_broker: BrokerUnderTest) -> None:
    doors = probed_broker.take("ask")
    worker = probed_broker.socket(zmq.REP, doors.back)
    asker = probing(probed_broker, zmq.REQ, doors.front)
    for question in (b"first", b"second", b"third"):
        asker.send(question)
        worker.send(receive(worker)[0].upper())
        assert receive(asker) == [question.upper()]


def test_a_probing_dealer_gets_its_answers_and_nothing_else(probed_broker: BrokerUnderTest) -> None:
    doors = probed_broker.take("ask")
    worker = probed_broker.socket(zmq.REP, doors.back)
    asker = probing(probed_broker, zmq.DEALER, doors.front)
    asker.send_multipart([b"1", b"", b"question"])
    worker.send(receive(worker)[0].upper())
    assert receive(asker) == [b"1", b"", b"QUESTION"]


@pytest.mark.parametrize("kind", [zmq.REQ, zmq.DEALER])
def test_each_answer_to_a_probing_asker_of_the_replay_door_is_that_of_its_own_question(
    probed_broker: BrokerUnderTest, kind: int
) -> None:
    with Publisher(endpoint=probed_broker.doors["smq"]) as publisher:
        publisher.publish("news", b"topic", b"what was")
    [replay] = [address for device in probed_broker.process.devices for address in device.get("replay", ())]
    asker = probing(probed_broker, kind, replay)
    for after in (100, 200):
        asker.send_multipart([*([b""] if kind == zmq.DEALER else []), b"news", b'{"after": %d}' % after])
        about = next(frame for frame in receive(asker) if frame)
        assert json.loads(about)["after"] == after


def test_a_probing_client_of_the_library_s_door_is_greeted(probed_broker: BrokerUnderTest) -> None:
    dealer = probing(probed_broker, zmq.DEALER, probed_broker.doors["smq"])
    dealer.send_multipart(wire.encode(wire.PING, 7))
    assert wire.decode(receive(dealer)) == (wire.OK, 7, [None])


@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.ROUTER])
def test_a_probing_worker_has_not_answered_its_job(probed_broker: BrokerUnderTest, kind: int) -> None:
    doors = probed_broker.take("ask")
    asker = probed_broker.socket(zmq.REQ, doors.front)
    asker.send(b"question")
    probed_broker.await_count(doors.queue, "ready", 1)
    worker = probing(probed_broker, kind, doors.back)
    job = receive(worker)
    worker.send_multipart([*job[:-1], b"answer"])
    assert job[-1] == b"question"
    assert receive(asker) == [b"answer"]
