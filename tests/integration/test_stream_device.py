"""A FORWARDER with a stream: plain PUB and SUB sockets, at two brokers, and those who ask for what was."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from secrets import token_hex
from threading import Event, Thread
from typing import Any

import pytest
import zmq

from integration.test_readme import CLONE
from sluicemq import Client, Message, Publisher, Reader
from support.broker_under_test import ANY_PORT, BrokerUnderTest, serving
from support.raw_sockets import receive
from support.samples import block
from support.waiting import TIMEOUT, wait_until

PRICES = {
    "kind": "forwarder",
    "stream": "prices",
    "frontend": ANY_PORT,
    "backend": ANY_PORT,
    "replay": ANY_PORT,
}
FULL = {**PRICES, "envelope": "full"}
LATEST = {"kind": "forwarder", "stream": "latest", "frontend": ANY_PORT, "backend": ANY_PORT, "latest": True}
RELAY = {"kind": "forwarder", "frontend": ANY_PORT, "backend": ANY_PORT, "hwm": 100}
DEVICES: list[dict[str, Any]] = [PRICES, FULL, LATEST, RELAY]


@pytest.fixture(scope="module")
def database() -> str:
    return f"test_{token_hex(6)}"


@pytest.fixture(scope="module")
def brokers(mongo_uri: str, database: str) -> Iterator[list[BrokerUnderTest]]:
    with (
        serving(mongo_uri, DEVICES, database=database, poll=0.5) as one,
        serving(mongo_uri, DEVICES, database=database, poll=0.5) as other,
    ):
        yield [one, other]


class Ends:
    """Sockets for one device at one broker."""

    def __init__(self, broker: BrokerUnderTest, number: int) -> None:
        self._broker = broker
        self.device = broker.process.devices[number]

    def pub(self) -> zmq.Socket[bytes]:
        """Without a mark: libzmq drops at it, and counts what it has sent only every 500 messages."""
        return self._broker.socket(zmq.PUB, self.device["frontend"][0], linger=10_000, sndhwm=0)

    def sub(self, *topics: bytes, **options: Any) -> zmq.Socket[bytes]:
        plain = self._broker.socket(zmq.SUB, self.device["backend"][0], **{"rcvhwm": 0, **options})
        for topic in topics or (b"",):
            plain.subscribe(topic)
        return plain

    def ask(self, stream: bytes, **options: Any) -> tuple[dict[str, Any], list[list[bytes]]]:
        """Ask at the replay door: what is told of the answer, and its messages with their heads."""
        answer = self._broker.ask(self.device["replay"][0], stream, json.dumps(options).encode())
        if answer[0] == b"ERROR":
            return json.loads(answer[1]), []
        messages = []
        rest = answer[1:]
        while rest:
            count = int(rest[0].split()[2])
            messages.append(rest[: 1 + count])
            rest = rest[1 + count :]
        return json.loads(answer[0]), messages


@pytest.fixture
def ends(brokers: list[BrokerUnderTest]) -> Iterator[Callable[[int, int], Ends]]:
    """Makes sockets for a device, by its number, at a broker."""
    yield lambda broker, device: Ends(brokers[broker], device)
    for node in brokers:
        node.close_sockets()
        assert "Traceback" not in node.process.log_text()


def connected(pub: zmq.Socket[bytes], sub: zmq.Socket[bytes], *more: bytes) -> None:
    """Publish until the subscriber hears it: both are connected then; what it hears of that is dropped."""
    mark = token_hex(4).encode()

    def heard() -> bool:
        pub.send_multipart([b"probe", mark, *more])
        return bool(sub.poll(50))

    wait_until(heard)
    pub.send_multipart([b"probe-end", mark])
    while receive(sub, TIMEOUT)[:2] != [b"probe-end", mark]:
        pass


class TestPubAndSub:
    @pytest.mark.parametrize("elsewhere", [0, 1], ids=["here", "at the other broker"])
    def test_what_a_pub_sends_comes_to_a_sub(self, ends: Callable[[int, int], Ends], elsewhere: int) -> None:
        pub, sub = ends(0, 0).pub(), ends(elsewhere, 0).sub()
        connected(pub, sub)
        for number in range(500):
            pub.send_multipart([b"eur", b"%d" % number])
        assert [receive(sub, TIMEOUT) for _ in range(500)] == [
            [b"eur", b"%d" % number] for number in range(500)
        ]

    def test_few_or_many_messages_come_once_each(self, ends: Callable[[int, int], Ends]) -> None:
        pub, sub = ends(0, 0).pub(), ends(0, 0).sub()
        connected(pub, sub)
        for turn, burst in enumerate([1, 1, 3, 700, 1, 900, 2, 1]):
            for number in range(burst):
                pub.send_multipart([b"%d" % turn, b"%d" % number])
            got = [receive(sub, TIMEOUT) for _ in range(burst)]
            assert got == [[b"%d" % turn, b"%d" % number] for number in range(burst)]
        assert not sub.poll(50)

    def test_it_is_kept_and_can_be_read_with_the_library(
        self, ends: Callable[[int, int], Ends], brokers: list[BrokerUnderTest]
    ) -> None:
        pub, sub = ends(0, 0).pub(), ends(0, 0).sub(b"kept", b"probe")
        connected(pub, sub)
        pub.send_multipart([b"kept", b"1", b"2"])
        pub.send(b"kept alone")
        wait_until(lambda: sub.poll(100))
        with Reader("prices", topics=["kept"], follow=True, endpoint=brokers[1].doors["smq"]) as reader:
            found = [reader.read(TIMEOUT) for _ in range(2)]
        assert [
            (message.topic, message.payload, message.frames)
            for message in found
            if isinstance(message, Message)
        ] == [("kept", b"1", (b"1", b"2")), ("kept alone", b"", ())]

    def test_what_the_library_publishes_comes_to_subscribers(
        self, ends: Callable[[int, int], Ends], brokers: list[BrokerUnderTest]
    ) -> None:
        pub, sub = ends(0, 0).pub(), ends(1, 0).sub(b"library", b"probe")
        connected(pub, sub)
        with Publisher(endpoint=brokers[0].doors["smq"]) as publisher:
            publisher.publish("prices", "other", b"1")
            publisher.publish("prices", "library", b"2")
        assert receive(sub, TIMEOUT) == [b"library", b"2"]

    def test_the_full_envelope_has_number_and_time_behind(self, ends: Callable[[int, int], Ends]) -> None:
        pub, sub = ends(0, 1).pub(), ends(1, 1).sub()
        connected(pub, sub)
        for number in range(50):
            pub.send_multipart([b"eur", b"%d" % number])
        got = [receive(sub, TIMEOUT) for _ in range(50)]
        numbers = [int(frames[-1].split()[0]) for frames in got]
        assert [frames[:-1] for frames in got] == [[b"eur", b"%d" % number] for number in range(50)]
        assert numbers == list(range(numbers[0], numbers[0] + 50))

    def test_a_new_subscriber_gets_the_latest_of_each_topic(self, ends: Callable[[int, int], Ends]) -> None:
        pub, first = ends(0, 2).pub(), ends(0, 2).sub()
        connected(pub, first)
        for number in range(100):
            pub.send_multipart([b"t%d" % (number % 3), b"%d" % number])
        for _ in range(100):
            receive(first, TIMEOUT)
        newest = {b"t0": b"99", b"t1": b"97", b"t2": b"98"}
        for broker in (0, 1):
            wait_until(partial(self._has_latest, ends(broker, 2), newest))

    def _has_latest(self, ends: Ends, newest: dict[bytes, bytes]) -> bool:
        late = ends.sub(b"t")
        got = [receive(late, TIMEOUT) for _ in range(3)]
        late.close()
        return {frames[0]: frames[1] for frames in got} == newest


class TestReplay:
    @pytest.fixture
    def filled(self, ends: Callable[[int, int], Ends], brokers: list[BrokerUnderTest]) -> Ends:
        with Publisher(endpoint=brokers[0].doors["smq"]) as publisher:
            self.first = publisher.publish("prices", "replay.a", b"0").wait(TIMEOUT)
            for number in range(1, 20):
                publisher.publish("prices", f"replay.{'ab'[number % 2]}", b"%d" % number)
        return ends(1, 0)

    def test_a_req_gets_the_past_page_by_page(self, filled: Ends) -> None:
        got: list[list[bytes]] = []
        after = self.first - 1
        counts: list[int] = []
        while not counts or counts[-1]:
            told, messages = filled.ask(b"prices", after=after, topic="replay.", limit=15)
            after, counts = told["after"], [*counts, told["count"]]
            got += messages
        assert max(counts) <= 15
        got = got[:20]  # other tests publish such, too
        assert [frames[2] for frames in got] == [b"%d" % number for number in range(20)]
        assert [int(frames[0].split()[0]) for frames in got] == list(range(self.first, self.first + 20))

    def test_an_empty_name_is_the_devices_stream_and_a_pattern_chooses(self, filled: Ends) -> None:
        _told, messages = filled.ask(b"", after=self.first - 1, topics=["*.b"])
        assert {message[1] for message in messages} == {b"replay.b"}

    def test_after_the_end_there_is_nothing(self, filled: Ends) -> None:
        told, messages = filled.ask(b"prices", after=10**9)
        assert (told["count"], messages) == (0, [])

    @pytest.mark.parametrize(
        ("stream", "options", "code"),
        [
            (b"nobody.knows", {}, "BAD_STREAM"),
            (b"no name!", {}, "BAD_STREAM"),
            (b"prices", {"limit": 0}, "BAD_FRAMES"),
            (b"prices", {"after": "x"}, "BAD_FRAMES"),
            (b"prices", {"nonsense": 1}, "BAD_FRAMES"),
            (b"prices", {"topic": "a.>.b"}, "BAD_TOPIC"),
            (b"prices", {"topic": 5}, "BAD_TOPIC"),
            (b"prices", {"topic": "\ud800"}, "BAD_FRAMES"),
            (b"prices", {"topics": ["a", "\udc00"]}, "BAD_FRAMES"),
            (b"prices", {"since": math.nan}, "BAD_FRAMES"),
            (b"prices", {"since": math.inf}, "BAD_FRAMES"),
        ],
    )
    def test_what_is_no_question_is_answered_with_an_error(
        self,
        ends: Callable[[int, int], Ends],
        brokers: list[BrokerUnderTest],
        stream: bytes,
        options: dict[str, Any],
        code: str,
    ) -> None:
        told, _messages = ends(0, 0).ask(stream, **options)
        assert told["code"] == code
        assert "Traceback" not in brokers[0].process.log_text()


class TestClone:
    def test_the_example_gives_past_and_present_without_a_hole(
        self, ends: Callable[[int, int], Ends], brokers: list[BrokerUnderTest]
    ) -> None:
        with Publisher(endpoint=brokers[0].doors["smq"]) as publisher:
            before = publisher.publish("prices", "clone", b"old").wait(TIMEOUT)
            device = ends(1, 1).device
            sample: dict[str, Any] = {}
            exec(block(CLONE), sample)  # noqa: S102 - a page of ours
            with zmq.Context() as context:
                found = sample["everything"](context, device["backend"][0], device["replay"][0], b"prices")
                got = []
                with Ticking(publisher):
                    for number, frames in found:
                        got.append(number)
                        if number > before and frames[0] == b"tick" and len(got) > before + 20:
                            break
                context.destroy(linger=0)

        assert got == list(range(1, len(got) + 1))


class Ticking:
    """Publishes all the time, beside the test."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._over = Event()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.01):
            self._publisher.publish("prices", "tick", b"")


class TestLosses:
    def test_what_a_slow_subscriber_loses_is_told_for_it(
        self, ends: Callable[[int, int], Ends], brokers: list[BrokerUnderTest]
    ) -> None:
        relay = ends(0, 3)
        pub, quick = relay.pub(), relay.sub()
        relay.sub(rcvhwm=1, rcvbuf=4096)  # reads nothing
        connected(pub, quick)
        payload = bytes(10_000)

        def lost() -> list[int]:
            for _ in range(50):
                pub.send_multipart([b"t", payload])
            while quick.poll(20):
                quick.recv_multipart()
            with Client(endpoint=brokers[0].doors["smq"]) as client:
                (told,) = [
                    forwarder
                    for forwarder in client.stats().forwarders
                    if forwarder.frontend == tuple(relay.device["frontend"])
                ]
            return sorted(subscriber.lost for subscriber in told.subscribers)

        wait_until(lambda: lost()[-1] > 0)
        assert brokers[0].counter("messages_lost") > 0
