"""The event bus of one broker: events sent to other brokers, merged in windows, and events received.

The first event about a queue is sent at once. Further ones in the window behind it are sent as one, at its
end. So a worker at another broker gets a job in milliseconds, and a flood of pushes makes 20 events a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import gevent
from gevent.event import Event

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.bus.event import BusEvent, BusKind
from sluicemq_broker.bus.transport import Transport
from sluicemq_broker.runtime import Batcher, Count, Counters, Timer, shielded
from sluicemq_devices.hub import let_others_run

log = logging.getLogger("broker.events")


#: Handles an event; must not block.
Handler = Callable[[BusEvent], None]


class Channel:
    """The events between the brokers on one database; without a transport none are sent or received.

    ``shared()``: whether another broker may be there. ``handlers``: called with events, by their kind.
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
        #: The windows that are open, and the event to send at the end of each.
        self._later: dict[tuple[BusKind, str], BusEvent | None] = {}
        self._outgoing: Batcher[BusEvent] = Batcher(self._send, size=500)  # events in one statement, at most
        self._over = Event()

    @property
    def epoch(self) -> int:
        """The number of this period of listening; 0 while events are not received and may be missed."""
        return self._epoch if self._listening else 0

    @property
    def shared(self) -> bool:
        """True if another broker may receive events."""
        return self._transport is not None and (self._shared() or self._timer.now() < self._heard_until)

    def announce(self, event: BusEvent) -> None:
        """Send an event, now or at the end of its window; never blocks."""
        if not self.shared:
            return
        key = event.kind, event.name
        if key in self._later:
            # One event stands for several now, so it has no data: receivers look in MongoDB.
            self._later[key] = event if self._later[key] is None else event._replace(data="")
        else:
            self._open_window(event)

    def start(self) -> None:
        """Begin to listen."""
        if self._transport is not None:
            gevent.spawn(self._listen, self._transport)

    def stop(self) -> None:
        """Send what is left; listening ends by itself, within two seconds."""
        self._over.set()
        self._outgoing.extend([event for event in self._later.values() if event])
        self._later.clear()
        self._outgoing.drain(0.5)  # seconds for sending the last events when the broker stops

    # ------------------------------------------------------------------ send

    def _open_window(self, event: BusEvent) -> None:
        """Send an event, and collect those about its queue or stream until the window is over."""
        key = event.kind, event.name
        self._later[key] = None
        self._timer.after(event.kind.window, self._window_over, key)
        self._outgoing.add(event)

    def _window_over(self, key: tuple[BusKind, str]) -> None:
        event = self._later.pop(key, None)
        if event is not None:
            self._open_window(event)

    def _send(self, events: list[BusEvent]) -> None:
        transport = self._transport
        if transport is None:
            return
        try:
            sent = events if transport.in_store else [event._replace(data="") for event in events]
            transport.send([line for event in dict.fromkeys(sent) for line in event.lines])
        except SluiceError as error:
            self._counters.notice(Count.BUS_UNTOLD, f"events are not sent to other brokers: {error}")
        else:
            self._counters.add(Count.BUS_TOLD, len(events))

    # --------------------------------------------------------------- receive

    def _listen(self, transport: Transport) -> None:
        while not self._over.is_set():
            try:
                self._follow(transport)
            except SluiceError as error:
                self._lost(error)
            except Exception:
                log.exception("listening to other brokers failed")
            self._over.wait(0.5)  # seconds between two tries to listen again

    def _follow(self, transport: Transport) -> None:
        """Receive events until the broker stops, or until some may have been missed."""
        with transport.listen([str(BusEvent(BusKind.HELLO))]) as feed, self._hearing():
            for kind in self._handlers:  # for events sent before
                self._handle(BusEvent(kind))
            while not self._over.is_set():
                for line in feed.next():
                    self._receive(line, in_store=transport.in_store)
                let_others_run()  # handlers ask MongoDB before the feed is read again

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        if self._epoch:
            log.info("events of other brokers are received again")
        self._epoch += 1
        self._listening = True
        try:
            yield
        finally:
            self._listening = False

    def _receive(self, line: str, *, in_store: bool) -> None:
        # Seconds for which a broker whose event was received counts as present, whatever the leases say.
        self._heard_until = self._timer.now() + 30.0
        event = BusEvent.read(line)
        carries = event is not None and event.kind is BusKind.SEGMENT
        if not carries:
            self._counters.add(Count.BUS_HEARD)  # a segment comes with a STREAM event, which counts
        if event is not None and (in_store or not carries):
            self._handle(event)

    def _handle(self, event: BusEvent) -> None:
        handler = self._handlers.get(event.kind)
        if handler is not None:
            shielded(handler, event)

    def _lost(self, error: SluiceError) -> None:
        if not self._over.is_set():
            text = f"events of other brokers are not received; the poll finds their jobs: {error}"
            self._counters.notice(Count.BUS_LOST, text)


class EventBus:
    """The channels of all databases that a broker uses.

    ``transport(database)``: None if brokers there only poll. ``shared(database)``: whether another broker
    uses it, too.
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
        """Call ``handler`` with each event of a kind; one without a name means that some may be missed."""
        self._handlers[kind] = handler

    def channel(self, database: str) -> Channel:
        """Return the channel of a database."""
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
        """Listen in these databases."""
        for database in databases:
            self.channel(database).start()

    def stop(self) -> None:
        """Send what is left, and end listening."""
        gevent.joinall([gevent.spawn(channel.stop) for channel in self._channels.values()])


def silent() -> Channel:
    """Return a channel without other brokers."""
    return Channel(None, lambda: False, {}, Counters(), Timer())
