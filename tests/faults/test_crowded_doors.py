"""One client that asks, errs or names queues without end: everybody else goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from sluicemq import Client, Publisher
from sluicemq.protocol import wire
from sluicemq_broker.doors.requests import MOST_WAITING, WAITING_PART
from support.broker_process import BrokerProcess
from support.broker_under_test import ANY_PORT, BrokerUnderTest, serving, spare
from support.ports import tcp
from support.raw_sockets import receive
from support.waiting import wait_until

#: Takes many connections and seconds each: by default test_bounds and the unit tests of rates see the rule.
pytestmark = pytest.mark.full

MANY = 12_000  # questions, more than the high-water mark of a device
#: Questions that wait of one asker alone, before it is read no more: a part of what they leave free, 990.
ITS_SHARE = int(MOST_WAITING * WAITING_PART / (1 + WAITING_PART))


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, spare(ask=3, pop=2)) as broker:
        yield broker


def test_a_client_that_asks_without_end_and_leaves_locks_nobody_out(broker: BrokerUnderTest) -> None:
    # Given a DEALER that asks more than all marks allow, and nobody who works
    doors = broker.take("ask")
    greedy = broker.socket(zmq.DEALER, doors.front, sndhwm=0)
    received = broker.counter("received")
    for number in range(MANY):
        greedy.send_multipart([b"%d" % number, b"", b"question"])
    wait_until(lambda: broker.counter("received") - received >= ITS_SHARE)
    # Then others are served, while it is there
    accepted = [b"", b'{"reply": "accepted"}', b"work"]
    assert broker.ask(doors.front, *accepted, seconds=60)[0] != b"ERROR"
    other = broker.socket(zmq.REQ, doors.front)
    other.send_multipart([b"elsewhere", b"{}", b"question"])
    wait_until(lambda: broker.counts("elsewhere")["ready"] == 1)
    # And when it has gone
    greedy.close()
    assert broker.ask(doors.front, *accepted, seconds=60)[0] != b"ERROR"


def test_a_client_that_waits_for_many_answers_gets_all_of_them(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    asker = broker.socket(zmq.DEALER, doors.front, sndhwm=0)
    for number in range(3000):
        asker.send_multipart([b"%d" % number, b"", b"question"])
    workers = [broker.socket(zmq.REP, doors.back) for _ in range(4)]
    poller = zmq.Poller()
    for worker in (asker, *workers):
        poller.register(worker, zmq.POLLIN)
    answered: set[bytes] = set()
    while len(answered) < 3000:
        ready = [socket for socket, _ in poller.poll(60_000)]
        assert ready
        for socket in ready:
            frames = socket.recv_multipart()
            if socket is asker:
                answered.add(frames[0])
            else:
                socket.send(b"answer")


def test_one_that_sends_only_malformed_questions_is_cut_alone(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    stranger = broker.socket(zmq.DEALER, doors.front, sndhwm=0)
    for _ in range(1000):
        stranger.send_multipart([b"no delimiter"])
    broker.process.wait_log("messages within 60 s that can't be used")
    assert broker.ask(doors.front, b"", b'{"reply": "accepted"}', b"work", seconds=60)[0] != b"ERROR"


@pytest.mark.parametrize(("device", "broker", "made"), [(False, True, False), (True, False, True)])
def test_each_device_says_for_itself_whether_its_messages_make_queues(
    mongo_uri: str, database: str, *, device: bool, broker: bool, made: bool
) -> None:
    settings: dict[str, Any] = {"kind": "queue", "frontend": ANY_PORT, "auto_create": device}
    config = {"devices": [settings], "broker": {"auto_create": broker}}
    with (
        BrokerProcess(mongo_uri, database, config=config) as process,
        Client(endpoint=process.doors["smq"]) as admin,
    ):
        with zmq.Context() as context, context.socket(zmq.REQ) as asker:
            asker.linger = 0
            asker.connect(process.doors["req"])
            asker.send_multipart([b"new", b'{"reply": "accepted"}', b"work"])
            answer = receive(asker)
        assert (answer[0] != b"ERROR") is made
        assert ("new" in [queue.name for queue in admin.queues.list()]) is made


def test_a_hundred_that_ask_for_counts_and_leave_keep_no_answer_from_others(broker: BrokerUnderTest) -> None:
    # Given sessions that ask far more than can be counted, and read nothing
    crowd = [broker.smq() for _ in range(100)]
    for session in crowd:
        for number in range(200):
            session.plain.send_multipart(wire.encode((wire.STATS, wire.QUEUES)[number % 2], number + 1))
    first = crowd[0].answer(1)
    # Then others are told, while these wait, and when they have gone
    assert first.verb == wire.OK
    assert broker.smq().ask(wire.STATS).verb == wire.OK
    for session in crowd:
        session.plain.close()
    assert broker.smq().ask(wire.STATS).verb == wire.OK


def test_forty_that_look_for_nothing_in_a_long_stream_hold_up_no_question_of_another(mongo_uri: str) -> None:
    # Given a replay door, and a crowd that asks for a topic that is not there, again and again
    device = {"kind": "forwarder", "frontend": ANY_PORT, "backend": ANY_PORT, "stream": "short"}
    with serving(mongo_uri, [{**device, "replay": tcp()}]) as broker:
        with Publisher(endpoint=broker.doors["smq"]) as publisher:
            publisher.publish("short", b"topic", b"message")
            for number in range(4000):
                publisher.publish("long", b"topic.%d" % number, b"message")
            publisher.flush(60)
        address = next(row["replay"][0] for row in broker.process.devices if row.get("replay"))
        crowd = [broker.socket(zmq.DEALER, address, rcvhwm=0) for _ in range(40)]
        honest = broker.socket(zmq.REQ, address)
        for socket in crowd:
            for number in range(50):
                socket.send_multipart([b"", b"long", b'{"topic": "never", "limit": %d}' % (number + 1)])
        wait_until(lambda: _answers(crowd) > 0)
        # When another asks
        before: list[int] = []
        for _ in range(5):
            _answers(crowd)
            honest.send_multipart([b"short", b'{"limit": 1}'])
            assert receive(honest)[0].startswith(b"{")
            before.append(_answers(crowd))
        # Then it does not wait until each of them was answered, again and again
        assert sum(before) < 300


def _answers(crowd: list[zmq.Socket[bytes]]) -> int:
    """How many answers have come since the last call, about."""
    came = 0
    for socket in crowd:
        while socket.poll(0):
            socket.recv_multipart()
            came += 1
    return came


def test_what_a_client_asks_or_orders_ends_with_it_what_it_pushes_is_stored(broker: BrokerUnderTest) -> None:
    library, greedy = broker.smq(), broker.smq()
    library.ask(wire.PUSH, "purged", [[None, b"work", None]])
    for number in range(900):
        greedy.plain.send_multipart(wire.encode(wire.STATS, number + 1))
    greedy.plain.send_multipart(wire.encode(wire.PURGE, 1000, "purged", "ready"))
    greedy.plain.send_multipart(wire.encode(wire.PUSH, 1001, "pushed", [[None, b"work", None]]))
    greedy.answer(1)
    greedy.plain.close()
    wait_until(lambda: broker.counts("pushed")["ready"] == 1)
    for _ in range(3):  # its own would have been answered meanwhile
        library.ask(wire.STATS)
    assert broker.counts("purged")["ready"] == 1


@pytest.mark.full  # a hundred queues are made, with all their indexes
def test_plain_sockets_that_name_queues_leave_some_to_the_library(broker: BrokerUnderTest) -> None:
    """The last one here: the broker has many queues from now on, and each takes it some time."""
    doors = broker.take("pop")
    producer = broker.socket(zmq.PUSH, doors.front, sndhwm=0)
    for number in range(1000):
        producer.send_multipart([b"typing-error-%d" % number, b"work"])
    wait_until(lambda: broker.counts(doors.queue)["dead"])
    # It takes far longer than that to make a thousand at ten a second.
    (letter, *_) = broker.collection(doors.queue).find({"state": "dead"})
    assert letter["errors"][-1]["reason"].startswith("QUEUE_FULL: queue 'typing-error-")
    made = broker.collection(doors.queue).database.list_collection_names()
    assert len(made) < 900
    answer = broker.smq().ask(b"PUSH", "honest", [[None, b"work", None]])
    assert answer.verb == b"OK"
