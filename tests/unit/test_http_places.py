"""Who gives way at the HTTP door: who only waits, who reads nothing, the oldest streams."""

from __future__ import annotations

import pytest

from sluicemq_broker.http.places import Place, Places
from sluicemq_broker.runtime import Counters

MOST = 10


class Door:
    """Places, and who has been ended."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.places = Places(MOST, Counters(), self.held.append)
        self.ended: list[str] = []
        self.now = 0.0

    def enter(self, name: str, address: str = "there") -> Place:
        self.now += 0.001
        return self.places.enter(address, lambda: self.ended.append(name), self.now)


@pytest.fixture
def door() -> Door:
    return Door()


def test_the_one_that_waits_longest_gives_way(door: Door) -> None:
    first, *_ = [door.enter(f"{number}") for number in range(MOST)]
    door.places.asks(first, door.now + 1)  # it has been answered just now
    door.enter("new")
    assert door.ended == ["1"]
    assert len(door.places) == MOST


def test_an_address_with_many_gives_way_to_one_with_few(door: Door) -> None:
    door.enter("honest", "here")
    for number in range(MOST - 1):
        door.enter(f"{number}")
    door.enter("new")
    assert door.ended == ["0"]


def test_who_is_answered_does_not_give_way(door: Door) -> None:
    places = [door.enter(f"{number}") for number in range(MOST)]
    for each in places[:-2]:
        door.places.answer(each, 1.0)
    door.enter("new")
    assert door.ended == [str(MOST - 2)]


def test_who_reads_nothing_is_ended_and_who_reads_is_not(door: Door) -> None:
    places = [door.enter(f"{number}") for number in range(MOST)]
    for each in places:
        door.places.answer(each, 1.0)
        door.places.read(each, 100, 1.0)
    for each in places[1:]:
        door.places.took(each, 2.5)
    assert door.places.end_stalled(2.6)
    assert not door.places.end_stalled(2.6)
    assert door.ended == ["0"]


def test_bytes_are_counted_until_they_are_read_or_their_reader_is_gone(door: Door) -> None:
    one, two = door.enter("one"), door.enter("two")
    for each, size in ((one, 100), (two, 50)):
        door.places.answer(each, 1.0)
        door.places.read(each, size, 1.0)
    assert door.places.unread == 150
    door.places.asks(one, 2.0)
    assert door.places.unread == 50
    assert door.held == [100, 150, 50]
    assert door.places.end_stalled(3.0)
    assert (door.places.unread, door.ended) == (0, ["two"])
    door.places.leave(two)
    door.places.read(two, 70, 4.0)  # its greenlet has not heard yet
    assert door.places.unread == 0


def test_the_oldest_stream_gives_way_to_a_new_one(door: Door) -> None:
    honest = door.enter("honest", "here")
    door.places.answer(honest, 0.5)
    door.places.follow(honest, 0.5)
    for number in range(door.places.most_following):
        place = door.enter(f"{number}")
        door.places.answer(place, 1.0 + number)
        door.places.follow(place, 1.0 + number)
    assert door.ended == ["0"]
