"""Clients that number their connections: which of these is the newest, here or at another broker."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sluicemq.protocol.wire import MAX_NUMBER
from sluicemq_broker.bus import BusEvent, BusKind
from sluicemq_broker.doors.smq.clients import ClientConnection, Clients
from support.virtual_time import VirtualTime


@pytest.fixture
def told() -> list[BusEvent]:
    return []


@pytest.fixture
def clients(time: VirtualTime, told: list[BusEvent]) -> Clients:
    made = Clients(time.now)
    others: Any = SimpleNamespace(shared=True, announce=told.append)
    made.channel = lambda: others
    return made


def heard(name: str, number: int) -> BusEvent:
    return BusEvent(BusKind.CLIENT, name, number)


class TestHello:
    """What a HELLO says of its client."""

    @pytest.mark.parametrize("number", [1, 7, MAX_NUMBER])
    @pytest.mark.parametrize("own", ["c", "c" * 64])
    def test_a_client_with_an_id_and_a_number_repeats(self, own: str, number: int) -> None:
        read = ClientConnection.read({"id": own, "connection": number}, "eve")
        assert read == (own, ClientConnection(f"{own}/eve", number))

    @pytest.mark.parametrize("number", [None, 0, -1, MAX_NUMBER + 1, True, 1.0, "1"])
    def test_one_without_a_number_does_not(self, number: Any) -> None:
        assert ClientConnection.read({"id": "c", "connection": number}, "eve") == ("", None)

    @pytest.mark.parametrize("own", [None, 7, b"c", "", "c" * 65, "c/d", "c d", ["c"]])
    def test_nor_does_one_whose_id_is_no_name(self, own: Any) -> None:
        assert ClientConnection.read({"id": own, "connection": 1}, "eve") == ("", None)
        assert ClientConnection.read({}, "eve") == ("", None)


class TestNewest:
    """The newest connection of a client."""

    @pytest.mark.parametrize(("number", "has"), [(1, True), (2, True), (3, False), (4, False)])
    @pytest.mark.parametrize("elsewhere", [False, True])
    def test_a_connection_with_a_lower_number_is_an_older_one(
        self, clients: Clients, number: int, *, has: bool, elsewhere: bool
    ) -> None:
        for value in (3, 2):  # what arrives late makes nothing older
            if elsewhere:
                clients.on_event(heard("c", value))
            else:
                clients.arrived(ClientConnection("c", value))
        assert clients.has_newer_connection(ClientConnection("c", number)) == has

    def test_other_clients_have_their_own(self, clients: Clients) -> None:
        clients.arrived(ClientConnection("c", 3))
        clients.on_event(heard("", 9))  # of nobody
        assert not clients.has_newer_connection(ClientConnection("d", 1))
        assert not clients.has_newer_connection(ClientConnection("", 1))


class TestNotices:
    """Connections of which other brokers are notified."""

    def test_all_but_a_clients_first_one_are_told(self, clients: Clients, told: list[BusEvent]) -> None:
        for number in (1, 2, 3):
            clients.arrived(ClientConnection("c", number))
        assert told == [heard("c", 2), heard("c", 3)]
        assert [BusEvent.read(str(event)) for event in told] == told

    def test_what_another_broker_told_is_not_told_on(self, clients: Clients, told: list[BusEvent]) -> None:
        clients.on_event(heard("c", 2))
        assert told == []

    def test_nobody_is_told_where_a_broker_is_alone(self, time: VirtualTime, told: list[BusEvent]) -> None:
        clients = Clients(time.now)
        clients.arrived(ClientConnection("c", 2))  # as brokers begin
        nobody: Any = SimpleNamespace(shared=False, announce=told.append)
        clients.channel = lambda: nobody
        clients.arrived(ClientConnection("c", 3))
        assert told == []
        assert clients.has_newer_connection(ClientConnection("c", 2))

    def test_few_a_second_are_told(self, clients: Clients, told: list[BusEvent], time: VirtualTime) -> None:
        many = numbered()
        for _ in range(6_000):
            clients.arrived(next(many))
        assert len(told) == 5_000
        time.value += 1.0
        for _ in range(1_000):
            clients.arrived(next(many))
        assert len(told) == 5_500
        assert clients.has_newer_connection(ClientConnection("c6999", 1))


class TestBound:
    """Clients that are remembered."""

    def test_those_that_connected_longest_ago_are_forgotten(self, clients: Clients) -> None:
        many = numbered()
        for _ in range(20_000):
            clients.arrived(next(many))
        clients.arrived(ClientConnection("c0", 2))
        clients.arrived(next(many))
        newer = [
            clients.has_newer_connection(ClientConnection(f"c{number}", 1)) for number in (0, 1, 2, 20_000)
        ]
        assert newer == [True, False, True, True]


def numbered() -> Iterator[ClientConnection]:
    """Yield second connections of clients c0, c1 and so on."""
    number = 0
    while True:
        yield ClientConnection(f"c{number}", 2)
        number += 1
