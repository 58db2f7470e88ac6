"""Rates of a principal: its connections wait for what they have sent too much, all of them together."""

from __future__ import annotations

import pytest

from sluicemq_broker.security.rates import Limits, Rates
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


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


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


def test_a_connection_that_waits_already_is_held_once_and_pays_for_what_it_had_sent(
    rates: Rates, time: VirtualTime
) -> None:
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
        for each in senders:
            if each.is_read:
                sent += 1
                rates.hold(each, 1, 1)
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
