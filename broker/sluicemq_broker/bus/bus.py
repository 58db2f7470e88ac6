"""The event bus of one broker: what it tells others, merged, and what it hears of them.

An event goes at once if nothing was told about the same thing for a while; what happens in the window
behind it is told once, at the window's end. So a worker that waits elsewhere hears of a job in milliseconds,
and a flood of pushes makes 20 events a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import gevent
from gevent.event import Event

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.bus.event import BusEvent, BusKind
from sluicemq_broker.bus.transport import Transport
from sluicemq_broker.runtime import Batcher, Count, Counters, Timer, shielded

log = logging.getLogger("broker.events")

#: Events in one statement, at most.
_AT_ONCE: Final = 500
#: Seconds between two tries to listen again.
_PAUSE: Final = 0.5
#: Whoever was heard is taken to listen for so many seconds, whatever the leases say.
_HEARD: Final = 30.0
#: Seconds for what is still to be told when the broker stops.
_LAST_WORDS: Final = 0.5
_MOMENT: Final = 1e-9  # seconds; a sleep of 0 would run before timers

#: Does what an event says; must not block.
Handler = Callable[[BusEvent], None]


class Channel:
    """What the brokers on one database tell each other. Without a transport it is silent, and deaf.

    ``shared()``: whether another broker may be there. ``handlers``: what to do at an event, by its kind.
    """

    def __init__(
        self,
        transport: Transport | None,
        shared: Callable[[], bool],
        handlers: Mapping[BusKind, Handler],
        counters: Counters,
        timer: Timer,
    ) -> None:
        self._transport = transport
        self._shared = shared
        self._handlers = handlers
        self._counters = counters
        self._timer = timer
        self._epoch = 0
        self._listening = False
        self._heard_until = 0.0
        #: Of what the window is open, and what to tell at its end.
        self._later: dict[tuple[BusKind, str], BusEvent | None] = {}
        self._outgoing: Batcher[BusEvent] = Batcher(self._send, size=_AT_ONCE)
        self._over = Event()

    @property
    def epoch(self) -> int:
        """A number that is another one after each time in which it was deaf; 0: it is now."""
        return self._epoch if self._listening else 0

    @property
    def shared(self) -> bool:
        """True if another broker may hear what is told."""
        return self._transport is not None and (self._shared() or self._timer.now() < self._heard_until)

    def announce(self, event: BusEvent) -> None:
        """Tell the others, now or at the end of the window; never blocks."""
        if not self.shared:
            return
        key = event.kind, event.name
        if key in self._later:
            # What is told of several is no more than where to look.
            self._later[key] = event if self._later[key] is None else event._replace(data="")
        else:
            self._tell(event)

    def start(self) -> None:
        """Begin to listen."""
        if self._transport is not None:
            gevent.spawn(self._listen, self._transport)

    def stop(self) -> None:
        """Tell what is to be told; listening ends by itself, within two seconds."""
        self._over.set()
        self._outgoing.extend([event for event in self._later.values() if event])
        self._later.clear()
        self._outgoing.drain(_LAST_WORDS)

    # ------------------------------------------------------------------ told

    def _tell(self, event: BusEvent) -> None:
        key = event.kind, event.name
        self._later[key] = None
        self._timer.after(event.kind.window, self._window_over, key)
        self._outgoing.add(event)

    def _window_over(self, key: tuple[BusKind, str]) -> None:
        event = self._later.pop(key, None)
        if event is not None:
            self._tell(event)

    def _send(self, events: list[BusEvent]) -> None:
        transport = self._transport
        if transport is None:
            return
        try:
            told = events if transport.in_store else [each._replace(data="") for each in events]
            transport.send([line for each in dict.fromkeys(told) for line in each.lines])
        except SluiceError as error:
            self._counters.notice(Count.BUS_UNTOLD, f"events are not told to other brokers: {error}")
        else:
            self._counters.add(Count.BUS_TOLD, len(events))

    # ----------------------------------------------------------------- heard

    def _listen(self, transport: Transport) -> None:
        while not self._over.is_set():
            try:
                self._follow(transport)
            except SluiceError as error:
                self._lost(error)
            except Exception:
                log.exception("listening to other brokers failed")
            self._over.wait(_PAUSE)

    def _follow(self, transport: Transport) -> None:
        """Hear others until the broker stops, or until some may have been missed."""
        with transport.listen([str(BusEvent(BusKind.HELLO))]) as feed, self._hearing():
            for kind in self._handlers:  # what was told before
                self._handle(BusEvent(kind))
            while not self._over.is_set():
                for line in feed.next():
                    self._hear(line, in_store=transport.in_store)
                gevent.sleep(_MOMENT)  # who begins to look at it is sooner than the next question to the feed

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        if self._epoch:
            log.info("events of other brokers are heard again")
        self._epoch += 1
        self._listening = True
        try:
            yield
        finally:
            self._listening = False

    def _hear(self, line: str, *, in_store: bool) -> None:
        self._heard_until = self._timer.now() + _HEARD
        event = BusEvent.read(line)
        carries = event is not None and event.kind is BusKind.SEGMENT
        if not carries:
            self._counters.add(Count.BUS_HEARD)  # what a segment says comes with an event that counts
        if event is not None and (in_store or not carries):
            self._handle(event)

    def _handle(self, event: BusEvent) -> None:
        handler = self._handlers.get(event.kind)
        if handler is not None:
            shielded(handler, event)

    def _lost(self, error: SluiceError) -> None:
        if not self._over.is_set():
            text = f"events of other brokers are not heard, their jobs are found by the poll: {error}"
            self._counters.notice(Count.BUS_LOST, text)


class EventBus:
    """The channels of all databases in which a broker has something.

    ``transport``: of a database, or None: each broker finds what others do by its poll. ``shared``: whether
    another broker has something there.
    """

    def __init__(
        self,
        transport: Callable[[str], Transport | None],
        shared: Callable[[str], bool],
        counters: Counters,
        timer: Timer | None = None,
    ) -> None:
        self._transport = transport
        self._shared = shared
        self._counters = counters
        self._timer = timer or Timer()
        self._handlers: dict[BusKind, Handler] = {}
        self._channels: dict[str, Channel] = {}

    def on(self, kind: BusKind, handler: Handler) -> None:
        """Do this at each event of a kind; one without a name: some may have been missed, look at all."""
        self._handlers[kind] = handler

    def channel(self, database: str) -> Channel:
        """That of a database."""
        channel = self._channels.get(database)
        if channel is None:
            channel = self._channels[database] = Channel(
                self._transport(database),
                lambda: self._shared(database),
                self._handlers,
                self._counters,
                self._timer,
            )
        return channel

    def start(self, databases: Iterable[str]) -> None:
        """Listen in these databases, all in which this broker has something."""
        for each in databases:
            self.channel(each).start()

    def stop(self) -> None:
        """Tell what is to be told, and listen no more."""
        gevent.joinall([gevent.spawn(each.stop) for each in self._channels.values()])


def silent() -> Channel:
    """A channel on which nobody is."""
    return Channel(None, lambda: False, {}, Counters(), Timer())
