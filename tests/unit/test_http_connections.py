"""Who gives way at the HTTP door: who only waits, who reads nothing, the oldest streams."""

from __future__ import annotations

import pytest

from sluicemq_broker.http.connections import Connection, Connections
from sluicemq_broker.runtime import Counters

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


def test_the_oldest_stream_gives_way_to_a_new_one(door: Door) -> None:
    honest = door.enter("honest", "here")
    door.connections.answer(honest, 0.5)
    door.connections.follow(honest, 0.5)
    for number in range(door.connections.most_following):
        connection = door.enter(f"{number}")
        door.connections.answer(connection, 1.0 + number)
        door.connections.follow(connection, 1.0 + number)
    assert door.ended == ["0"]
