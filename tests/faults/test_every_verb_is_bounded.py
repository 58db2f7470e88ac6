"""Every verb of SMQ/1 and every door: what comes, what it costs and what goes out is bounded, also over all.

The tables name each of them; a new one without an entry fails.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from faults.turns import LONGEST, slowness
from sluicemq import Client, Producer, Publisher
from sluicemq.protocol import wire
from sluicemq_devices.zmtp import encode
from support.broker_under_test import ANY_PORT, BrokerUnderTest, serving, spare
from support.long_forms import long
from support.own_queue import SECONDS, working
from support.raw_sockets import shake_hands

#: Cases of one test differ in a verb.
pytestmark = pytest.mark.one_in(3)

MIB = 2**20
LARGE = 11 * MIB
#: Of 50 MiB at rest and three times 64 MiB (docs/operations.md), and what the allocator does not give back.
MOST_MEMORY = 320 * MIB
FROM_THE_BROKER = {"DELIVER", "STOP", "OK", "ERROR"}


class Entry(NamedTuple):
    """A sound request, and how often each of those sends it who read nothing."""

    fields: tuple[Any, ...]
    times: int = 100


_FEW = 10  # of what writes to MongoDB

VERBS: dict[bytes, Entry] = {
    wire.HELLO: Entry(({"client": "crowd"},)),
    wire.PUSH: Entry(("pushed", [[None, b"work", None]])),
    wire.READY: Entry(("taken", 1000), times=1),
    wire.SETTLE: Entry(([[b"none", wire.COMMIT, None, None]],)),
    wire.EXTEND: Entry(([b"none"], 1.0)),
    wire.PROGRESS: Entry(([[b"none", 1, 2, "note"]],)),
    wire.COMMITIN: Entry((b"none", 0)),
    wire.RESULT: Entry(("large", "done", 0.0)),
    wire.PING: Entry((True,)),
    wire.BYE: Entry(()),
    wire.QUEUES: Entry(()),
    wire.QUEUE: Entry(("large",)),
    wire.STATS: Entry(()),
    wire.HISTORY: Entry(("queue", "large", None, "hours")),
    wire.INCIDENTS: Entry(("month", None)),
    wire.COUNTERS: Entry(()),
    wire.WORKERS: Entry((None,)),
    wire.ENDS: Entry(("large", None, 1000)),
    wire.FIND: Entry(({"words": "none"}, 200, None), _FEW),
    wire.WORKER: Entry(("quiet", "nobody")),
    wire.STUCK: Entry(([],)),
    wire.KINDS: Entry((None,)),
    wire.BACKLOG: Entry(("large",)),
    wire.ERRORS: Entry((None,)),
    wire.EVENTS: Entry(({},)),
    wire.PEEK: Entry(("large", "ready", 1000)),
    wire.PURGE: Entry(("victim", "ready"), _FEW),
    wire.DELETE: Entry(("victim",), _FEW),
    wire.CANCEL: Entry(("victim", "none"), _FEW),
    wire.SHOW: Entry(("large", "big")),
    wire.PROMOTE: Entry(("victim", "none"), _FEW),
    wire.CHANGE: Entry(("victim", "none", {"priority": 1}), _FEW),
    wire.REDRIVE: Entry(("victim", {"limit": 1}, None), _FEW),
    wire.DISCARD: Entry(("victim", {"limit": 1}), _FEW),
    wire.DEAD: Entry(("victim", wire.REASONS, {})),
    wire.PUBLISH: Entry(("others", encode([b"topic", bytes(100_000)]), {}), _FEW),
    wire.READ: Entry(("news", {"bytes": wire.MOST_READ_BYTES})),
    wire.STREAMS: Entry(()),
    wire.STREAM: Entry(("news",)),
    wire.TRIM: Entry(("others", 1), _FEW),
    wire.ERASE: Entry(("victim",), _FEW),
    wire.PAUSE: Entry(("victim", wire.DELIVERY), _FEW),
    wire.RESUME: Entry(("victim", wire.DELIVERY), _FEW),
    wire.SETTINGS: Entry(("victim",)),
    wire.SET: Entry(("victim", {"ttl": 1000}), _FEW),
    wire.UNSET: Entry(("victim", ["ttl"]), _FEW),
    wire.HOLD: Entry(("news", "sums", "update", {}), _FEW),
    wire.MARK: Entry(("news", "sums", 1, 0), _FEW),
    wire.FREE: Entry(("news", "sums", None), _FEW),
    wire.SUBS: Entry((None,)),
    wire.SEEK: Entry(("news", "sums", 0), _FEW),
    wire.FORGET: Entry(("news", "none"), _FEW),
    wire.SCHEDULE: Entry(("list", {}), _FEW),
    wire.USERS: Entry(("list", {}), _FEW),
    wire.AUDIT: Entry(({"limit": 1000},)),
    wire.BROKERS: Entry(()),
    wire.UPGRADE: Entry((), _FEW),
    wire.TASKS: Entry(()),
    wire.TASK: Entry(("none",)),
    wire.TCANCEL: Entry(("none",), _FEW),
}

#: What may stand in any field, and in none of them.
HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 2**63, math.nan, math.inf, b"", bytes(60_000), "x" * 60_000, "\0", [], {}),
    *([None] * 10_000, [[]] * 10_000, [b""] * 10_000, {str(n): n for n in range(5_000)}),
)

#: By each door of devices: the kind of socket, and what one says who reads nothing.
DOORS: dict[str, tuple[bytes, bytes]] = {
    "push": (b"PUSH", encode([bytes(1000)]) * 100),
    "commit": (b"PUSH", encode([b"", b"none"]) * 100),
    "pull": (b"PULL", b""),
    "req": (b"DEALER", encode([b"", b'{"id": "done"}', b"work"]) * 50),
    "rep": (b"REP", b""),
    "pub": (b"PUB", encode([b"topic", bytes(1000)]) * 100),
    "sub": (b"SUB", encode([b"\1"])),
    "replay": (b"DEALER", encode([b"", b"news", b'{"limit": 10000}']) * 50),
}
REPLAYED = {
    "kind": "forwarder",
    "stream": "news",
    "frontend": ANY_PORT,
    "backend": ANY_PORT,
    "replay": ANY_PORT,
}


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    """A broker with a large job, a large result, large jobs to take, and a stream."""
    ask = {"kind": "queue", "queue": "large", "frontend": ANY_PORT, "backend": ANY_PORT}
    with serving(mongo_uri, [ask, *spare(pop=1), REPLAYED]) as broker:
        endpoint = broker.doors["smq"]
        with working(endpoint, {"large": lambda _: bytes(LARGE)}), Producer(endpoint=endpoint) as producer:
            producer.call("large", b"work", SECONDS, id="done", keep_done=3600)
        with Producer(endpoint=endpoint) as producer, Publisher(endpoint=endpoint) as publisher:
            producer.push("large", bytes(LARGE), id="big")
            for _ in range(5):
                producer.push("taken", bytes(LARGE))
                producer.push("pop-0", bytes(LARGE))
            producer.push("victim", b"work")
            for stream in ("news", "others", "victim"):
                publisher.publish(stream, b"topic", b"first")
            for _ in range(4_000):
                publisher.publish("news", b"topic", bytes(1000))
        yield broker


def test_each_verb_has_an_entry() -> None:
    named = vars(wire).items()
    verbs = {
        code for name, code in named if isinstance(code, bytes) and code == name.replace("_", "").encode()
    }
    assert verbs - {code.encode() for code in FROM_THE_BROKER} == VERBS.keys()


def test_each_door_has_an_entry(shared: BrokerUnderTest) -> None:
    assert doors(shared).keys() == DOORS.keys()


@pytest.mark.parametrize("verb", VERBS, ids=bytes.decode)
def test_whatever_a_field_of_a_verb_has_it_takes_no_long_turn(shared: BrokerUnderTest, verb: bytes) -> None:
    address = shared.doors["smq"]
    with Client(endpoint=address) as honest:
        honest.counters()
        with closing(shake_hands(address, b"DEALER")) as stranger, suppress(ConnectionError):
            for number, fields in enumerate(hostile(VERBS[verb].fields), 1):
                stranger.sendall(encode(wire.encode(verb, number, *fields)))
                honest.ping()
        assert honest.counters()["broker"]["longest_turn_cpu"] < LONGEST * slowness()
    assert peak(shared) < MOST_MEMORY


@pytest.mark.parametrize("crowd", [6, long(300)])
@pytest.mark.parametrize("verb", VERBS, ids=bytes.decode)
def test_unread_answers_to_a_verb_are_bounded(shared: BrokerUnderTest, verb: bytes, crowd: int) -> None:
    fields, times = VERBS[verb]
    said = b"".join(encode(wire.encode(verb, number, *fields)) for number in range(1, times + 1))
    honest_ones_are_served(shared, shared.doors["smq"], b"DEALER", said, crowd)


@pytest.mark.parametrize("crowd", [6, long(300)])
@pytest.mark.parametrize("door", DOORS)
def test_what_is_unread_at_a_door_is_bounded_over_all(shared: BrokerUnderTest, door: str, crowd: int) -> None:
    kind, said = DOORS[door]
    honest_ones_are_served(shared, doors(shared)[door], kind, said, crowd)


def honest_ones_are_served(
    shared: BrokerUnderTest, address: str, kind: bytes, said: bytes, crowd: int
) -> None:
    """Look on while so many say this and read nothing."""
    with (
        ExitStack() as stack,
        Client(endpoint=shared.doors["smq"]) as honest,
        Producer(endpoint=shared.doors["smq"]) as producer,
    ):
        for _ in range(crowd):
            stranger = stack.enter_context(closing(shake_hands(address, kind)))
            stranger.settimeout(0.0)
            with suppress(BlockingIOError):
                stranger.send(said)
            honest.ping()
        for _ in range(5):
            producer.push("honest", b"work").wait(SECONDS)
            honest.ping()
        assert peak(shared) < MOST_MEMORY
    assert peak(shared) < MOST_MEMORY


def hostile(fields: tuple[Any, ...]) -> Iterable[tuple[Any, ...]]:
    """The fields of a request with each of them wrong in each way, too few and too many of them."""
    yield fields[:-1]
    yield (*fields, *HOSTILE[:4])
    for at in range(len(fields)):
        for value in HOSTILE:
            yield (*fields[:at], value, *fields[at + 1 :])


def doors(shared: BrokerUnderTest) -> dict[str, str]:
    """The doors of devices, by what they are called."""
    [replay] = [address for device in shared.process.devices for address in device.get("replay", ())]
    return {name: address for name, address in shared.doors.items() if name != "smq"} | {"replay": replay}


def peak(shared: BrokerUnderTest) -> int:
    """Bytes of memory that the broker has had at once, so far."""
    status = Path(f"/proc/{shared.process.pid}/status").read_text()
    [kilobytes] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return 1024 * int(kilobytes)
