"""A FORWARDER with a stream between its ends: messages of PUB sockets are stored, then sent to SUB sockets.

Every broker with a forwarder of the stream sends its messages, in the order of the stream. A message reaches
subscribers once it is durable, at any broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import gevent
from gevent.event import Event

from sluicemq.protocol.errors import SluiceError, TooLargeError
from sluicemq.protocol.packed import extended, scan, slices
from sluicemq.protocol.permissions import Action
from sluicemq_broker.config import DeviceSettings, Envelope
from sluicemq_broker.doors import DoorGroup, Services, counts_of_device
from sluicemq_broker.parts.streams.last_values import LastValues, LateMessages
from sluicemq_broker.parts.streams.replay import ReplayDoors
from sluicemq_broker.runtime import Count
from sluicemq_broker.security import ANYBODY, charge, may_stay, put_back, takes
from sluicemq_broker.store import Segment
from sluicemq_broker.streams import StoredNumbers, Stream, Streams, read_batch
from sluicemq_devices.hub import Watermark, let_others_run
from sluicemq_devices.relays import FanOut, Kind, Subscriber, Upstream
from sluicemq_devices.sockets import RawDoor, RawLane

#: Messages that are sent in one turn of the hub.
_PASSED: Final = 512


class StreamDevice:
    """Publishers, a stream, its subscribers, and clients that read earlier messages."""

    def __init__(self, settings: DeviceSettings, stream: str, streams: Streams, services: Services) -> None:
        self._settings = settings
        self._counters = services.counters
        self._longest = services.settings.max_job_bytes
        self._stream: Stream = streams.for_publish(stream, caller=ANYBODY)
        self._latest = LastValues(settings.hwm_bytes) if settings.latest else None
        self._upstream = Upstream()
        self._upstream.want(b"")  # all messages are stored, with or without subscribers
        self._fan_out = FanOut(
            services.board,
            settings.backends,
            Upstream(),
            hwm=settings.hwm,
            hwm_bytes=settings.hwm_bytes,
            subscribed=self._subscribed if settings.latest else None,
            guard=lambda end: services.security.guard(end, settings),
            admits=self._admits,
        )
        self._frontend = DoorGroup(
            RawDoor(
                services.board,
                end,
                "XSUB",
                self._publisher_came,
                max_frame=2 * self._longest,
                guard=services.security.guard(end, settings),
            )
            for end in settings.frontends
        )
        self._late = LateMessages(self._latest, self._fan_out.send) if self._latest else None
        self._backend = DoorGroup(self._fan_out.doors)
        self._mark = Watermark(settings.hwm, settings.hwm_bytes, self._pause, self._frontend.resume)
        self._replay = ReplayDoors(settings, services, streams)
        self._over = Event()
        self._more = Event()
        self._through = Event()  # the messages before were sent to all
        self._through.set()
        self._follower: gevent.Greenlet[..., None] | None = None
        self._next = 0  # the number of the message to send next
        self._waits = False  # the follower waits for more
        self._not_stored = 0

    @property
    def name(self) -> str:
        """The name under which it counts."""
        return f"{Kind.FORWARDER}.{self._stream.name}"

    @property
    def received(self) -> int:
        """Messages that have come in so far."""
        return self._frontend.received

    @property
    def taking_in(self) -> bool:
        """True while a message that has come in is not stored."""
        return self._mark.count > 0

    def start(self) -> None:
        """Open the doors, those of the subscribers first; follow the stream."""
        for doors in (self._backend, self._frontend, self._replay.doors):
            doors.start()
        self._follower = gevent.spawn(self._follow)

    def read_all(self) -> None:
        """Do nothing: it reads while there is room."""

    def close_gates(self) -> None:
        """Close the doors to publishers; what has been read is stored."""
        self._frontend.stop()

    def stop(self) -> None:
        """Close the doors."""
        self._over.set()
        self._more.set()
        if self._follower is not None:
            self._follower.join(timeout=1.0)
        for doors in (self._frontend, self._backend, self._replay.doors):
            doors.stop()

    def describe(self) -> dict[str, Any]:
        """Return its kind and stream, and the addresses of its doors."""
        return {
            "kind": Kind.FORWARDER,
            "queue": "",
            "stream": self._stream.name,
            "frontend": self._frontend.addresses,
            "backend": self._backend.addresses,
            "commit": [],
            "replay": self._replay.doors.addresses,
        }

    def figures(self) -> dict[str, Any]:
        """Return what is on its way into the stream; what subscribers hold counts there."""
        ends = (self._frontend, self._backend, self._replay.doors)
        return {
            "connections": sum(end.connections for end in ends),
            "held": self._mark.count,
            "held_bytes": self._mark.bytes,
            "unsettled": 0,
            "shut": self._mark.is_full,
        }

    def counted(self) -> dict[str, int]:
        """Return its counters since its start."""
        return counts_of_device(
            received=self.received,
            sent=self._fan_out.sent,
            lost=self._fan_out.lost + self._not_stored,
            paused=self._frontend.paused_for,
        )

    def subscribers(self) -> list[dict[str, Any]]:
        """Return its subscribers, and how many messages each has lost."""
        return self._fan_out.describe()

    # ------------------------------------------------------------------- in

    def _publisher_came(self, lane: RawLane) -> None:
        if may_stay(lane, Action.PUBLISH, self._stream.name):
            lane.on(receive=partial(self._publish, lane), large=partial(takes, lane, self._counters))
            self._upstream.connected(lane)

    def _admits(self, lane: RawLane) -> bool:
        """Return whether a subscriber may read the stream; one that may not is cut, now or later."""
        return may_stay(lane, Action.SUBSCRIBE, self._stream.name)

    def _publish(self, lane: RawLane, messages: list[bytes]) -> None:
        if put_back(lane, messages, self._counters):
            return
        charge(lane, len(messages), sum(map(len, messages)), self._counters)
        batch: list[bytes] = []
        size = 0
        for message in messages:
            if len(message) > self._longest:
                self._lost(
                    1, TooLargeError(f"a message of {len(message)} bytes, this broker takes {self._longest}")
                )
                continue
            batch.append(message)
            size += len(message)
            # Messages, and bytes, of one batch for the stream, at most.
            if len(batch) >= 2048 or size >= (512 << 10):
                self._store(batch, size)
                batch, size = [], 0
        if batch:
            self._store(batch, size)

    def _store(self, messages: list[bytes], size: int) -> None:
        self._stream.counters.add(Count.RECEIVED_PUBLISHED, len(messages))
        self._mark.take(len(messages), size)
        self._stream.publish(read_batch(b"".join(messages), partial(self._stored, len(messages), size)))

    def _stored(self, count: int, size: int, outcome: StoredNumbers | SluiceError) -> None:
        self._mark.give(count, size)
        if isinstance(outcome, SluiceError):
            self._lost(count, outcome)

    def _lost(self, count: int, why: SluiceError) -> None:
        text = f"{count} messages of publishers were not stored in stream {self._stream.name}: {why}"
        self._not_stored += count
        self._stream.counters.notice(Count.PUBLISHED_LOST, text)
        self._stream.counters.add(Count.PUBLISHED_LOST, count - 1)

    def _pause(self) -> None:
        self._counters.add(Count.GATES_CLOSED)
        self._frontend.pause()

    # ------------------------------------------------------------------ out

    def _follow(self) -> None:
        """Send segment after segment, from the present end of the stream on."""
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
                self._over.wait(0.5)  # seconds of rest after an error
            else:
                return

    def _begin(self) -> None:
        """Find the first message to send; with last values, first read the whole stream."""
        end = self._stream.end()
        first = self._stream.store.head().first
        while self._latest is not None and first < end and not self._over.is_set():
            segments, first = self._stream.segments(first)
            for segment in segments:
                ends, topics = scan(segment.packed)
                self._note(topics, self._outgoing(segment, slices(segment.packed, ends), 0))
                first = segment.next
                let_others_run()
        if self._late is not None:
            self._late.begin()
        self._next = max(first, end) if self._latest is not None else end

    def _pass_some_on(self) -> None:
        """Send the messages that there are, or wait for more."""
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
            self._more.wait(5.0)  # seconds between two looks for more without a notice
            self._waits = False
            self._stream.forget(self)

    def _woken(self) -> None:
        """Send a few new messages at once, for waking the follower takes 0.1 ms; else wake it."""
        quick = self._waits and self._fan_out.is_quick
        few = self._stream.few(self._next, 64) if quick else []
        for segment in few:
            self._pass_on(segment)
        if few:
            self._stream.wait(self, self._next, self._woken)
        else:
            self._more.set()

    def _note(self, topics: Sequence[bytes], messages: Sequence[bytes]) -> None:
        """Keep the last message of each topic for later subscribers."""
        if self._latest is not None and (forgotten := self._latest.note(topics, messages)):
            self._counters.add(Count.TOPICS_FORGOTTEN, forgotten)

    def _subscribed(self, subscriber: Subscriber, topic: bytes) -> None:
        if self._late is not None:
            self._late.add(subscriber, topic)

    def _pass_on(self, segment: Segment) -> None:
        """Send the rest of a segment; blocks for a long one, or for many subscribers."""
        ends, topics = scan(segment.packed)
        messages = slices(segment.packed, ends)
        for at in range(max(0, self._next - segment.first), len(messages), _PASSED):
            some = self._outgoing(segment, messages[at : at + _PASSED], at)
            self._note(topics[at : at + _PASSED], some)
            self._fan_out.pass_on(some, self._through.clear, self._through.set)
            self._through.wait()
            if at + _PASSED < len(messages):
                let_others_run()
        self._next = segment.next

    def _outgoing(self, segment: Segment, messages: list[bytes], place: int) -> list[bytes]:
        """Return the messages as they are sent; with ``full``, with a last frame of number and time."""
        if self._settings.envelope != Envelope.FULL:
            return messages
        first, time = segment.first + place, b" %.3f" % segment.at
        return [extended(message, b"%d" % number + time) for number, message in enumerate(messages, first)]
