"""Lines of the HTTP door: who has had least comes first, and nobody waits for ever."""

from __future__ import annotations

import gevent
import pytest

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.http import HubPace
from sluicemq_broker.http.fair_turns import FairTurns
from support.virtual_time import VirtualTime, come_to_rest


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
