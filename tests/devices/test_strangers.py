"""Clients that are not known yet: how many an address has, whose handshake ends first, and their time."""

from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
import zmq
from gevent.event import Event

from devices.keyed_sockets import CLIENT, KeyGuard, as_client, new_pair
from devices.plain_sockets import ANY_PORT, Clients, Notices, dial, ended, eventually, send, shake_hands
from sluicemq_devices.hub import NEXT_TURN, Mishap, SpareTime, StrangersTime, TimeUsed
from sluicemq_devices.sockets import LaneDoor, Switchboard
from sluicemq_devices.sockets.addresses import Addresses, address_of
from support.virtual_time import VirtualTime


class Stranger:
    """A handshake that does not end by itself."""

    def __init__(self, addresses: Addresses, peer: str) -> None:
        self.peer, self.why = peer, ""
        self._addresses = addresses
        addresses.opened(peer)
        self.address = addresses.begin(self)

    def give_way(self, why: str) -> None:
        self.why = why
        self.end()

    def end(self, *, failed: bool = False) -> None:
        self._addresses.end(self.address, self)
        if failed:
            self.address.failed()
        self._addresses.closed(self.peer)


@pytest.fixture
def clock() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
def addresses(clock: VirtualTime) -> Addresses:
    addresses = Addresses(None, now=clock.now)
    addresses.most_handshakes = 5
    return addresses


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("tcp://192.0.2.1:4711", "192.0.2.1"),
        ("tcp://[2001:db8:1:2:3:4:5:6]:80", "2001:db8:1:2::/64"),
        ("tcp://[2001:db8:1:2:ffff::]:81", "2001:db8:1:2::/64"),
        ("tcp://[fe80::1%lo]:81", "fe80::/64"),
        ("tcp://[::ffff:192.0.2.1]:80", "192.0.2.1"),
        ("ipc", "ipc"),
    ],
)
def test_the_owner_of_an_ipv6_network_is_one_address(peer: str, address: str) -> None:
    assert address_of(peer) == address


def test_one_handshake_too_many_ends_the_oldest_of_the_address_with_the_most(addresses: Addresses) -> None:
    # Given three of one address, and two of others, which are older
    others = [Stranger(addresses, f"tcp://192.0.2.{number}:1") for number in (1, 2)]
    crowd = [Stranger(addresses, f"tcp://192.0.2.9:{number}") for number in range(3)]
    # When more come
    more = [Stranger(addresses, "tcp://192.0.2.3:1"), Stranger(addresses, "tcp://192.0.2.9:9")]
    # Then the crowd loses its oldest, whoever came
    assert [bool(other.why) for other in (*crowd, *others, *more)] == [True, True, *[False] * 5]
    assert "3 of 192.0.2.9" in crowd[0].why
    assert addresses.handshakes == 5
    # And those that end by themselves leave nothing
    for other in (*crowd[2:], *others, *more):
        other.end()
    assert (addresses.handshakes, len(addresses)) == (0, 0)


def test_as_many_handshakes_as_may_be_end_in_order_whatever_ends_between(addresses: Addresses) -> None:
    first = [Stranger(addresses, "tcp://192.0.2.1:1") for _ in range(3)]
    second = [Stranger(addresses, "tcp://192.0.2.2:1") for _ in range(2)]
    for stranger in first[:2]:  # now the second has more
        stranger.end()
    addresses.most_handshakes = 3
    third = Stranger(addresses, "tcp://192.0.2.3:1")
    assert [bool(stranger.why) for stranger in second] == [True, False]
    assert not any(stranger.why for stranger in (first[2], third))


def test_an_address_that_fails_each_second_is_suspect(addresses: Addresses, clock: VirtualTime) -> None:
    def fail() -> bool:
        stranger = Stranger(addresses, "tcp://192.0.2.1:1")
        stranger.end(failed=True)
        return stranger.address.fails_often

    assert [fail() for _ in range(22)].index(True) == 20
    assert not Stranger(addresses, "tcp://192.0.2.2:1").address.fails_often
    for _ in range(1000):  # what it did before makes it wait no longer than half a minute
        fail()
    clock.value += 25.0
    assert not Stranger(addresses, "tcp://192.0.2.1:1").address.fails_often


def test_addresses_without_connections_are_remembered_up_to_a_bound(addresses: Addresses) -> None:
    for number in range(10_000):
        Stranger(addresses, f"tcp://10.0.{number // 250}.{number % 250}:1").end(failed=True)
    assert len(addresses) == 4096


# ----------------------------------------------------------------------------- time


def test_strangers_use_a_tenth_at_once_and_then_wait(clock: VirtualTime) -> None:
    clock.value = 1000.0
    strangers = StrangersTime(clock.now, clock.now)
    assert not strangers.is_over
    strangers.used(0.010)
    assert strangers.is_over
    clock.value += 0.05
    assert not strangers.is_over
    strangers.used(0.0049)
    assert not strangers.is_over
    strangers.used(0.0002)
    assert strangers.is_over


def test_a_hub_without_other_work_gives_strangers_all_its_time_and_a_busy_one_a_tenth() -> None:
    # Given a stranger who always wants more, and has used more than a tenth
    strangers, done = StrangersTime(), Event()
    served: list[None] = []
    strangers.used(1.0)

    def again() -> None:
        served.append(None)
        if len(served) < 10_000:
            strangers.wait(again, TimeUsed())
        else:
            done.set()

    strangers.wait(again, TimeUsed())
    # When the hub is never idle
    for _ in range(1000):
        gevent.sleep(NEXT_TURN)
    # Then it waits
    assert len(served) < 100
    # And when nobody has work, turn follows turn
    assert done.wait(60)
    assert not len(strangers)


# ---------------------------------------------------------------------------- doors


class _SpareTime(SpareTime):
    turns = 0

    def wait(self, turn: Callable[[], None], time_used: TimeUsed) -> None:
        self.turns += 1
        super().wait(turn, time_used)


def _door(board: Switchboard, inbox: list[Any], **options: Any) -> LaneDoor:
    return LaneDoor(
        board, ANY_PORT, "PULL", lambda lane: lane.on(receive=inbox.extend), max_frame=1000, **options
    )


@pytest.fixture
def inbox() -> list[Any]:
    return []


@pytest.fixture
def make_board(notices: Notices) -> Iterator[Callable[..., Switchboard]]:
    boards: list[Switchboard] = []

    def make(**options: Any) -> Switchboard:
        board = Switchboard(notice=lambda kind, text: notices.append((kind, text)), **options)
        boards.append(board)
        board.start()
        return board

    yield make
    for board in boards:
        board.stop()


@pytest.mark.parametrize("said", [b"", b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48)])
def test_who_says_nothing_makes_room_for_who_shakes_hands(
    make_board: Callable[..., Switchboard],
    notices: Notices,
    inbox: list[Any],
    started: Callable[[Any], Any],
    said: bytes,
) -> None:
    # Given as many strangers as may be there, who stop within their handshake
    board = make_board(max_handshakes=10, handshake=60.0)
    door = started(_door(board, inbox))
    strangers = []
    for _ in range(10):
        strangers.append(dial(door.address))
        strangers[-1].sendall(said)
    eventually(lambda: door.connections == 10)
    # When clients come from the same address
    clients = [shake_hands(door.address, b"PUSH") for _ in range(3)]
    for client in clients:
        client.sendall(b"\x00\x02ok")
    # Then they get in, and the stranger that came first has gone: one place is enough for one after the other
    eventually(lambda: inbox == [[b"ok"]] * 3)
    assert ended(strangers[0])
    assert len(notices.of(Mishap.HANDSHAKES_ENDED)) == 1
    assert board.addresses.handshakes == 9
    for stranger in (*strangers, *clients):
        stranger.close()
    eventually(lambda: not door.connections)
    assert board.addresses.handshakes == 0


def test_an_address_has_no_more_connections_than_it_may_have(
    make_board: Callable[..., Switchboard], notices: Notices, inbox: list[Any], started: Callable[[Any], Any]
) -> None:
    door = started(_door(make_board(max_connections_per_address=2), inbox))
    clients = [shake_hands(door.address, b"PUSH") for _ in range(2)]
    assert ended(dial(door.address))
    (text,) = notices.of(Mishap.CONNECTIONS_REFUSED)
    assert "2 connections of 127.0.0.1 are open, max_connections_per_address" in text
    clients.pop().close()
    eventually(lambda: door.connections == 1)
    shake_hands(door.address, b"PUSH").sendall(b"\x00\x02ok")
    eventually(lambda: inbox == [[b"ok"]])


def test_an_address_that_shows_many_bad_keys_is_read_in_spare_time_and_others_of_it_get_in(
    make_board: Callable[..., Switchboard],
    notices: Notices,
    inbox: list[Any],
    started: Callable[[Any], Any],
    clients: Clients,
) -> None:
    # Given an address with many clients whose keys are unknown
    board = make_board()
    board.spare = spare = _SpareTime()
    door = started(_door(board, inbox, guard=KeyGuard()))
    bad = [clients.connect(zmq.PUSH, door.address, **as_client(new_pair())) for _ in range(30)]
    eventually(lambda: len(notices.of(Mishap.HANDSHAKES_REFUSED)) > 25)
    # When one with a good key comes from there
    good = clients.connect(zmq.PUSH, door.address, **as_client(CLIENT))
    send(good, b"hello")
    # Then it gets in, in spare time
    eventually(lambda: inbox == [[b"hello"]])
    assert spare.turns
    for stranger in bad:
        stranger.close()


def test_a_peer_that_waits_for_its_turn_is_not_told_of_another_mechanism_than_its_own(
    make_board: Callable[..., Switchboard], inbox: list[Any], notices: Notices
) -> None:
    # Given a door of PLAIN and CURVE whose strangers have no turn for some tenths of a handshake's time
    board = make_board(handshake=2.0)
    time = board.strangers_time = _NoTime()
    door = _door(board, inbox, guard=KeyGuard(passwords={"anna": "secret"}))
    door.start()
    with zmq.Context() as context, context.socket(zmq.PUSH) as client:
        for name, value in {**as_client(), "linger": 0}.items():
            setattr(client, name, value)
        client.connect(door.address)
        # When one has come, and its turn comes late
        eventually(lambda: time.turns)
        gevent.spawn_later(0.7, time.begin)
        # Then it gets in with its own mechanism, at once
        client.send(b"in")
        eventually(lambda: inbox)
    assert [kind for kind, _ in notices] == []


class _NoTime(StrangersTime):
    """Time of strangers in which nobody has a turn until it begins."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[Callable[[], None]] = []
        self._began = False

    @property
    def is_over(self) -> bool:
        return not self._began

    def wait(self, turn: Callable[[], None], time_used: TimeUsed) -> None:
        if self._began:
            super().wait(turn, time_used)
        else:
            self.turns.append(turn)

    def begin(self) -> None:
        self._began = True
        for turn in self.turns:
            turn()
