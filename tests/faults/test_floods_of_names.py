"""New names in a flood, at every door that makes some: it is slowed down, and leaves room to all others."""

from collections.abc import Callable, Iterator
from secrets import token_hex
from typing import Any

import pytest
import zmq

from sluicemq.protocol import wire
from sluicemq.protocol.packed import pack
from support.broker_under_test import BrokerUnderTest, serving, spare
from support.long_forms import long
from support.raw_sockets import Smq, code, receive

FLOOD = 1000
#: Names that one peer makes at once, and those that come into being while a slow machine makes these.
MADE = range(50, FLOOD - 50)

Tried = list[str]
#: Makes so many new names of one kind; what became of each: OK, or the code of its refusal.
Door = Callable[[BrokerUnderTest, list[str]], Tried]


@pytest.fixture
def broker(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, spare(ask=1, pop=1), max_queues=5000) as broker:
        yield broker
        assert broker.serves()


def asked(library: Smq, verb: bytes, rows: list[list[Any]]) -> Tried:
    """What became of requests that are sent all at once."""
    for number, fields in enumerate(rows, 1):
        library.plain.send_multipart(wire.encode(verb, number, *fields))
    answers: dict[int, str] = {}
    while len(answers) < len(rows):
        answer = library.next(lambda message: message.verb in (wire.OK, wire.ERROR) and message.number > 0)
        answers[answer.number] = "OK" if answer.verb == wire.OK else str(answer.fields[0])
    return [answers[number] for number in sorted(answers)]


def by_push(broker: BrokerUnderTest, names: list[str]) -> Tried:
    return asked(broker.smq(), wire.PUSH, [[name, [[None, b"work", None]]] for name in names])


def by_publish(broker: BrokerUnderTest, names: list[str]) -> Tried:
    return asked(broker.smq(), wire.PUBLISH, [[name, pack(b"t", b"p"), {}] for name in names])


def by_hold(broker: BrokerUnderTest, names: list[str]) -> Tried:
    library = broker.smq()
    assert library.ask(wire.PUBLISH, "held", pack(b"t", b"p"), {}).verb == wire.OK
    return asked(library, wire.HOLD, [["held", name, "update", {}] for name in names])


def by_seek(broker: BrokerUnderTest, names: list[str]) -> Tried:
    library = broker.smq()
    assert library.ask(wire.PUBLISH, "held", pack(b"t", b"p"), {}).verb == wire.OK
    return asked(library, wire.SEEK, [["held", name, 1] for name in names])


def by_verdict(
    broker: BrokerUnderTest, names: list[str], verdict: Callable[[bytes, str], list[Any]]
) -> Tried:
    """Each of as many jobs goes on by a verdict into a queue of its own."""
    library, queue = broker.smq(), f"from-{token_hex(4)}"
    library.ask(wire.PUSH, queue, [[None, b"work", None] for _ in names])
    library.ask(wire.READY, queue, len(names))
    receipts: list[bytes] = []
    while len(receipts) < len(names):
        receipts += [row[0] for row in library.delivery()]
    rows = [verdict(receipt, name) for receipt, name in zip(receipts, names, strict=True)]
    problems = {row[0]: row[1] for row in library.ask(wire.SETTLE, rows).fields[0]}
    return [problems.get(at, "OK") for at in range(len(names))]


def by_forward(broker: BrokerUnderTest, names: list[str]) -> Tried:
    return by_verdict(
        broker, names, lambda receipt, name: [receipt, "FORWARD", None, None, [name, None, None]]
    )


def by_fan_out(broker: BrokerUnderTest, names: list[str]) -> Tried:
    return by_verdict(
        broker, names, lambda receipt, name: [receipt, "FANOUT", None, None, [[name, None, None]]]
    )


def by_dealer(broker: BrokerUnderTest, names: list[str]) -> Tried:
    dealer = broker.socket(zmq.DEALER, broker.take("ask").front)
    for name in names:
        dealer.send_multipart([b"", name.encode(), b'{"reply": "accepted"}', b"work"])
    answers = [receive(dealer)[1:] for _ in names]
    return [code(answer) if answer[0] == b"ERROR" else "OK" for answer in answers]


DOORS: dict[str, Door] = {
    "PUSH": by_push,
    "PUBLISH": by_publish,
    "HOLD": by_hold,
    "SEEK": by_seek,
    "FORWARD": by_forward,
    "FANOUT": by_fan_out,
    "DEALER": by_dealer,
}


def names(count: int, kind: str) -> list[str]:
    return [f"{kind}-{number}" for number in range(count)]


#: All names share one bound.
_SHORT = ("PUSH",)


@pytest.mark.parametrize(
    "door",
    [pytest.param(door, id=name) if name in _SHORT else long(door, id=name) for name, door in DOORS.items()],
)
def test_a_flood_of_names_is_refused_and_leaves_room_for_others(broker: BrokerUnderTest, door: Door) -> None:
    tried = door(broker, names(FLOOD, "flood"))
    assert set(tried) == {"OK", "QUEUE_FULL"}
    assert tried.count("OK") in MADE
    assert broker.counter("names_refused") == tried.count("QUEUE_FULL")
    for another in (by_push, by_publish, by_hold):
        assert another(broker, names(3, f"honest-{another.__name__}")) == ["OK"] * 3


@pytest.mark.full
def test_a_flood_of_names_does_not_hold_up_pushes_to_queues_that_are_there(broker: BrokerUnderTest) -> None:
    honest, flood = broker.smq(), broker.smq()
    assert honest.ask(wire.PUSH, "there", [[None, b"work", None]]).verb == wire.OK
    for number, name in enumerate(names(100, "flood"), 1):
        flood.plain.send_multipart(wire.encode(wire.PUSH, number, name, [[None, b"work", None]]))
    for _ in range(5):
        assert honest.ask(wire.PUSH, "there", [[None, b"work", None]]).verb == wire.OK
    heard = 0
    while flood.plain.poll(0):
        heard += wire.decode(flood.plain.recv_multipart()).verb == wire.OK
    assert heard < 90  # most of these were not made yet
    while heard < 100:
        heard += wire.decode(receive(flood.plain)).verb == wire.OK
