"""Limits of a principal at every way in: its connections wait, all of them, and nothing is lost."""

from __future__ import annotations

import socket as sockets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
import zmq

from sluicemq.protocol import wire
from sluicemq.protocol.packed import pack
from support.broker_process import BrokerProcess
from support.broker_under_test import ANY_PORT
from support.cheap_passwords import cheap_hash
from support.long_forms import long
from support.raw_sockets import GREETING, Smq, dial, receive
from support.waiting import TIMEOUT, wait_until

ADMIN, OTHERS = "of-the-admin", "of-the-others"
DEVICES: list[dict[str, Any]] = [
    {"kind": "streamer", "queue": "pushed", "frontend": ANY_PORT, "backend": ANY_PORT},
    {"kind": "queue", "queue": "asked", "frontend": ANY_PORT, "backend": ANY_PORT},
    {"kind": "forwarder", "stream": "news", "frontend": ANY_PORT, "backend": ANY_PORT},
    {"kind": "forwarder", "frontend": ANY_PORT, "backend": ANY_PORT},
    {"kind": "queue", "queue": "served", "frontend": ANY_PORT, "backend": ANY_PORT},
    {
        "kind": "streamer", "queue": "pulled", "frontend": ANY_PORT, "backend": ANY_PORT,
        "commit": ANY_PORT, "ack": "explicit",
    },
]  # fmt: skip


class Limited:
    """A broker, and its principals."""

    def __init__(self, process: BrokerProcess, stack: ExitStack) -> None:
        self.process = process
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stack.callback(self._context.destroy, linger=0)
        self.admin = self.smq("admin", ADMIN)

    def socket(self, kind: int, address: str, user: str, password: str = OTHERS) -> zmq.Socket[bytes]:
        plain = self._context.socket(kind)
        plain.linger = 0
        plain.plain_username, plain.plain_password = user.encode(), password.encode()
        plain.connect(address)
        return plain

    def smq(self, user: str, password: str = OTHERS) -> Smq:
        return Smq(self.socket(zmq.DEALER, self.process.doors["smq"], user, password))

    def user(self, action: str, **fields: Any) -> Any:
        answer = self.admin.ask(wire.USERS, action, fields)
        assert answer.verb == wire.OK, answer
        return answer.fields[0]

    def counter(self, name: str) -> int:
        return int(self.admin.ask(wire.STATS).fields[0]["counters"].get(name, 0))

    def push(self, queue: str, count: int) -> None:
        answer = self.admin.ask(wire.PUSH, queue, [[None, b"job", None]] * count)
        assert answer.fields == [[]], answer

    def ready(self, queue: str, state: str = "ready") -> int:
        answer = self.admin.ask(wire.QUEUE, queue)
        return int(answer.fields[0][state]) if answer.verb == wire.OK else 0

    def memory(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))

    def device(self, number: int, end: str) -> str:
        return str(self.process.devices[number][end][0])


@pytest.fixture(scope="module")
def limited(mongo_uri: str) -> Iterator[Limited]:
    security = {
        "mechanism": ["plain"],
        "principals": {"admin": {"password": cheap_hash(ADMIN), "permissions": "all"}},
    }
    database = f"rates_{token_hex(4)}"
    config = {"security": security, "devices": DEVICES}
    with BrokerProcess(mongo_uri, database, config=config) as process, ExitStack() as stack:
        yield Limited(process, stack)


#: Sends one job or message.
Send = Callable[[], object]


def _library(verb: bytes, *fields: Any) -> Callable[[Limited, str], Send]:
    def sender(limited: Limited, user: str) -> Send:
        plain = limited.smq(user).plain
        return lambda: plain.send_multipart(wire.encode(verb, 1, *fields))

    return sender


def _plain(kind: int, device: int, *frames: bytes) -> Callable[[Limited, str], Send]:
    def sender(limited: Limited, user: str) -> Send:
        plain = limited.socket(kind, limited.device(device, "frontend"), user)
        if kind == zmq.XPUB:  # it sends nothing before it has heard of a subscriber
            assert plain.poll(int(TIMEOUT * 1000))
        return lambda: plain.send_multipart(frames)

    return sender


def _settling(kind: str, onward: Any) -> Callable[[Limited, str], Send]:
    """Verdicts of a worker of the library, each on a job of its own."""

    def sender(limited: Limited, user: str) -> Send:
        smq, source = limited.smq(user), token_hex(6)
        limited.push(source, 3)
        assert smq.ask(wire.READY, source, 3).verb == wire.OK
        jobs: list[list[Any]] = []

        def send() -> None:
            while not jobs:
                jobs.extend(smq.delivery())
            verdict = [jobs.pop()[0], kind, None, None, onward]
            smq.plain.send_multipart(wire.encode(wire.SETTLE, 1, [verdict]))

        return send

    return sender


def _serving(limited: Limited, user: str) -> Send:
    worker = limited.socket(zmq.REP, limited.device(4, "backend"), user)
    limited.push("served", 2)

    def send() -> None:
        receive(worker)
        worker.send_multipart([b"FORWARD", b"served-on"])

    return send


def _committing(limited: Limited, user: str) -> Send:
    worker = limited.socket(zmq.PULL, limited.device(5, "backend"), "admin", ADMIN)
    commits = limited.socket(zmq.PUSH, limited.device(5, "commit"), user)
    limited.push("pulled", 2)

    def send() -> None:
        receipt, _ = receive(worker)
        commits.send_multipart([b"FORWARD", receipt, b"pulled-on"])

    return send


_BATCH = pack(b"topic", b"message")
WAYS: dict[str, tuple[Callable[[Limited, str], Send], str | int]] = {
    "PUSH of the library": (_library(wire.PUSH, "library", [[None, b"job", None]]), "library"),
    "PUBLISH of the library": (_library(wire.PUBLISH, "news", _BATCH, {}), 2),
    "a PUSH socket": (_plain(zmq.PUSH, 0, b"job"), "pushed"),
    "an unreadable message": (_plain(zmq.PUSH, 0, b"", b"{", b"job"), "pushed dead"),
    "a DEALER socket": (_plain(zmq.DEALER, 1, b"", b"", b'{"reply": "accepted"}', b"job"), "asked"),
    "a PUB socket and a stream": (_plain(zmq.XPUB, 2, b"topic", b"message"), 2),
    "a PUB socket and a relay": (_plain(zmq.XPUB, 3, b"topic", b"message"), 3),
}
VERDICTS: dict[str, tuple[Callable[[Limited, str], Send], str]] = {
    "FORWARD of the library": (_settling(wire.FORWARD, ["forwarded", None, {}]), "forwarded"),
    "FANOUT of the library": (_settling(wire.FAN_OUT, [["child", None, {}]]), "child"),
    "FORWARD of a REP socket": (_serving, "served-on"),
    "FORWARD at a commit door": (_committing, "pulled-on"),
}


def _arrivals(limited: Limited, place: str | int) -> Callable[[], int]:
    """Return what says how many have come in: to a queue, or to a subscriber of a device."""
    if isinstance(place, str):
        return lambda: limited.ready(*place.split())
    subscriber = limited.socket(zmq.SUB, limited.device(place, "backend"), "admin", ADMIN)
    subscriber.subscribe(b"topic")
    subscriber.subscribe(b"probe")
    publisher = limited.socket(zmq.XPUB, limited.device(place, "frontend"), "admin", ADMIN)
    while not subscriber.poll(20):
        publisher.send_multipart([b"probe", b""])
    came: list[object] = []

    def arrived() -> int:
        while subscriber.poll(0):
            frames = subscriber.recv_multipart()
            if frames[0] == b"topic":
                came.append(frames)
        return len(came)

    return arrived


@pytest.mark.parametrize("way", WAYS)
def test_connections_of_a_principal_beyond_its_rate_wait_and_lose_nothing(limited: Limited, way: str) -> None:
    # Given a principal that may send next to nothing, with two connections
    name = f"slow-{token_hex(4)}"
    limited.user("add", name=name, password=OTHERS, permissions="all", limits={"max_rate": 0.001})
    sender, place = WAYS[way]
    arrived = _arrivals(limited, place)
    first, second = sender(limited, name), sender(limited, name)
    throttled = limited.counter("throttled")

    def held() -> int:
        return int(limited.user("show", name=name)["throttled"])

    # When one sends one, and is held
    first()
    wait_until(lambda: held() == 1, what="the first connection to be held")
    wait_until(lambda: arrived() == 1, what="its message")
    # Then what it sends next is not read, and nothing of its other connections is taken, old or new
    first()
    second()
    wait_until(lambda: held() == 2, what="the second connection to be held")
    third = sender(limited, name)
    third()
    wait_until(lambda: held() == 3, what="the third connection to be held")
    assert limited.counter("throttled") - throttled == 3
    assert arrived() == 1
    # And without limits the rest comes
    limited.user("permit", name=name, limits={})
    wait_until(lambda: arrived() == 4, what="the messages that waited")
    assert "sends more than 0.001 jobs or messages a second" in limited.process.log_text()


_LARGE = bytes(11 << 20)
LARGE: dict[str, tuple[Callable[[Limited, str], Send], str]] = {
    "PUSH of the library": (_library(wire.PUSH, "large", [[None, _LARGE, None]]), "large"),
    "a PUSH socket": (_plain(zmq.PUSH, 0, _LARGE), "pushed"),
}


@pytest.mark.full
@pytest.mark.parametrize("crowd", [6, long(40)])
@pytest.mark.parametrize("way", LARGE)
def test_large_messages_of_one_in_debt_wait_outside(limited: Limited, way: str, crowd: int) -> None:
    # Given a principal that has sent more than it may
    name = f"slow-{token_hex(4)}"
    limited.user("add", name=name, password=OTHERS, permissions="all", limits={"max_rate": 0.001})
    small, _ = WAYS["PUSH of the library"]
    senders = [small(limited, name)]
    senders[0]()
    wait_until(lambda: limited.user("show", name=name)["throttled"] == 1, what="its debt")
    sender, place = LARGE[way]
    stored, memory = limited.ready(place), limited.memory()
    # When many connections of it bring a large message each
    for _ in range(crowd):
        senders.append(sender(limited, name))
        senders[-1]()
    held = 1 + crowd
    wait_until(lambda: limited.user("show", name=name)["throttled"] == held, what="all of them to be held")
    # Then these stay with their senders
    assert limited.memory() - memory < len(_LARGE)
    assert limited.ready(place) == stored
    # And come when all is paid
    limited.user("permit", name=name, limits={})
    wait_until(lambda: limited.ready(place) == stored + crowd, what="the large messages")


@pytest.mark.parametrize("way", VERDICTS)
def test_verdicts_of_a_principal_beyond_its_rate_are_paid_for(limited: Limited, way: str) -> None:
    # Given a worker of a principal that may send next to nothing
    name = f"slow-{token_hex(4)}"
    limited.user("add", name=name, password=OTHERS, permissions="all", limits={"max_rate": 0.001})
    sender, place = VERDICTS[way]
    give = sender(limited, name)
    # When it makes more jobs than that by its verdicts, then all of them are carried out
    give()
    wait_until(lambda: limited.ready(place) == 1, what="a job in the next queue")
    give()
    wait_until(lambda: limited.ready(place) == 2, what="another one")
    assert limited.user("show", name=name)["throttled"] == 0
    # And what it pushes has to wait
    push = WAYS["PUSH of the library"][0](limited, name)
    push()
    wait_until(lambda: limited.user("show", name=name)["throttled"] == 1, what="the producer to be held")


def test_a_schedule_that_is_run_by_hand_counts(limited: Limited) -> None:
    name = f"slow-{token_hex(4)}"
    limited.user("add", name=name, password=OTHERS, permissions="all", limits={"max_rate": 0.001})
    slow = limited.smq(name)
    about = {"name": name, "queue": "scheduled", "payload": b"go", "every": 3600}
    assert slow.ask(wire.SCHEDULE, "add", about).verb == wire.OK
    answers = [slow.ask(wire.SCHEDULE, "run", {"name": name}) for _ in range(2)]
    assert [answer.verb for answer in answers] == [wire.OK, wire.ERROR]
    assert answers[1].fields[0] == "QUEUE_FULL"


def test_a_broker_that_stops_takes_what_a_held_producer_has_sent(mongo_uri: str, database: str) -> None:
    # Given a PUSH producer that is held, with jobs on the way
    security = {
        "mechanism": ["plain"],
        "principals": {
            "admin": {"password": cheap_hash(ADMIN), "permissions": "all"},
            "slow": {"password": cheap_hash(OTHERS), "permissions": "push", "max_rate": 0.001},
        },
    }
    config = {"security": security, "devices": DEVICES[:1]}
    with BrokerProcess(mongo_uri, database, config=config) as process, ExitStack() as stack:
        limited = Limited(process, stack)
        producer = stack.enter_context(_bare_push(limited.device(0, "frontend")))
        producer.sendall(b"\0\1a")
        wait_until(lambda: limited.counter("throttled") == 1, what="the producer to be held")
        producer.sendall(b"\0\1b" * 10)
        # When the broker stops and starts
        process.terminate()
        process.restart()
        # Then they are there
        assert Limited(process, stack).ready("pushed") == 11


def _bare_push(address: str) -> sockets.socket:
    """A bare connection of a PUSH socket of the slow one: what it sends is in the broker's socket at once."""
    one = dial(address)
    one.sendall(GREETING[:12] + b"PLAIN" + GREETING[17:])
    for body in (
        b"\5HELLO\4slow" + bytes([len(OTHERS)]) + OTHERS.encode(),
        b"\x08INITIATE\x0bSocket-Type\0\0\0\4PUSH",
    ):
        one.sendall(b"\4" + bytes([len(body)]) + body)
    heard = b""
    while b"READY" not in heard:
        some = one.recv(4096)
        assert some, "the broker hung up"
        heard += some
    return one
