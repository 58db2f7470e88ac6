"""The HTTP door: answers in pieces, connections that give way, turns, and names."""

import base64
import json
from time import monotonic
from typing import Any

import falcon
import gevent
import pytest

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.http import HubPace
from sluicemq_broker.http.answer_memory import AnswerMemory
from sluicemq_broker.http.answers import Streamed, write
from sluicemq_broker.http.connections import Connection, Connections
from sluicemq_broker.http.fair_turns import FairTurns
from sluicemq_broker.http.host_names import HostNames
from sluicemq_broker.runtime import Counters
from sluicemq_devices.sockets import Outgoing
from support.virtual_time import VirtualTime, come_to_rest

LARGE = 100_000


def written(value: Any) -> tuple[Any, int]:
    """Answer with a value; return what a client reads, and the bytes that are held meanwhile."""
    response = falcon.Response()
    write(response, value)
    if isinstance(response.stream, Streamed):
        return json.loads(b"".join(response.stream)), response.stream.held
    return json.loads(response.data or b""), 0


@pytest.mark.parametrize("payload", ["é" * LARGE, "a" * (LARGE - 1) + "é", '"\\\n' * LARGE])
def test_a_large_text_is_a_text_wherever_it_is_cut(payload: str) -> None:
    data = payload.encode()
    assert written({"id": "a", "payload": data, "result": b"ok"}) == (
        {"id": "a", "payload": payload, "result": "ok"}, len(data),
    )  # fmt: skip


@pytest.mark.parametrize("extra", range(3))
def test_large_bytes_that_are_no_text_are_base64(extra: int) -> None:
    payload = bytes(LARGE) + b"\xff" * extra + b"\xc3"
    found, held = written({"id": "a", "payload": payload})
    assert base64.b64decode(found["payload"]["base64"], validate=True) == payload
    assert (list(found), held) == (["id", "payload"], len(payload))


@pytest.mark.parametrize("payload", [b"text", b"\xff\x00"])
def test_a_small_value_has_the_form_of_a_large_one(payload: bytes) -> None:
    small, held = written({"payload": payload})
    large, _ = written({"payload": payload, "result": payload * LARGE})
    assert (small["payload"], held) == (large["payload"], 0)
    assert type(large["result"]) is type(small["payload"])


def test_a_lone_surrogate_is_escaped() -> None:
    assert written({"id": "\ud800"}) == ({"id": "\ud800"}, 0)


MOST = 10


class Door:
    """Connections, and who has been ended."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.connections = Connections(MOST, Counters(), self.held.append)
        self.ended: list[str] = []
        self.now = 0.0

    def enter(self, name: str, address: str = "there") -> Connection:
        self.now += 0.001
        return self.connections.enter(address, lambda: self.ended.append(name), self.now)


@pytest.fixture
def door() -> Door:
    return Door()


def test_the_one_that_waits_longest_gives_way(door: Door) -> None:
    first, *_ = [door.enter(f"{number}") for number in range(MOST)]
    door.connections.idle(first, door.now + 1)  # it has been answered just now
    door.enter("new")
    assert door.ended == ["1"]
    assert len(door.connections) == MOST


def test_an_address_with_many_gives_way_to_one_with_few(door: Door) -> None:
    door.enter("honest", "here")
    for number in range(MOST - 1):
        door.enter(f"{number}")
    door.enter("new")
    assert door.ended == ["0"]


def test_who_is_answered_does_not_give_way(door: Door) -> None:
    connections = [door.enter(f"{number}") for number in range(MOST)]
    for connection in connections[:-2]:
        door.connections.answer(connection, 1.0)
    door.enter("new")
    assert door.ended == [str(MOST - 2)]


def test_who_reads_nothing_is_ended_and_who_reads_is_not(door: Door) -> None:
    connections = [door.enter(f"{number}") for number in range(MOST)]
    for connection in connections:
        door.connections.answer(connection, 1.0)
        door.connections.read(connection, 100, 1.0)
    for connection in connections[1:]:
        door.connections.took(connection, 2.5)
    assert door.connections.end_stalled(2.6)
    assert not door.connections.end_stalled(2.6)
    assert door.ended == ["0"]


def test_bytes_are_counted_until_they_are_read_or_their_reader_is_gone(door: Door) -> None:
    one, two = door.enter("one"), door.enter("two")
    for connection, size in ((one, 100), (two, 50)):
        door.connections.answer(connection, 1.0)
        door.connections.read(connection, size, 1.0)
    assert door.connections.unread == 150
    door.connections.idle(one, 2.0)
    assert door.connections.unread == 50
    assert door.held == [100, 150, 50]
    assert door.connections.end_stalled(3.0)
    assert (door.connections.unread, door.ended) == (0, ["two"])
    door.connections.leave(two)
    door.connections.read(two, 70, 4.0)  # its greenlet has not heard yet
    assert door.connections.unread == 0


def test_an_answer_waits_until_less_is_unread(door: Door) -> None:
    memory, reader, now = AnswerMemory(door.connections, Outgoing(1)), door.enter("reader"), monotonic()
    door.connections.answer(reader, now)
    door.connections.read(reader, 64 << 20, now)
    waits = gevent.spawn(memory.for_any)
    come_to_rest()
    assert not waits.ready()
    door.connections.idle(reader, now)
    waits.get(timeout=60)


def test_the_oldest_stream_gives_way_to_a_new_one(door: Door) -> None:
    honest = door.enter("honest", "here")
    door.connections.answer(honest, 0.5)
    door.connections.follow(honest, 0.5)
    for number in range(door.connections.most_following):
        connection = door.enter(f"{number}")
        door.connections.answer(connection, 1.0 + number)
        door.connections.follow(connection, 1.0 + number)
    assert door.ended == ["0"]


class Asked:
    """Peers that want a turn each, and the order in which they had it."""

    def __init__(self, line: FairTurns) -> None:
        self._line = line
        self.order: list[str] = []
        self.refused: list[str] = []
        self.over = gevent.event.Event()

    def ask(self, name: str, had: int) -> None:
        gevent.spawn(self._ask, name, had)
        come_to_rest()

    def _ask(self, name: str, had: int) -> None:
        try:
            with self._line.turn(had):
                self.order.append(name)
                self.over.wait()
        except UnavailableError:
            self.refused.append(name)


def test_who_has_had_least_comes_first_and_of_two_the_one_that_came_first() -> None:
    asked = Asked(FairTurns(1, 10))
    for name, had in (("first", 900), ("greedy", 800), ("honest", 0), ("later", 0)):
        asked.ask(name, had)
    assert asked.order == ["first"]
    asked.over.set()
    come_to_rest()
    assert asked.order == ["first", "honest", "later", "greedy"]


def test_one_too_many_is_refused_at_once() -> None:
    asked = Asked(FairTurns(1, 1))
    for name in ("first", "waits", "refused"):
        asked.ask(name, 0)
    assert asked.refused == ["refused"]
    asked.over.set()
    come_to_rest()
    assert asked.order == ["first", "waits"]


def test_who_leaves_while_it_waits_takes_no_turn_and_no_place_in_the_line() -> None:
    line = FairTurns(1, 1)
    over, had = gevent.event.Event(), list[str]()

    def ask(name: str) -> None:
        with line.turn(0):
            had.append(name)
            over.wait()

    first, waits = gevent.spawn(ask, "first"), gevent.spawn(ask, "waits")
    come_to_rest()
    waits.kill()
    granted = gevent.spawn(ask, "granted")
    come_to_rest()
    over.set()
    first.join()
    granted.kill()  # as its turn comes
    with line.turn(0):
        assert had[0] == "first"


def test_a_turn_of_a_peer_that_leaves_as_it_gets_it_is_the_next_ones() -> None:
    line = FairTurns(1, 2)
    line.take(0)
    leaves, following = (gevent.spawn(line.take, 0) for _ in range(2))
    come_to_rest()
    leaves.kill(block=False)
    line.give_on()
    come_to_rest()
    assert following.successful()


def test_a_peer_that_leaves_gives_nobody_a_turn() -> None:
    line = FairTurns(1, 2)
    line.take(0)
    waits, leaves = (gevent.spawn(line.take, 0) for _ in range(2))
    come_to_rest()
    leaves.kill()
    come_to_rest()
    assert not waits.ready()
    waits.kill()


def test_a_turn_that_fails_is_given_back_once() -> None:
    line = FairTurns(1, 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), line.turn(0):
            raise ZeroDivisionError
    asked = Asked(line)
    for name in ("first", "waits"):
        asked.ask(name, 0)
    assert asked.order == ["first"]
    asked.over.set()
    come_to_rest()


def test_a_peer_without_a_turn_is_refused_when_its_patience_is_over_and_its_place_is_free() -> None:
    # Given a clock on which each look at the line takes a second
    time = VirtualTime()
    looks: list[float] = []

    def look() -> None:
        time.value += 1.0
        looks.append(time.value)

    line = FairTurns(1, 1, look, 3.0, time.now)
    line.take(0)
    # When a peer waits, and another one after it
    for _ in range(2):
        looks.clear()
        with pytest.raises(UnavailableError, match="too many requests"):
            line.take(0)
        # Then it has waited for three seconds, and takes no turn
        assert len(looks) == 3
    line.give_on()
    line.take(0)


def test_who_waits_has_something_done_meanwhile_that_may_end_its_wait() -> None:
    over = gevent.event.Event()
    line = FairTurns(1, 1, over.set)

    def hold() -> None:
        with line.turn(0):
            over.wait()

    gevent.spawn(hold)
    come_to_rest()
    with line.turn(0):
        assert over.is_set()


def test_the_pace_is_one_turn_of_the_hub_each_and_who_has_had_least_comes_first() -> None:
    pace, order = HubPace(), list[str]()

    def ask(name: str, had: int) -> None:
        pace.wait(had)
        order.append(name)

    all_of_them = [gevent.spawn(ask, *args) for args in (("first", 9), ("greedy", 8), ("honest", 0))]
    gevent.sleep(0)
    assert order == ["first"]
    gevent.joinall(all_of_them)
    assert order == ["first", "honest", "greedy"]


LOCAL, OPEN = "127.0.0.1:5580", "0.0.0.0:5580"


@pytest.mark.parametrize(
    "host",
    ["", "localhost", "LOCALHOST", "LocalHost:5580", "localhost.", "127.0.0.1", "[::1]:80", "10.0.0.7:5580"],
)
@pytest.mark.parametrize("address", [LOCAL, "localhost:5580", OPEN])
def test_a_door_is_called_by_an_address_or_as_localhost(address: str, host: str) -> None:
    assert HostNames(address, ()).may_be_called(host)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "[", "a:b", "localhost:x", "::1:"],
)
@pytest.mark.parametrize("address", [LOCAL, "[::1]:5580", "localhost:5580"])
def test_a_local_door_is_called_by_no_other_name(address: str, host: str) -> None:
    assert not HostNames(address, ()).may_be_called(host)
    assert not HostNames(address, ("mq.example.com",)).may_be_called(host)


@pytest.mark.parametrize("host", ["mq.example.com", "MQ.Example.com:8443", "mq.example.com."])
@pytest.mark.parametrize("address", [LOCAL, OPEN])
def test_names_of_the_configuration_are_names_of_the_door(address: str, host: str) -> None:
    assert HostNames(address, ("MQ.example.com",)).may_be_called(host)


def test_an_open_door_without_names_is_called_as_anybody_likes_and_with_names_by_them_alone() -> None:
    assert HostNames(OPEN, ()).may_be_called("any.example")
    assert not HostNames(OPEN, ("mq.example.com",)).may_be_called("any.example")
    assert HostNames(OPEN, ("mq.example.com",)).may_be_called("10.0.0.7")


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("http://127.0.0.1:5580", "127.0.0.1:5580", True),
        ("http://Localhost:5580", "localhost:5580", True),
        ("https://mq.example.com", "127.0.0.1:5580", True),
        ("https://mq.example.com:8443", "mq.example.com", True),
        ("https://mq.example.com:9000", "127.0.0.1:5580", False),
        ("https://evil.example", "127.0.0.1:5580", False),
        ("null", "", False),
        ("", "", False),
        ("http://[", "[", False),
    ],
)
def test_an_order_comes_from_a_page_of_the_door(origin: str, host: str, *, own: bool) -> None:
    assert HostNames(LOCAL, ("mq.example.com", "mq.example.com:8443")).is_own_page(origin, host) == own
