"""QuerySlots for questions to MongoDB: light peers first, and none takes all."""

from __future__ import annotations

from collections.abc import Iterator

import gevent
import pytest
from gevent.event import Event

from sluicemq_broker.runtime import QuerySlots, SlotUser
from support.virtual_time import VirtualTime

LONG = 1.0  # seconds of a question that is heavy


class Askers:
    """Greenlets that each want a place, and have it until they are let go."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.over = Event()
        self._greenlets: list[gevent.Greenlet[..., None]] = []

    def ask(self, guest: SlotUser, name: str, over: Event | None = None) -> None:
        self._greenlets.append(gevent.spawn(self._ask, guest, name, over or self.over))
        gevent.idle()

    def leave(self) -> None:
        self.over.set()
        gevent.joinall(self._greenlets, raise_error=True, timeout=10)

    def _ask(self, guest: SlotUser, name: str, over: Event) -> None:
        with guest.slot():
            self.inside.append(name)
            over.wait()


@pytest.fixture
def askers() -> Iterator[Askers]:
    askers = Askers()
    yield askers
    askers.leave()


@pytest.fixture
def places() -> QuerySlots:
    return QuerySlots(8, VirtualTime().now)


def heavy(places: QuerySlots) -> SlotUser:
    guest = places.user()
    guest.time_used.used(LONG, more=True)
    return guest


def light(places: QuerySlots) -> SlotUser:
    guest = places.user()
    for _ in range(10):
        guest.answered()
    return guest


def test_a_light_peer_has_a_place_at_once_amid_heavy_ones(places: QuerySlots, askers: Askers) -> None:
    for _ in range(60):
        askers.ask(heavy(places), "heavy")
    assert askers.inside == ["heavy"] * 6
    askers.ask(light(places), "light")
    assert askers.inside[-1] == "light"


def test_one_peer_has_a_quarter_and_its_other_questions_wait(places: QuerySlots, askers: Askers) -> None:
    guest = light(places)
    for _ in range(5):
        askers.ask(guest, "one")
    assert askers.inside == ["one"] * 2
    askers.over.set()
    gevent.idle()
    assert askers.inside == ["one"] * 5


def test_where_all_places_are_taken_a_light_peer_is_next(places: QuerySlots, askers: Askers) -> None:
    first = Event()
    askers.ask(light(places), "first", first)
    for _ in range(7):
        askers.ask(light(places), "full")
    for _ in range(10):
        askers.ask(heavy(places), "heavy")
    askers.ask(light(places), "light")
    assert len(askers.inside) == 8

    first.set()
    gevent.idle()

    assert askers.inside[8:] == ["light"]


def test_a_peer_whose_questions_are_all_answered_gets_light_again(places: QuerySlots) -> None:
    guest = heavy(places)
    level = guest.time_used.level
    for _ in range(10):
        guest.answered()
    assert guest.time_used.level == 0 < level


def test_a_question_that_fails_gives_its_place_back(places: QuerySlots, askers: Askers) -> None:
    guest = light(places)
    for _ in range(20):
        with pytest.raises(ValueError, match="fails"), guest.slot():
            raise ValueError("it fails")
    askers.ask(guest, "next")
    assert askers.inside == ["next"]
