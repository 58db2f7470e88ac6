"""A crowd that asks each verb in its dearest form, and reads its answers: no turn of the hub is long.

The dearest form is sound: it has as much in it as the verb takes, where the broker has much, too. A crowd
that reads nothing is read no more (:mod:`faults.test_every_verb_is_bounded`), so it costs next to nothing.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest

from faults.test_every_verb_is_bounded import MOST_MEMORY, VERBS, peak
from faults.turns import LONGEST, slowness
from sluicemq.protocol import wire
from sluicemq.protocol.packed import pack
from sluicemq_devices.zmtp import encode
from support.broker_under_test import ANY_PORT, BrokerUnderTest, serving, spare
from support.long_forms import long
from support.raw_sockets import Smq, shake_hands
from support.waiting import wait_until

#: Cases of one test differ in a verb; test_longest_turn has each dear form alone.
pytestmark = pytest.mark.one_in(10)

QUEUES = 500
TOPICS = [b"a.%d.b%d" % (at, at % 7) for at in range(wire.MOST_PUBLISHED)]
PATTERNS = [*(b"*.*.c%d" % at for at in range(100)), *(b"a.%d.*.d" % at for at in range(100))]
RECEIPTS = [b"%08d" % at for at in range(1000)]
CHILD = ["victim", None, None]
PRINCIPAL = {"name": "somebody", "password": "x" * 20, "permissions": {"push": ["mail"]}}

#: Fields in the dearest form of a verb, if that is another one than in its entry.
DEAR: dict[bytes, tuple[Any, ...]] = {
    wire.PUSH: ("pushed", [[None, b"work", {"headers": {"a": [1] * 10}}]] * 100),
    wire.READY: ("idle", 1000),
    wire.SETTLE: ([[b"none", wire.FAN_OUT, None, None, [CHILD] * 4_900]],),
    wire.EXTEND: (RECEIPTS, 1.0),
    wire.PROGRESS: ([[receipt, 1, 2, "note"] for receipt in RECEIPTS],),
    wire.PEEK: ("pushed", "ready", 20, {"first": 10}),
    wire.PUBLISH: ("others", b"".join(pack(topic, b"") for topic in TOPICS), {}),
    wire.READ: ("news", {"after": 0, "topics": PATTERNS, "wait": 0.0}),
    wire.USERS: ("add", PRINCIPAL),
}

#: Doors of devices: the kind of socket, and the dearest that one says.
FAN_OUT = [*[b"victim", b"", b"{}"] * 21_000]
DOORS: dict[str, tuple[bytes, bytes]] = {
    "push": (b"PUSH", encode([b"\xff" * 1_000_000, b"{}", b"work"]) * 3),
    "commit": (b"PUSH", encode([b"FANOUT", b"none", *FAN_OUT]) * 2),
    "rep": (b"REP", encode([b"", b"FANOUT", *FAN_OUT]) * 2),
    "sub": (b"SUB", b"".join(encode([b"\1%d" % at]) for at in range(10_000))),
    "latest": (b"SUB", b"".join(encode([b"\1" + topic]) for topic in TOPICS)),
}


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    """A broker with many queues, and many topics in a stream and at a forwarder with last messages."""
    ends = {"frontend": ANY_PORT, "backend": ANY_PORT}
    latest = {"kind": "forwarder", "stream": "news", "latest": True, **ends}
    devices = [*spare(ask=1, pop=1, ack=1), {"kind": "forwarder", **ends}, latest]
    with serving(mongo_uri, devices) as broker:
        for number in range(QUEUES):
            broker.make(f"many-{number}")
        for queue in ("victim", "idle", "large", "taken"):
            broker.make(queue)
        library = broker.smq()
        packed = b"".join(pack(topic, b"") for topic in TOPICS)
        for stream in ("news", "others", "victim"):
            assert library.ask(wire.PUBLISH, stream, packed, {}).verb == wire.OK
        assert len(library.ask(wire.QUEUES).fields[0]) > QUEUES
        yield broker


@pytest.fixture(scope="module", params=[100, long(300)])
def crowd(shared: BrokerUnderTest, request: pytest.FixtureRequest) -> list[Smq]:
    """Clients of the library."""
    count: int = request.param
    return [shared.smq() for _ in range(count)]


@contextmanager
def watched(shared: BrokerUnderTest) -> Iterator[None]:
    """No turn of the hub is long meanwhile, and its memory stays within its bound."""
    shared.ask_counters()
    shared.longest_turn_cpu = 0.0
    yield
    shared.ask_counters()
    assert shared.longest_turn_cpu < LONGEST * slowness()
    assert peak(shared) < MOST_MEMORY


@pytest.mark.parametrize("verb", VERBS, ids=bytes.decode)
def test_a_crowd_at_a_verb_makes_no_long_turn(shared: BrokerUnderTest, crowd: list[Smq], verb: bytes) -> None:
    fields = DEAR.get(verb, VERBS[verb].fields)
    with watched(shared):
        for peer in crowd:
            peer.plain.send_multipart(wire.encode(verb, 1, *fields))
        for peer in crowd:
            peer.answer(1)


@pytest.mark.parametrize("crowd", [10, long(100)])
@pytest.mark.parametrize("door", DOORS)
def test_a_crowd_that_says_much_makes_no_long_turn(shared: BrokerUnderTest, door: str, crowd: int) -> None:
    kind, said = DOORS[door]
    address = shared.process.devices[-2]["backend"][0] if door == "latest" else shared.doors[door]

    def connections() -> int:
        return int(shared.ask_counters()["broker"]["connections"])

    before = connections()
    with watched(shared):
        for _ in range(crowd):
            with closing(shake_hands(address, kind)) as stranger, suppress(ConnectionError):
                stranger.sendall(said)
        wait_until(lambda: connections() <= before, what="the end of what was said")
