"""What a broker tells others, merged in windows, and what it does at what it hears."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from gevent.queue import Queue

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.bus import BusEvent, BusKind, Channel, EventBus, silent
from sluicemq_broker.runtime import Count, Counters
from support.virtual_time import VirtualTime, come_to_rest

MAIL = BusEvent(BusKind.READY, "mail", 7)
WINDOW = BusKind.READY.window


class FakeTransport:
    """What was sent, and what a test lets it hear."""

    def __init__(self) -> None:
        self.in_store = True
        self.sent: list[list[str]] = []
        self.comes: Queue[list[str] | UnavailableError] = Queue()
        self.greetings: list[Sequence[str]] = []
        self.broken = False

    @contextmanager
    def listen(self, greeting: Sequence[str]) -> Iterator[FakeTransport]:
        self.greetings.append(greeting)
        yield self

    def next(self) -> list[str]:
        come: list[str] | UnavailableError = self.comes.get()
        if isinstance(come, UnavailableError):
            raise come
        return come

    def send(self, lines: Sequence[str]) -> None:
        if self.broken:
            raise UnavailableError("nobody there")
        self.sent.append(list(lines))


class BusRig:
    """A bus with one database, over a transport of which both ends are the test's."""

    def __init__(self, *, shared: bool = True) -> None:
        self.time = VirtualTime()
        self.shared = shared
        self.counters = Counters()
        self.transport = FakeTransport()
        self.heard: list[BusEvent] = []
        self.bus = EventBus(lambda _name: self.transport, lambda _name: self.shared, self.counters, self.time)
        for kind in (BusKind.READY, BusKind.STREAM):
            self.bus.on(kind, self.heard.append)
        self.channel: Channel = self.bus.channel("sluicemq")

    def listen(self) -> None:
        """Begin to listen, and forget that everything is to be looked at."""
        self.bus.start(["sluicemq"])
        come_to_rest()
        self.heard.clear()

    def announce(self, *events: BusEvent) -> None:
        for event in events:
            self.channel.announce(event)
        come_to_rest()

    def hears(self, what: list[str] | UnavailableError) -> None:
        self.transport.comes.put(what)
        come_to_rest()

    @property
    def sent(self) -> list[str]:
        return [line for lines in self.transport.sent for line in lines]


@pytest.fixture
def rig() -> BusRig:
    return BusRig()


def test_an_event_after_a_quiet_time_is_told_at_once(rig: BusRig) -> None:
    rig.announce(MAIL)
    assert rig.sent == ["ready mail 7"]


def test_what_comes_in_its_window_is_told_once_at_the_end_as_it_is_then(rig: BusRig) -> None:
    rig.announce(MAIL, *(MAIL._replace(number=number) for number in range(8, 100)))
    rig.time.passes(WINDOW * 0.9)
    assert rig.sent == ["ready mail 7"]
    rig.time.passes(WINDOW * 0.2)
    assert rig.sent == ["ready mail 7", "ready mail 99"]


def test_the_last_event_has_a_window_too(rig: BusRig) -> None:
    rig.announce(MAIL, MAIL)
    rig.time.passes(WINDOW)
    rig.announce(MAIL)
    assert len(rig.sent) == 2
    rig.time.passes(WINDOW)
    assert len(rig.sent) == 3
    rig.time.passes(10 * WINDOW)
    assert len(rig.sent) == 3


def test_after_a_window_in_which_nothing_came_an_event_goes_at_once_again(rig: BusRig) -> None:
    rig.announce(MAIL)
    rig.time.passes(WINDOW)
    rig.announce(MAIL)
    assert len(rig.sent) == 2


def test_a_flood_makes_an_event_for_each_window(rig: BusRig) -> None:
    for _ in range(1000):
        rig.announce(MAIL)
        rig.time.passes(WINDOW / 100)
    assert len(rig.sent) == 1 + 10 - 1


def test_queues_do_not_wait_for_each_other(rig: BusRig) -> None:
    other = MAIL._replace(name="other")
    rig.announce(MAIL, other, MAIL, other)
    assert rig.sent == ["ready mail 7", "ready other 7"]


def test_nothing_is_told_where_nobody_else_is() -> None:
    alone = BusRig(shared=False)
    alone.announce(MAIL)
    alone.time.passes(1)
    assert alone.sent == []


def test_who_was_heard_is_told_before_the_leases_know_of_it() -> None:
    alone = BusRig(shared=False)
    alone.bus.start(["sluicemq"])
    alone.hears([str(BusEvent(BusKind.HELLO))])
    alone.announce(MAIL)
    assert alone.sent == ["ready mail 7"]


def test_what_could_not_be_told_is_counted_and_the_next_is_tried(rig: BusRig) -> None:
    rig.transport.broken = True
    rig.announce(MAIL)
    assert rig.counters.values[Count.BUS_UNTOLD] == 1
    rig.transport.broken = False
    rig.time.passes(WINDOW)
    rig.announce(MAIL)
    assert rig.sent == ["ready mail 7"]
    assert rig.counters.values[Count.BUS_TOLD] == 1


def test_a_stop_tells_what_waits_for_its_windows_end(rig: BusRig) -> None:
    rig.announce(MAIL, MAIL._replace(number=8))
    rig.bus.stop()
    assert rig.sent == ["ready mail 7", "ready mail 8"]


def test_a_segment_goes_before_the_event_that_says_where_it_is(rig: BusRig) -> None:
    rig.announce(BusEvent(BusKind.STREAM, "prices", 12, "1 2 3 a:1 AAE="))
    assert rig.sent == ["segment prices 12 1 2 3 a:1 AAE=", "stream prices 12"]


def test_what_is_told_of_several_segments_at_the_end_of_a_window_has_none_of_them(rig: BusRig) -> None:
    rig.announce(*(BusEvent(BusKind.STREAM, "prices", number, "data") for number in range(12, 15)))
    rig.time.passes(BusKind.STREAM.window)
    assert rig.sent == ["segment prices 12 data", "stream prices 12", "stream prices 14"]


def test_the_only_segment_within_a_window_is_told_at_its_end(rig: BusRig) -> None:
    rig.announce(*(BusEvent(BusKind.STREAM, "prices", number, "data") for number in (12, 13)))
    rig.time.passes(BusKind.STREAM.window)
    assert rig.sent[2:] == ["segment prices 13 data", "stream prices 13"]


def test_a_segment_is_heard_with_its_data_and_counts_with_its_event(rig: BusRig) -> None:
    rig.bus.on(BusKind.SEGMENT, rig.heard.append)
    rig.listen()
    rig.hears(["segment prices 12 1 2 3 a:1 AAE=", "stream prices 12"])
    assert rig.heard == [
        BusEvent(BusKind.SEGMENT, "prices", 12, "1 2 3 a:1 AAE="),
        BusEvent(BusKind.STREAM, "prices", 12),
    ]
    assert rig.counters.values[Count.BUS_HEARD] == 1


def test_a_segment_goes_and_comes_through_the_store_alone(rig: BusRig) -> None:
    # Given a Redis, where another system may have a stream of this name
    rig.transport.in_store = False
    rig.bus.on(BusKind.SEGMENT, rig.heard.append)
    rig.listen()
    rig.hears(["segment prices 12 1 2 3 a:1 AAE=", "stream prices 12"])
    rig.announce(BusEvent(BusKind.STREAM, "orders", 7, "data"))
    assert rig.heard == [BusEvent(BusKind.STREAM, "prices", 12)]
    assert rig.sent == ["stream orders 7"]


def test_what_others_tell_is_done(rig: BusRig) -> None:
    rig.listen()
    assert rig.transport.greetings == [["hello  0"]]
    rig.hears(["ready mail 7", "stream prices 12"])
    assert rig.heard == [MAIL, BusEvent(BusKind.STREAM, "prices", 12)]
    assert rig.counters.values[Count.BUS_HEARD] == 2


@pytest.mark.parametrize(
    "line", ["", "ready", "ready mail x", "of a later version", "later mail 1", "a b c d"]
)
def test_what_this_version_does_not_know_is_passed_over(rig: BusRig, line: str) -> None:
    rig.listen()
    rig.hears([line, "ready mail 7"])
    assert rig.heard == [MAIL]


def test_who_begins_to_listen_looks_at_everything(rig: BusRig) -> None:
    assert rig.channel.epoch == 0
    rig.bus.start(["sluicemq"])
    come_to_rest()
    assert rig.heard == [BusEvent(BusKind.READY), BusEvent(BusKind.STREAM)]
    assert rig.channel.epoch == 1


def test_who_may_have_missed_something_says_so_and_looks_at_everything(rig: BusRig) -> None:
    rig.listen()
    rig.hears(UnavailableError("the cursor is lost"))
    assert rig.counters.values[Count.BUS_LOST] == 1
    while rig.channel.epoch != 2:
        come_to_rest()
    assert rig.heard == [BusEvent(BusKind.READY), BusEvent(BusKind.STREAM)]


def test_a_handler_that_fails_costs_the_others_nothing(rig: BusRig) -> None:
    def fail(_event: BusEvent) -> None:
        raise ValueError

    rig.bus.on(BusKind.READY, fail)
    rig.bus.start(["sluicemq"])
    rig.hears(["ready mail 7", "stream prices 12"])
    assert rig.heard[-1] == BusEvent(BusKind.STREAM, "prices", 12)


def test_a_silent_channel_is_deaf_too() -> None:
    channel = silent()
    channel.start()
    channel.announce(MAIL)
    channel.stop()
    assert channel.epoch == 0
