"""However much is published, asked of a stream, or subscribed: no turn of the hub computes for long."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import zmq

from faults.turns import MIB, attacked, slowness
from sluicemq.protocol import wire
from sluicemq.protocol.packed import pack
from support.broker_under_test import ANY_PORT, BrokerUnderTest, serving
from support.long_forms import long
from support.raw_sockets import Smq, receive
from support.waiting import TIMEOUT

DEVICE = {
    "kind": "forwarder", "stream": "prices", "frontend": ANY_PORT, "backend": ANY_PORT, "replay": ANY_PORT
}  # fmt: skip
LATEST = {"kind": "forwarder", "stream": "last", "frontend": ANY_PORT, "backend": ANY_PORT, "latest": True}
RANDOM = Random(17)
#: Different messages of one segment, each with a topic of its own.
TOPICS = [b"a.a.a.a.a.a.a.a.%d" % at for at in range(wire.MOST_PUBLISHED)]
SEGMENTS = 4


def packed(topics: list[bytes]) -> bytes:
    return b"".join(pack(topic, b"") for topic in topics)


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, [DEVICE, LATEST]) as broker:
        library = broker.smq()
        for _ in range(SEGMENTS):
            assert library.ask(wire.PUBLISH, "prices", packed(TOPICS), {}).verb == wire.OK
        yield broker


@pytest.fixture
def broker(shared: BrokerUnderTest) -> Iterator[BrokerUnderTest]:
    """The broker that the tests of this file attack."""
    with attacked(shared) as broker:
        yield broker


def patterns(count: int, words: int) -> list[bytes]:
    return [b".".join(RANDOM.choices([b"a", b"*"], k=words)) for _ in range(count)]


FILTERS: dict[str, list[bytes]] = {
    "patterns of very many words": [b".".join([b"*"] * 110 + [b"%d" % at]) for at in range(1000)],
    "as many words as there may be": patterns(34, 120),
    "many short patterns": [b"*.a.%d" % at for at in range(1000)],
    "patterns that all topics fit but for their end": [b"*.a.*.a.a.*.a.*.b%d" % at for at in range(450)],
    "patterns of every form": patterns(450, 9),
    "beginnings": [b"a.a.a.a.a.a.a.a.%d." % at for at in range(1000)],
    "topics": [b"=a.a.a.a.a.a.a.a.%d." % at for at in range(1000)],
    "none of them": [b"b.*.>"],
}


#: The two forms that are looked up and compared in different ways; others rest between turns for seconds.
SHORT = ("patterns of every form", "topics")
READ = [(pytest.param if name in SHORT else long)(wanted, id=name) for name, wanted in FILTERS.items()]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("wanted", READ)
def test_reads_of_the_library(broker: BrokerUnderTest, wanted: list[bytes]) -> None:
    readers = [broker.smq() for _ in range(4)]
    for library in readers:
        for number in range(10):
            options = {"after": 0, "topics": wanted, "wait": 0}
            library.plain.send_multipart(wire.encode(wire.READ, number + 1, "prices", options))
    for library in readers:
        for _ in range(10):  # in any order
            answer = library.next(lambda message: message.number > 0)
            assert answer.verb == wire.OK or answer.fields[0] in ("BAD_TOPIC", "UNAVAILABLE")


@pytest.mark.parametrize("wanted", READ)
def test_questions_at_the_replay_door(broker: BrokerUnderTest, wanted: list[bytes]) -> None:
    address = broker.process.devices[0]["replay"][0]
    askers = [broker.socket(zmq.DEALER, address) for _ in range(4)]
    question = json.dumps({"topics": [topic.decode() for topic in wanted]}).encode()
    for asker in askers:
        for _ in range(4):
            asker.send_multipart([b"", b"prices", question])
    for asker in askers:
        for _ in range(4):
            answer = receive(asker)
            assert answer[1] != b"ERROR" or json.loads(answer[2])["code"] == "BAD_TOPIC"


def test_a_reader_that_wants_little_is_not_held_up_by_vain_searches(broker: BrokerUnderTest) -> None:
    crowd = [broker.smq() for _ in range(30)]
    hostile = {"after": 0, "topics": patterns(34, 120), "wait": 0}
    library = broker.smq()
    for peer in crowd:
        peer.plain.send_multipart(wire.encode(wire.READ, 1, "prices", hostile))
    for _ in range(5):
        first = library.ask(wire.READ, "prices", {"after": 0, "topics": [b"=" + TOPICS[0]], "most": 1})
        assert first.fields[0]["rows"][0][3] == [0]
    assert not all(map(has_answer, crowd))  # they were first


MANY_FRAMES = b"\x01\x01t" + b"\x01\x00" * (5 * MIB) + b"\x00\x00"


@pytest.mark.full
def test_messages_of_very_many_frames_are_refused_where_they_are_published(broker: BrokerUnderTest) -> None:
    library = broker.smq()
    assert library.ask(wire.PUBLISH, "frames", MANY_FRAMES, {}).fields[0] == "BAD_FRAMES"
    for _ in range(10):
        part = b"\x01\x01t" + b"\x01\x00" * 60_000 + b"\x00\x00"
        assert library.ask(wire.PUBLISH, "frames", part, {}).verb == wire.OK
    asker = broker.socket(zmq.REQ, broker.process.devices[0]["replay"][0])
    after = count = 0
    while count < 10:
        asker.send_multipart([b"frames", json.dumps({"after": after}).encode()])
        about = json.loads(receive(asker)[0])
        after, count = about["after"], count + about["count"]
    assert after == 10


def test_as_many_messages_as_one_answer_of_the_replay_door_has(broker: BrokerUnderTest) -> None:
    asker = broker.socket(zmq.REQ, broker.process.devices[0]["replay"][0])
    after = 0
    while after < SEGMENTS * len(TOPICS):
        asker.send_multipart([b"prices", json.dumps({"after": after, "limit": 10_000}).encode()])
        about = json.loads(receive(asker)[0])
        assert about["count"] == about["after"] - after > 0
        after = about["after"]


def test_very_many_subscriptions_to_the_latest_of_very_many_topics(broker: BrokerUnderTest) -> None:
    library = broker.smq()
    for part in range(10):
        topics = [b"t%d.%d" % (part, at) for at in range(wire.MOST_PUBLISHED)]
        assert library.ask(wire.PUBLISH, "last", packed(topics), {}).verb == wire.OK
    late = broker.socket(zmq.SUB, broker.process.devices[1]["backend"][0], rcvhwm=0)
    for at in range(2000):
        late.subscribe(b"t%d" % (at % 10) + b"." * (at % 2) + b"9" * (at // 1000))
        late.subscribe(b"nothing.%d" % at)
    assert receive(late)[0].startswith(b"t")


def has_answer(library: Smq) -> bool:
    while library.plain.poll(0):
        if wire.decode(library.plain.recv_multipart()).number == 1:
            return True
    return False


WATCHED = """
import sys
from sluicemq_devices import __main__ as device
import json, signal, gevent
from sluicemq_broker.runtime import Counters, Turns

turns = Turns(Counters())
turns.start()
gevent.signal_handler(signal.SIGUSR1, lambda: print(json.dumps(turns.take()), flush=True))
sys.exit(device.main())
"""
#: Seconds: what is wanted. It took 0.006 on the machine of :func:`slowness`, and more than this where Python
#: looked at all objects, or all that messages need was learnt at once.
LONGEST = 0.02
#: So many times 100 topics that begin each other: of 100,000 Python would not look at all objects yet.
CHAINS, LENGTHS = 1700, 100
MANY_TOPICS = [
    b"%04d/" % chain + b"x" * length for chain in range(CHAINS) for length in range(1, LENGTHS + 1)
]
DEVICE_PORT = "tcp://127.0.0.1:0"


class Device:
    """A forwarder alone, somebody who publishes, and subscribers."""

    def __init__(self) -> None:
        options = ["forwarder", DEVICE_PORT, DEVICE_PORT, "--json", "--hwm", "1000000"]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", WATCHED, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        ends = self._told()
        self._context = zmq.Context()
        self._back = ends["backend"]
        self._publisher = self._connected(zmq.XPUB, ends["frontend"])

    def subscribed(self, topics: list[bytes]) -> zmq.Socket[bytes]:
        """A subscriber, whose topics the device has."""
        subscriber = self._connected(zmq.SUB, self._back)
        for topic in topics:
            subscriber.subscribe(topic)
        self.heard(b"\1", topics)
        return subscriber

    def heard(self, verb: bytes, topics: list[bytes]) -> None:
        """The device has told the publisher so of each topic."""
        missing = set(topics)
        while missing:
            told = self._publisher.recv()
            if told[:1] == verb:
                missing.discard(told[1:])

    def publish(self, messages: list[bytes], *subscribers: zmq.Socket[bytes]) -> None:
        """Each of them gets all of it, in order."""
        for message in messages:
            self._publisher.send(message)
        for subscriber in subscribers:
            assert [subscriber.recv() for _ in messages] == messages

    def longest_turn(self) -> float:
        """Seconds that the longest turn since the last call has computed."""
        self._process.send_signal(signal.SIGUSR1)
        computed: float = self._told()[1]
        return computed

    def stop(self) -> None:
        self._context.destroy(linger=0)
        self._process.terminate()
        self._process.communicate(timeout=TIMEOUT)

    def _told(self) -> Any:
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())

    def _connected(self, kind: int, endpoint: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.sndhwm = socket.rcvhwm = 0
        socket.rcvtimeo = int(TIMEOUT * 1000)
        socket.connect(endpoint)
        return socket


@pytest.fixture
def device() -> Iterator[Device]:
    device = Device()
    yield device
    device.stop()


@pytest.mark.full
def test_a_device_alone_with_very_many_topics_computes_for_no_long_turn(device: Device) -> None:
    # Given a subscriber of very many topics, which began to come when the device ran already
    messages = [b"%04d/" % chain + b"x" * 50 + b"~" * 80 for chain in range(CHAINS)]
    device.longest_turn()
    many = device.subscribed(MANY_TOPICS)
    # When there are messages, and then what begins them all comes, and they go again to both
    device.publish(messages, many)
    all_of_them = device.subscribed([b"0", b"1"])
    device.publish(messages, many, all_of_them)
    # And both leave
    all_of_them.close()
    device.heard(b"\0", [b"0"])
    device.publish(messages, many)
    many.close()
    device.heard(b"\0", MANY_TOPICS)
    # Then nobody had to wait for long
    assert device.longest_turn() < LONGEST * slowness()
