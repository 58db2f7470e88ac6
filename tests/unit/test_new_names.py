"""Names of queues: how fast new ones are made, and which may have been meant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.protocol.errors import QueueFullError
from sluicemq_broker.context import NewNames
from sluicemq_broker.queues.names import nearest
from sluicemq_broker.runtime import Count, Counters


class Rig:
    """New names, in time that passes when the test says so."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.now = 0.0
        self.names = NewNames(self.counters)

    def made(
        self, peer: str | None, count: int, *, there: int = 0, most: int = 10**6, plain: bool = False
    ) -> int:
        """How many names this peer has made that wants so many."""
        for number in range(count):
            try:
                self.names.ask("queue 'a'", peer, self.now, there=there + number, most=most, plain=plain)
            except QueueFullError:
                return number
        return count


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_one_peer_makes_a_hundred_at_once_and_ten_a_second(rig: Rig) -> None:
    assert rig.made("flood", 1000) == 100
    rig.now = 3.0
    assert rig.made("flood", 1000) == 30


def test_a_flood_leaves_room_for_others_and_several_for_peers_that_have_made_few(rig: Rig) -> None:
    floods = [rig.made(f"flood {number}", 1000) for number in range(5)]
    assert floods == [100, 51, 10, 10, 10]  # the first of a peer are its few
    assert [rig.made(f"honest {number}", 3) for number in range(5)] == [3] * 5


def test_over_all_peers_there_is_a_bound_too(rig: Rig) -> None:
    assert sum(rig.made(f"peer {number}", 1) for number in range(1000)) == 200
    rig.now = 2.0
    assert sum(rig.made(f"another {number}", 1) for number in range(1000)) == 40


def test_a_tenth_of_all_is_left_by_peers_that_made_many_and_by_plain_sockets(rig: Rig) -> None:
    assert rig.made("many", 30, there=70, most=100) == 20
    assert rig.made("plain", 5, there=88, most=100, plain=True) == 2
    assert rig.made("few", 20, there=85, most=100) == 10
    rig.names.ask("queue 'a'", "another", 0.0, there=99, most=100)
    with pytest.raises(QueueFullError):
        rig.names.ask("queue 'a'", "another", 0.0, there=100, most=100)


def test_what_the_operator_makes_has_no_rate_but_the_bound(rig: Rig) -> None:
    assert rig.made(None, 1000) == 1000
    assert rig.made(None, 1000, there=995, most=1000) == 5


def test_each_refusal_is_counted(rig: Rig) -> None:
    rig.made("flood", 1000)
    assert rig.counters.values[Count.NAMES_REFUSED] == 1


def test_a_rest_of_thousands_of_peers_is_not_remembered_for_ever(rig: Rig) -> None:
    for number in range(20_000):
        rig.now += 0.1
        rig.made(f"peer {number}", 1)
    assert list(rig.names.peers) == [f"peer {number}" for number in range(10_000, 20_000)]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("maill", "mail"),
        ("Mail", "mail"),
        ("mial", "mail"),
        ("resise", "resize"),
        ("nope", None),
        ("x", None),
    ],
)
def test_a_typing_error_is_understood_and_another_word_is_not(name: str, meant: str | None) -> None:
    assert nearest(name, ["mail", "resize", "mail-archive-of-last-year"]) == meant


def test_of_many_alike_the_nearest_is_meant() -> None:
    assert nearest("shard-0999x", (f"shard-{number:04}" for number in range(2000))) == "shard-0999"


@given(st.text("ab-", min_size=1, max_size=64), st.lists(st.text("abAB-", min_size=1, max_size=64)))
def test_what_is_named_is_known(name: str, known: list[str]) -> None:
    assert nearest(name, known) in {None, *known}
