"""Which address a client dials next: every one once a round, the lost one last, pauses that grow."""

import threading
from collections.abc import Sequence
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.transport.candidates import Candidate, Candidates, TakenEndpoints
from sluicemq.transport.names import Address, Names
from support.waiting import wait_until

V4, V6 = Address("10.0.0.1", ipv6=False), Address("[fd00::1]", ipv6=True)


class Lookups(Names):
    """The addresses of names at this moment; a name that is not in ``now`` has no answer yet."""

    def __init__(self, **now: Sequence[Address]) -> None:
        super().__init__(lambda: None)
        self.now: dict[str, Sequence[Address]] = dict(now)
        self.asked: list[str] = []

    def look_up(self, host: str) -> None:
        self.asked.append(host)
        self._sought.add(host)

    def collect(self) -> None:
        for host in [name for name in self._sought if name in self.now]:
            self._sought.discard(host)
            self._known[host] = tuple(self.now[host])


def candidates(*endpoints: str, names: Names | None = None, seed: int = 0) -> Candidates:
    return Candidates(endpoints, names or Lookups(), Random(seed))


def a_round(made: Candidates, now: float = 0.0) -> list[Candidate]:
    """All candidates of a round in vain."""
    found: list[Candidate] = []
    before = made.rounds
    while made.rounds == before:
        candidate = made.next(now)
        if candidate is None:
            return found
        found.append(candidate)
        made.failed(now)
    return found


def endpoints_of(found: Sequence[Candidate]) -> list[str]:
    return [candidate.endpoint for candidate in found]


ENDPOINTS = [f"tcp://10.0.0.{number}:5550" for number in range(1, 9)]


@given(st.integers(1, 8), st.integers(0, 2**32), st.integers(1, 6))
def test_each_round_has_every_address_once(count: int, seed: int, rounds: int) -> None:
    made = candidates(*ENDPOINTS[:count], seed=seed)
    now = 0.0
    for _ in range(rounds):
        assert sorted(endpoints_of(a_round(made, now))) == ENDPOINTS[:count]
        now = made.due


@given(st.integers(0, 2**32))
def test_a_pause_is_at_most_twice_the_last_one_and_ends_at_a_second(seed: int) -> None:
    made = candidates("tcp://10.0.0.1:1", seed=seed)
    now, longest = 0.0, 0.05
    for _ in range(12):
        a_round(made, now)
        assert made.next(now) is None or made.due == now
        assert now <= made.due <= now + longest
        now, longest = made.due, min(1.0, 2 * longest)


def test_the_first_of_many_clients_are_spread_over_all_brokers() -> None:
    firsts = {candidates(*ENDPOINTS, seed=seed).next(0.0) for seed in range(200)}
    assert sorted(endpoints_of([first for first in firsts if first])) == ENDPOINTS


@given(st.integers(2, 8), st.integers(0, 2**32))
def test_after_a_loss_the_others_come_at_once_and_the_lost_one_last(count: int, seed: int) -> None:
    made = candidates(*ENDPOINTS[:count], seed=seed)
    lost = made.next(0.0)
    made.greeted(0.1)
    made.failed(5.0)
    assert made.due <= 5.0
    found = a_round(made, 5.0)
    assert found[-1] == lost
    assert sorted(endpoints_of(found)) == ENDPOINTS[:count]


def test_a_broker_that_hangs_up_behind_its_greeting_is_a_try_in_vain() -> None:
    made = candidates("tcp://10.0.0.1:1")
    pauses = []
    now = 0.0
    for _ in range(8):
        assert made.next(now)
        made.greeted(now)
        made.failed(now + 0.01)
        pauses.append(made.due - now)
        now = made.due
    assert max(pauses) > 0.1
    made.next(now)
    made.greeted(now)
    made.failed(now + 60)  # this one has lasted
    assert made.due == now + 60
    assert made.rounds == 0


def test_a_greeting_may_take_longer_with_each_round_in_vain_and_for_ever_without_another_address() -> None:
    made = candidates("tcp://10.0.0.1:1", "tcp://10.0.0.2:1")
    limits = []
    now = 0.0
    for _ in range(3):
        made.next(now)
        limits.append(made.greet_within)
        made.failed(now)
        a_round(made, now)
        now = made.due
    assert limits == [2.0, 4.0, 8.0]
    alone = candidates("tcp://10.0.0.1:1")
    alone.next(0.0)
    assert alone.greet_within == inf


def test_all_addresses_of_a_name_are_brokers_and_those_of_a_host_are_one() -> None:
    names = Lookups(brokers=[V4, V6], host=[V4, V6])
    all_of = candidates("dns+tcp://brokers:7", names=names)
    one = candidates("tcp://host:7", names=names)
    found = set(a_round(all_of))
    assert found == {
        Candidate("tcp://10.0.0.1:7", "tcp://10.0.0.1:7", ipv6=False),
        Candidate("tcp://[fd00::1]:7", "tcp://[fd00::1]:7", ipv6=True),
    }
    assert [(candidate.endpoint, candidate.ipv6) for candidate in a_round(one)] == [
        ("tcp://host:7", False),
        ("tcp://host:7", True),
    ]
    assert (all_of.elsewhere, one.elsewhere) == (True, False)
    assert (all_of.several, one.several) == (True, True)


def test_an_address_to_connect_from_chooses_the_family() -> None:
    made = candidates("tcp://10.1.1.1:0;host:7", names=Lookups(host=[V4, V6]))
    assert a_round(made) == [Candidate("tcp://10.1.1.1:0;host:7", "tcp://10.1.1.1:0;10.0.0.1:7", ipv6=False)]


def test_names_are_looked_up_at_each_round_and_a_changed_address_is_found() -> None:
    names = Lookups(a=[V4])
    made = candidates("tcp://a:1", names=names)
    assert [candidate.address for candidate in a_round(made)] == ["tcp://10.0.0.1:1"]
    names.now["a"] = [Address("10.0.0.2", ipv6=False)]
    found = a_round(made, made.due)
    assert found[-1].address == "tcp://10.0.0.2:1"
    assert [candidate.address for candidate in a_round(made, made.due)] == ["tcp://10.0.0.2:1"]


def test_a_lookup_without_an_answer_holds_up_nobody_else_and_ends_the_round_after_two_seconds() -> None:
    names = Lookups()
    made = candidates("tcp://dead:1", "tcp://10.0.0.9:1", names=names)
    first = made.next(0.0)
    assert first
    assert first.endpoint == "tcp://10.0.0.9:1"
    made.failed(0.0)
    assert made.next(1.9) is None
    assert (made.rounds, made.due) == (0, 2.0)
    names.now["dead"] = [V4]  # in time
    late = made.next(1.95)
    assert late
    assert late.address == "tcp://10.0.0.1:1"
    names.now.pop("dead")
    made.failed(1.95)
    assert made.rounds == 1
    # from now on the address of before is dialled at once, whatever DNS does
    assert len(a_round(made, made.due)) == 2


def test_without_any_address_a_round_ends_when_the_lookup_has_ended() -> None:
    names = Lookups()
    made = candidates("tcp://dead:1", names=names)
    assert made.next(0.0) is None
    assert (made.rounds, made.due) == (0, 2.0)
    assert made.next(2.0) is None
    assert made.rounds == 1
    names.now["dead"] = []
    made.next(3.0)
    assert made.rounds == 2


class TestNames:
    """Lookups in threads of their own."""

    def test_an_answer_rings_and_replaces_the_one_before_and_a_failure_leaves_it(self) -> None:
        rings: list[None] = []
        answers: list[Any] = [[V4, V4, V6], OSError("no such name"), [V6]]

        def resolve(_host: str) -> Sequence[Address]:
            answer = answers.pop(0)
            if isinstance(answer, OSError):
                raise answer
            return answer  # type: ignore[no-any-return]

        names = Names(lambda: rings.append(None), resolve)
        for known in ((V4, V6), (V4, V6), (V6,)):
            rings.clear()
            names.look_up("a")
            assert names.sought("a")
            wait_until(lambda: rings, what="the ring")
            names.collect()
            assert not names.sought("a")
            assert names.known("a") == known

    def test_a_dead_server_holds_few_threads_and_the_other_names_wait(self) -> None:
        gate, begun = threading.Event(), []

        def resolve(host: str) -> Sequence[Address]:
            begun.append(host)
            gate.wait(60)
            return [V4]

        names = Names(lambda: None, resolve)
        hosts = [f"h{number}" for number in range(40)]
        for host in hosts * 2:
            names.look_up(host)
        wait_until(lambda: len(begun) == 16, what="the first lookups")
        gate.set()

        def all_known() -> bool:
            names.collect()
            return all(names.known(host) for host in hosts)

        wait_until(all_known, what="all addresses")
        assert sorted(begun) == sorted(hosts)

    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
    def test_a_name_of_this_machine_has_its_addresses(self, host: str) -> None:
        rung: list[None] = []
        names = Names(lambda: rung.append(None))
        names.look_up(host)
        wait_until(lambda: rung, what="the answer")
        names.collect()
        assert Address("127.0.0.1", ipv6=False) in names.known(host)


def test_connections_that_are_kept_apart_have_each_another_endpoint() -> None:
    taken = TakenEndpoints()
    two = [Candidates(ENDPOINTS[:2], Lookups(), Random(seed), taken=taken) for seed in range(3)]
    found = [dialer.next(0.0) for dialer in two]
    assert sorted(candidate.endpoint for candidate in found if candidate) == ENDPOINTS[:2]
    # The third has none, and looks again after a while; that is no round in vain
    third = two[2]
    assert found[2] is None
    assert (third.passed_over, third.rounds, third.due) == (True, 0, 30.0)
    # What one of them has lost others may have
    two[0].greeted(1.0)
    two[0].failed(29.0)
    assert third.next(30.0) == found[0]
    assert two[0].next(30.0) is None


def test_a_broker_that_is_down_is_tried_again_soon_by_the_connection_that_has_none() -> None:
    taken = TakenEndpoints()
    one, other = (Candidates(ENDPOINTS[:2], Lookups(), Random(seed), taken=taken) for seed in range(2))
    assert one.next(0.0)
    assert other.next(0.0)
    other.failed(0.0)
    assert other.next(0.0) is None
    assert other.rounds == 1
    assert other.due <= 1.0


def test_an_address_that_no_answer_has_brought_for_ten_minutes_is_gone_from_its_name() -> None:
    names = Lookups(brokers=[V4, V6])
    made = candidates("dns+tcp://brokers:5550", names=names)
    made.next(0.0)
    there = made.next(0.0)
    assert there
    made.greeted(0.0)
    names.now["brokers"] = [address for address in (V4, V6) if address.text not in there.address]
    # When some answers are without it
    for now in range(30, 600, 30):
        assert not made.vanished(now)
        names.collect()
    # Then one with it is enough to stay
    names.now["brokers"] = [V4, V6]
    made.vanished(600.0)
    names.collect()
    assert not made.vanished(630.0)
    # When all are without it for ten minutes
    names.now["brokers"] = [address for address in (V4, V6) if address.text not in there.address]
    gone = []
    for now in range(660, 1300, 30):
        gone.append(made.vanished(now))
        names.collect()
    assert 660 + 30 * gone.index(True) == 630 + 600


def test_an_endpoint_without_a_name_never_vanishes() -> None:
    made = candidates(ENDPOINTS[0])
    made.next(0.0)
    made.greeted(0.0)
    assert not made.vanished(1000.0)


def test_a_stay_at_one_of_several_brokers_ends_at_some_time_between_its_bounds() -> None:
    # Given: many clients that were driven to one broker
    left: list[float] = []
    for seed in range(100):
        made = Candidates(
            ["tcp://a:1", "tcp://b:1"], Lookups(a=[V4], b=[V4]), Random(seed), stays=(10.0, 20.0)
        )
        assert made.next(0.0)
        made.greeted(5.0)
        left.append(next(now for now in range(100) if made.stayed(float(now))))
    # Then: they leave one by one, and one that knows no other broker stays
    assert min(left) >= 15
    assert max(left) <= 25
    assert len(set(left)) > 5
    alone = Candidates(["tcp://a:1"], Lookups(a=[V4]), Random(0), stays=(10.0, 20.0))
    assert alone.next(0.0)
    alone.greeted(5.0)
    assert not alone.stayed(1000.0)
