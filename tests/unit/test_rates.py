"""Rates of a principal: its connections wait for what they have sent too much, all of them together."""

import pytest

from sluicemq.protocol.errors import QueueFullError
from sluicemq.protocol.permissions import Permissions
from sluicemq_broker.runtime import Count, Counters
from sluicemq_broker.security import Caller, Limits, Principal, charge, pay_for_one, put_back, takes
from sluicemq_broker.security.rates import Rates
from support.virtual_time import VirtualTime


class Sender:
    """A connection that is read or not."""

    def __init__(self) -> None:
        self.paused_by: set[object] = set()

    def pause(self, by: object) -> None:
        assert by not in self.paused_by
        self.paused_by.add(by)

    def resume(self, by: object) -> None:
        self.paused_by.remove(by)

    @property
    def is_read(self) -> bool:
        return not self.paused_by


class Connection(Sender):
    """A connection of a principal, and what it got back to be read again later."""

    peer = "tcp://127.0.0.1:1"

    def __init__(self, principal: Principal) -> None:
        super().__init__()
        self.who = Caller(principal, self.peer)
        self.unread: list[list[bytes]] = []

    def take_back(self, messages: list[list[bytes]]) -> None:
        self.unread += messages


class Notes(Counters):
    """Counters that keep what they are told."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[tuple[str, str]] = []

    def notice(self, name: str, text: str, *_more: object) -> None:
        self.texts.append((name, text))


@pytest.fixture
def rates(time: VirtualTime) -> Rates:
    return Rates(time.now, time.after)


def test_a_connection_waits_as_long_as_its_jobs_take_at_the_rate(rates: Rates, time: VirtualTime) -> None:
    rates.use(Limits(rate=10))
    sender = Sender()
    assert not rates.hold(sender, 10, 1)  # as many as in a second
    assert rates.hold(sender, 20, 1)
    time.passes(1.9)
    assert not sender.is_read
    time.passes(0.2)
    assert sender.is_read
    assert rates.held == 1


def test_a_connection_that_waits_is_held_once_and_pays_for_all(rates: Rates, time: VirtualTime) -> None:
    rates.use(Limits(rate=10))
    sender = Sender()
    assert rates.hold(sender, 20, 1)
    assert not rates.hold(sender, 10, 1)  # lay in its buffers
    assert rates.in_debt(sender)
    assert (rates.held, time.pending) == (1, 1)
    time.passes(1.9)
    assert not sender.is_read
    time.passes(0.2)
    assert sender.is_read


def test_bytes_have_a_rate_of_their_own(rates: Rates, time: VirtualTime) -> None:
    rates.use(Limits(rate=1000, bytes_rate=100))
    sender = Sender()
    assert not rates.hold(sender, 1, 100)
    assert rates.hold(sender, 1, 500)
    time.passes(4.9)
    assert not sender.is_read
    time.passes(0.2)
    assert sender.is_read


def test_all_connections_of_a_principal_share_its_rate(rates: Rates, time: VirtualTime) -> None:
    rates.use(Limits(rate=10))
    first, second = Sender(), Sender()
    assert rates.hold(first, 20, 1)
    assert rates.hold(second, 10, 1)
    assert time.pending == 1  # one timer for all of them
    time.passes(1.9)
    assert [first.is_read, second.is_read] == [False, False]
    time.passes(0.2)
    assert [first.is_read, second.is_read] == [True, True]


def test_in_the_long_run_no_more_comes_in_than_the_rate_allows(rates: Rates, time: VirtualTime) -> None:
    rates.use(Limits(rate=100))
    senders = [Sender() for _ in range(5)]
    sent = 0
    for _ in range(1000):
        time.passes(0.01)
        for sender in senders:
            if sender.is_read:
                sent += 1
                rates.hold(sender, 1, 1)
    assert 950 <= sent <= 1110  # ten seconds, and what may come at once


@pytest.mark.parametrize("change", [Limits(), Limits(rate=20)])
def test_other_limits_hold_at_once(rates: Rates, change: Limits) -> None:
    rates.use(Limits(rate=0.001))
    sender = Sender()
    assert rates.hold(sender, 10, 1)
    rates.use(change)
    assert sender.is_read
    assert not rates.hold(sender, 10, 1)


def test_the_same_limits_again_forgive_nothing(rates: Rates) -> None:
    rates.use(Limits(rate=0.001))
    sender = Sender()
    assert rates.hold(sender, 10, 1)
    rates.use(Limits(rate=0.001))
    assert not sender.is_read


def test_a_broker_that_stops_reads_everything(rates: Rates) -> None:
    rates.use(Limits(rate=0.001))
    sender = Sender()
    assert rates.hold(sender, 10, 1)
    rates.open()
    assert sender.is_read
    assert not rates.hold(sender, 10, 1)


def test_a_connection_that_comes_while_others_pay_sends_nothing(rates: Rates, time: VirtualTime) -> None:
    rates.use(Limits(rate=10))
    assert rates.hold(Sender(), 20, 1)
    late = Sender()
    assert rates.in_debt(late)
    assert not rates.pay(1)
    assert not late.is_read
    time.passes(1.1)
    assert late.is_read
    assert not rates.in_debt(late)
    assert rates.pay(1)


def test_jobs_that_cant_wait_are_counted(rates: Rates) -> None:
    rates.use(Limits(rate=10))
    assert rates.pay(10)
    assert rates.pay(5)  # what is there is spent, and nothing is owed yet
    assert not rates.pay(1)
    rates.open()
    assert rates.pay(1)
    rates.use(Limits(bytes_rate=10))
    assert all(rates.pay(1000) for _ in range(3))


class TestPrincipal:
    """What connections of a principal have sent, and what it hears of its limits."""

    @pytest.fixture
    def principal(self, rates: Rates) -> Principal:
        made = Principal("eve", Permissions())
        made.rates = rates
        made.change(Permissions(), limits=Limits(rate=10, bytes_rate=100.5))
        return made

    @pytest.fixture
    def lane(self, principal: Principal) -> Connection:
        return Connection(principal)

    @pytest.fixture
    def notes(self) -> Notes:
        return Notes()

    too_much = (
        Count.THROTTLED,
        "eve from tcp://127.0.0.1:1 sends more than 10 jobs or messages a second and 100.5 bytes a second",
    )

    def test_a_connection_that_sends_too_much_is_noted_once(self, lane: Connection, notes: Notes) -> None:
        charge(lane, 10, 1, notes)
        assert (notes.texts, lane.is_read) == ([], True)
        for _ in range(2):
            charge(lane, 10, 1, notes)
        assert (notes.texts, lane.is_read) == ([self.too_much], False)

    def test_messages_are_put_back_until_earlier_ones_are_paid_for(
        self, principal: Principal, lane: Connection, notes: Notes, time: VirtualTime
    ) -> None:
        assert takes(lane, notes)
        assert not put_back(lane, [[b"1"]], notes)
        charge(Connection(principal), 20, 1, Notes())
        assert put_back(lane, [[b"1"]], notes)
        assert put_back(lane, [[b"2"]], notes)
        assert not takes(lane, notes)
        assert (notes.texts, lane.unread, lane.is_read) == ([self.too_much], [[b"1"], [b"2"]], False)
        time.passes(1.1)
        assert takes(lane, notes)
        assert lane.is_read

    def test_a_job_that_cant_wait_is_refused_while_earlier_ones_are_owed(self, principal: Principal) -> None:
        for _ in range(11):
            pay_for_one(principal)
        with pytest.raises(QueueFullError, match="eve sends more than 10 jobs or messages a second and"):
            pay_for_one(principal)

    def test_one_limit_is_named_alone(self, principal: Principal, rates: Rates) -> None:
        principal.change(Permissions(), limits=Limits(bytes_rate=7))
        rates.hold(Sender(), 1, 8)
        with pytest.raises(QueueFullError, match="eve sends more than 7 bytes a second: try"):
            pay_for_one(principal)

    def test_a_principal_without_limits_sends_any_number(self, principal: Principal, notes: Notes) -> None:
        principal.rates = None
        lane = Connection(principal)
        for _ in range(3):
            charge(lane, 10**9, 10**9, notes)
            assert takes(lane, notes)
            pay_for_one(principal)
        assert (notes.texts, lane.is_read) == ([], True)
