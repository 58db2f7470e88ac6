"""A FORWARDER with a stream between its ends: what PUB sockets send is kept, then goes to SUB sockets.

It goes out as it lies in the stream, in the stream's order, at every broker that has a forwarder with it;
so a message reaches a subscriber when it is durable, wherever it was published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import thread_time
from typing import Any, Final

import gevent
from gevent.event import Event

from sluicemq.protocol.errors import SluiceError, TooLarge
from sluicemq.protocol.packed import extended, scan, slices
from sluicemq_broker.config import DeviceSettings, Envelope
from sluicemq_broker.doors.device_counters import of_device, paused
from sluicemq_broker.doors.last_values import LastValues
from sluicemq_broker.doors.replay import ReplayDoors
from sluicemq_broker.doors.services import Services
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import Segment
from sluicemq_broker.streams import Stored, Stream, Streams, read_batch
from sluicemq_devices.hub import Watermark, in_turns
from sluicemq_devices.relays import FanOut, Kind, Subscriber, Upstream
from sluicemq_devices.sockets import RawDoor, RawLane

#: Messages, and bytes, that make one batch on their way into the stream, at most.
_BATCH: Final = 2048
_BATCH_BYTES: Final = 512 << 10
#: Messages that are passed on in one turn of the hub; so few of them in the turn in which they are durable.
_PASSED: Final = 512
_AT_ONCE: Final = 64
#: Seconds after which it looks for more, whatever it was told; and after an error.
_LOOK: Final = 5.0
_PAUSE: Final = 0.5
_MOMENT: Final = 1e-9
#: Seconds of the hub for the last messages of one subscriber, before others have their turn; and messages
#: after which the clock is looked at.
_TURN: Final = 0.004
_LOOKS: Final = 16
#: Subscriptions that may wait for that, before those are left out that were given up.
_MOST_LATE: Final = 10_000


class StreamDevice:
    """Publishers, a stream, subscribers, and those who ask for what was."""

    def __init__(self, settings: DeviceSettings, stream: str, streams: Streams, services: Services) -> None:
        self._settings = settings
        self._counters = services.counters
        self._longest = services.settings.max_job_bytes
        self._stream: Stream = streams.for_publish(stream)
        self._latest = LastValues(settings.hwm_bytes) if settings.latest else None
        self._loaded = self._latest is None
        self._early: list[tuple[Subscriber, bytes]] = []  # who subscribed before all was loaded
        # Subscriptions whose last messages are being sent, and what is left of these.
        self._late: dict[tuple[Subscriber, bytes], Iterator[bytes | None]] = {}
        self._mark = Watermark(settings.hwm, settings.hwm_bytes, self._pause, self._resume)
        self._upstream = Upstream()
        self._upstream.want(b"")  # all is kept, whoever subscribes
        self._fan_out = FanOut(
            services.board,
            settings.backends,
            Upstream(),
            hwm=settings.hwm,
            hwm_bytes=settings.hwm_bytes,
            subscribed=self._subscribed if self._latest else None,
        )
        self.frontend_doors = [
            RawDoor(services.board, end, "XSUB", self._publisher_came, max_frame=2 * self._longest)
            for end in settings.frontends
        ]
        self._replay = ReplayDoors(settings, services, streams)
        self._over = Event()
        self._more = Event()
        self._through = Event()  # what was passed on has gone to all
        self._through.set()
        self._follower: gevent.Greenlet[..., None] | None = None
        self._next = 0  # the number of what is to be passed on next
        self._waits = False  # the follower does, for more
        self._not_stored = 0

    @property
    def name(self) -> str:
        """Under which it counts."""
        return f"{Kind.FORWARDER}.{self._stream.name}"

    @property
    def received(self) -> int:
        """Messages that have come in so far."""
        return sum(door.received for door in self.frontend_doors)

    @property
    def taking_in(self) -> bool:
        """True while something that has come in is not stored."""
        return self._mark.count > 0

    def start(self) -> None:
        """Open the doors, those of the subscribers first; follow the stream."""
        for door in (*self._fan_out.doors, *self.frontend_doors):
            door.start()
        self._replay.start()
        self._follower = gevent.spawn(self._follow)

    def read_all(self) -> None:
        """It reads while there is room."""

    def close_gates(self) -> None:
        """Let no publisher in any more, after what has been read was taken in."""
        for door in self.frontend_doors:
            door.stop()

    def stop(self) -> None:
        """Close the doors."""
        self._over.set()
        self._more.set()
        if self._follower is not None:
            self._follower.join(timeout=1.0)
        for door in (*self.frontend_doors, *self._fan_out.doors):
            door.stop()
        self._replay.stop()

    def describe(self) -> dict[str, Any]:
        """What it is and where its doors are."""
        return {
            "kind": Kind.FORWARDER,
            "queue": "",
            "stream": self._stream.name,
            "frontend": [door.address for door in self.frontend_doors],
            "backend": [door.address for door in self._fan_out.doors],
            "commit": [],
            "replay": self._replay.addresses,
        }

    def figures(self) -> dict[str, Any]:
        """What is on its way into the stream; what is held for subscribers is theirs."""
        doors = (*self.frontend_doors, *self._fan_out.doors)
        return {
            "connections": sum(door.connections for door in doors) + self._replay.connections,
            "held": self._mark.count,
            "held_bytes": self._mark.bytes,
            "unsettled": 0,
            "shut": self._mark.is_full,
        }

    def counted(self) -> dict[str, int]:
        """What it has counted since its start."""
        return of_device(
            received=self.received,
            sent=self._fan_out.sent,
            lost=self._fan_out.lost + self._not_stored,
            paused=paused(self.frontend_doors),
        )

    def subscribers(self) -> list[dict[str, Any]]:
        """Who subscribes, and what each has lost."""
        return self._fan_out.describe()

    # ------------------------------------------------------------------- in

    def _publisher_came(self, lane: RawLane) -> None:
        lane.on(receive=self._publish)
        self._upstream.came(lane)

    def _publish(self, messages: list[bytes]) -> None:
        batch: list[bytes] = []
        size = 0
        for each in messages:
            if len(each) > self._longest:
                self._lost(1, TooLarge(f"a message of {len(each)} bytes, this broker takes {self._longest}"))
                continue
            batch.append(each)
            size += len(each)
            if len(batch) >= _BATCH or size >= _BATCH_BYTES:
                self._store(batch, size)
                batch, size = [], 0
        if batch:
            self._store(batch, size)

    def _store(self, messages: list[bytes], size: int) -> None:
        self._stream.counters.add(Count.RECEIVED_PUBLISHED, len(messages))
        self._mark.take(len(messages), size)
        self._stream.publish(read_batch(b"".join(messages), partial(self._stored, len(messages), size)))

    def _stored(self, count: int, size: int, outcome: Stored | SluiceError) -> None:
        self._mark.give(count, size)
        if isinstance(outcome, SluiceError):
            self._lost(count, outcome)

    def _lost(self, count: int, why: SluiceError) -> None:
        text = f"{count} messages of publishers are lost to stream {self._stream.name}: {why}"
        self._not_stored += count
        self._stream.counters.notice(Count.PUBLISHED_LOST, text)
        self._stream.counters.add(Count.PUBLISHED_LOST, count - 1)

    def _pause(self) -> None:
        self._counters.add(Count.GATES_CLOSED)
        for door in self.frontend_doors:
            door.pause()

    def _resume(self) -> None:
        for door in self.frontend_doors:
            door.resume()

    # ------------------------------------------------------------------ out

    def _follow(self) -> None:
        """Pass on segment after segment, from the end that the stream has now."""
        self._until_it_works(self._begin)
        while not self._over.is_set():
            self._until_it_works(self._pass_some_on)

    def _until_it_works(self, step: Callable[[], None]) -> None:
        while not self._over.is_set():
            try:
                step()
            except SluiceError as error:
                text = f"following stream {self._stream.name}: {error}"
                self._counters.notice(Count.STORE_UNAVAILABLE, text)
                self._over.wait(_PAUSE)
            else:
                return

    def _begin(self) -> None:
        """Find out from where to pass on; first, the latest messages are read from the whole stream."""
        end = self._stream.end()
        first = self._stream.store.head().first
        while self._latest is not None and first < end and not self._over.is_set():
            segments, first = self._stream.segments(first)
            for segment in segments:
                ends, topics = scan(segment.packed)
                self._note(topics, self._outgoing(segment, slices(segment.packed, ends), 0))
                first = segment.next
                gevent.sleep(_MOMENT)
        self._loaded = True
        for subscriber, topic in self._early:
            self._send_latest(subscriber, topic)
        self._early = []
        self._next = max(first, end) if self._latest is not None else end

    def _pass_some_on(self) -> None:
        """Pass on what there is from the next number on, or wait for it."""
        self._more.clear()
        segments, kept = self._stream.segments(self._next)
        if segments and segments[0].first > self._next:
            self._stream.counters.add(Count.MESSAGES_GONE, segments[0].first - self._next)
        self._next = max(self._next, kept)
        for segment in segments:
            self._pass_on(segment)
        if not segments:
            self._stream.wait(self, self._next, self._woken)
            self._waits = True
            self._more.wait(_LOOK)
            self._waits = False
            self._stream.forget(self)

    def _woken(self) -> None:
        """There is more. A little goes out at once: to wake the follower for it takes a tenth of a ms."""
        quick = self._waits and self._fan_out.is_quick
        few = self._stream.few(self._next, _AT_ONCE) if quick else []
        for segment in few:
            self._pass_on(segment)
        if few:
            self._stream.wait(self, self._next, self._woken)
        else:
            self._more.set()

    def _note(self, topics: Sequence[bytes], messages: Sequence[bytes]) -> None:
        """Keep the last message of each topic for subscribers that come later."""
        if self._latest is not None and (forgotten := self._latest.note(topics, messages)):
            self._counters.add(Count.TOPICS_FORGOTTEN, forgotten)

    def _pass_on(self, segment: Segment) -> None:
        """Pass on what of it is next; blocks where it is long, or has to go to many."""
        ends, topics = scan(segment.packed)
        messages = slices(segment.packed, ends)
        for at in range(max(0, self._next - segment.first), len(messages), _PASSED):
            some = self._outgoing(segment, messages[at : at + _PASSED], at)
            self._note(topics[at : at + _PASSED], some)
            self._fan_out.pass_on(some, self._through.clear, self._through.set)
            self._through.wait()
            if at + _PASSED < len(messages):
                gevent.sleep(_MOMENT)
        self._next = segment.next

    def _outgoing(self, segment: Segment, messages: list[bytes], place: int) -> list[bytes]:
        """The messages as subscribers get them; with ``full``, a frame with number and time is the last."""
        if self._settings.envelope != Envelope.FULL:
            return messages
        first, time = segment.first + place, b" %.3f" % segment.at
        return [extended(each, b"%d" % number + time) for number, each in enumerate(messages, first)]

    def _subscribed(self, subscriber: Subscriber, topic: bytes) -> None:
        if self._loaded:
            self._send_latest(subscriber, topic)
        else:
            self._early.append((subscriber, topic))

    def _send_latest(self, subscriber: Subscriber, topic: bytes) -> None:
        if self._latest is None or topic not in subscriber.topics:
            return
        was_quiet = not self._late
        if len(self._late) >= _MOST_LATE:  # some have come and gone
            self._late = {key: each for key, each in self._late.items() if key[1] in key[0].topics}
        self._late[subscriber, topic] = self._latest.of(topic, subscriber.topics)
        if was_quiet:
            in_turns(self._send_some)

    def _send_some(self) -> bool:
        """Send as many last messages as a turn of the hub has time for; True: there are more."""
        until = thread_time() + _TURN
        while self._late:
            (subscriber, topic), messages = key, _ = next(iter(self._late.items()))
            over = topic not in subscriber.topics or self._send_of(subscriber, messages, until)
            if over:
                self._late.pop(key, None)
            if thread_time() > until:
                break
        return bool(self._late)

    def _send_of(self, subscriber: Subscriber, messages: Iterator[bytes | None], until: float) -> bool:
        """Send of these until that time; True: these were all."""
        some, over = list[bytes](), True
        for looks, message in enumerate(messages, 1):
            if message is not None:
                some.append(message)
            if looks % _LOOKS == 0 and thread_time() > until:
                over = False
                break
        if some:
            self._fan_out.send(subscriber, some)
        return over
