"""What a broker tells others, merged in windows, and what it does at what it hears."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from gevent.queue import Queue

from sluicemq.protocol.errors import Unavailable
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
        self.comes: Queue[list[str] | Unavailable] = Queue()
        self.greetings: list[Sequence[str]] = []
        self.broken = False

    @contextmanager
    def listen(self, greeting: Sequence[str]) -> Iterator[FakeTransport]:
        self.greetings.append(greeting)
        yield self

    def next(self) -> list[str]:
        come: list[str] | Unavailable = self.comes.get()
        if isinstance(come, Unavailable):
            raise come
        return come

    def send(self, lines: Sequence[str]) -> None:
        if self.broken:
            raise Unavailable("nobody there")
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

    def announce(self, *events: BusEvent) -> None:
        for each in events:
            self.channel.announce(each)
        come_to_rest()

    def hears(self, what: list[str] | Unavailable) -> None:
        self.transport.comes.put(what)
        come_to_rest()

    @property
    def sent(self) -> list[str]:
        return [line for lines in self.transport.sent for line in lines]


@pytest.fixture
def broker() -> BusRig:
    return BusRig()


# ------------------------------------------------------------------ told


def test_an_event_after_a_quiet_time_is_told_at_once(broker: BusRig) -> None:
    broker.announce(MAIL)
    assert broker.sent == ["ready mail 7"]


def test_what_comes_in_its_window_is_told_once_at_the_end_as_it_is_then(broker: BusRig) -> None:
    broker.announce(MAIL, *(MAIL._replace(number=number) for number in range(8, 100)))
    broker.time.passes(WINDOW * 0.9)
    assert broker.sent == ["ready mail 7"]
    broker.time.passes(WINDOW * 0.2)
    assert broker.sent == ["ready mail 7", "ready mail 99"]


def test_the_last_event_has_a_window_too(broker: BusRig) -> None:
    broker.announce(MAIL, MAIL)
    broker.time.passes(WINDOW)
    broker.announce(MAIL)
    assert len(broker.sent) == 2
    broker.time.passes(WINDOW)
    assert len(broker.sent) == 3
    broker.time.passes(10 * WINDOW)
    assert len(broker.sent) == 3


def test_after_a_window_in_which_nothing_came_an_event_goes_at_once_again(broker: BusRig) -> None:
    broker.announce(MAIL)
    broker.time.passes(WINDOW)
    broker.announce(MAIL)
    assert len(broker.sent) == 2


def test_a_flood_makes_an_event_for_each_window(broker: BusRig) -> None:
    for _ in range(1000):
        broker.announce(MAIL)
        broker.time.passes(WINDOW / 100)
    assert len(broker.sent) == 1 + 10 - 1


def test_queues_do_not_wait_for_each_other(broker: BusRig) -> None:
    other = MAIL._replace(name="other")
    broker.announce(MAIL, other, MAIL, other)
    assert broker.sent == ["ready mail 7", "ready other 7"]


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


def test_what_could_not_be_told_is_counted_and_the_next_is_tried(broker: BusRig) -> None:
    broker.transport.broken = True
    broker.announce(MAIL)
    assert broker.counters.values[Count.BUS_UNTOLD] == 1
    broker.transport.broken = False
    broker.time.passes(WINDOW)
    broker.announce(MAIL)
    assert broker.sent == ["ready mail 7"]
    assert broker.counters.values[Count.BUS_TOLD] == 1


def test_a_stop_tells_what_waits_for_its_windows_end(broker: BusRig) -> None:
    broker.announce(MAIL, MAIL._replace(number=8))
    broker.bus.stop()
    assert broker.sent == ["ready mail 7", "ready mail 8"]


def test_a_segment_goes_before_the_event_that_says_where_it_is(broker: BusRig) -> None:
    broker.announce(BusEvent(BusKind.STREAM, "prices", 12, "1 2 3 a:1 AAE="))
    assert broker.sent == ["segment prices 12 1 2 3 a:1 AAE=", "stream prices 12"]


def test_what_is_told_of_several_segments_at_the_end_of_a_window_has_none_of_them(broker: BusRig) -> None:
    broker.announce(*(BusEvent(BusKind.STREAM, "prices", number, "data") for number in range(12, 15)))
    broker.time.passes(BusKind.STREAM.window)
    assert broker.sent == ["segment prices 12 data", "stream prices 12", "stream prices 14"]


def test_the_only_segment_within_a_window_is_told_at_its_end(broker: BusRig) -> None:
    broker.announce(*(BusEvent(BusKind.STREAM, "prices", number, "data") for number in (12, 13)))
    broker.time.passes(BusKind.STREAM.window)
    assert broker.sent[2:] == ["segment prices 13 data", "stream prices 13"]


# ------------------------------------------------------------------ heard


def test_a_segment_is_heard_with_its_data_and_counts_with_its_event(broker: BusRig) -> None:
    broker.bus.on(BusKind.SEGMENT, broker.heard.append)
    broker.bus.start(["sluicemq"])
    come_to_rest()
    broker.heard.clear()
    broker.hears(["segment prices 12 1 2 3 a:1 AAE=", "stream prices 12"])
    assert broker.heard == [
        BusEvent(BusKind.SEGMENT, "prices", 12, "1 2 3 a:1 AAE="),
        BusEvent(BusKind.STREAM, "prices", 12),
    ]
    assert broker.counters.values[Count.BUS_HEARD] == 1


def test_a_segment_goes_and_comes_through_the_store_alone(broker: BusRig) -> None:
    # Given a Redis, where another system may have a stream of this name
    broker.transport.in_store = False
    broker.bus.on(BusKind.SEGMENT, broker.heard.append)
    broker.bus.start(["sluicemq"])
    come_to_rest()
    broker.heard.clear()
    # When
    broker.hears(["segment prices 12 1 2 3 a:1 AAE=", "stream prices 12"])
    broker.announce(BusEvent(BusKind.STREAM, "orders", 7, "data"))
    # Then
    assert broker.heard == [BusEvent(BusKind.STREAM, "prices", 12)]
    assert broker.sent == ["stream orders 7"]


def test_what_others_tell_is_done(broker: BusRig) -> None:
    broker.bus.start(["sluicemq"])
    come_to_rest()
    assert broker.transport.greetings == [["hello  0"]]
    broker.heard.clear()
    broker.hears(["ready mail 7", "stream prices 12"])
    assert broker.heard == [MAIL, BusEvent(BusKind.STREAM, "prices", 12)]
    assert broker.counters.values[Count.BUS_HEARD] == 2


@pytest.mark.parametrize(
    "line", ["", "ready", "ready mail x", "of a later version", "later mail 1", "a b c d"]
)
def test_what_this_version_does_not_know_is_passed_over(broker: BusRig, line: str) -> None:
    broker.bus.start(["sluicemq"])
    come_to_rest()
    broker.heard.clear()
    broker.hears([line, "ready mail 7"])
    assert broker.heard == [MAIL]


def test_who_begins_to_listen_looks_at_everything(broker: BusRig) -> None:
    assert broker.channel.epoch == 0
    broker.bus.start(["sluicemq"])
    come_to_rest()
    assert broker.heard == [BusEvent(BusKind.READY), BusEvent(BusKind.STREAM)]
    assert broker.channel.epoch == 1


def test_who_may_have_missed_something_says_so_and_looks_at_everything(broker: BusRig) -> None:
    broker.bus.start(["sluicemq"])
    come_to_rest()
    broker.heard.clear()
    broker.hears(Unavailable("the cursor is lost"))
    assert broker.counters.values[Count.BUS_LOST] == 1
    while broker.channel.epoch != 2:
        come_to_rest()
    assert broker.heard == [BusEvent(BusKind.READY), BusEvent(BusKind.STREAM)]


def test_a_handler_that_fails_costs_the_others_nothing(broker: BusRig) -> None:
    def fail(_event: BusEvent) -> None:
        raise ValueError

    broker.bus.on(BusKind.READY, fail)
    broker.bus.start(["sluicemq"])
    broker.hears(["ready mail 7", "stream prices 12"])
    assert broker.heard[-1] == BusEvent(BusKind.STREAM, "prices", 12)


def test_a_silent_channel_is_deaf_too() -> None:
    channel = silent()
    channel.start()
    channel.announce(MAIL)
    channel.stop()
    assert channel.epoch == 0
