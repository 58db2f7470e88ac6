"""FORWARDER: PUB publishers at the front, SUB subscribers at the back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from devices.callbacks import nothing
from devices.device import HWM, HWM_BYTES, Device
from devices.doors import RawDoor, RawLane
from devices.endpoints import Endpoint
from devices.flow import Watermark
from devices.switchboard import Switchboard
from devices.upstream import Upstream
from devices.zmtp_frames import LONG, first_frame

_SUBSCRIBE = b"\x01"
_UNSUBSCRIBE = b"\x00"
#: Bytes of one topic, at most: a publisher's libzmq recurses once for each, and half a million overflow
#: its stack.
_LONGEST_TOPIC = 4096
#: Bytes of all topics of one subscriber, at most, each with so many more.
_MOST_TOPICS, _TOPIC = 1 << 20, 64


class Forwarder(Device):
    """XSUB to XPUB; subscriptions go up to the publishers.

    Every subscriber has a lane and its own high-water marks. One that reads too slowly loses what
    goes beyond them, as with any PUB socket, but here the losses are counted, and nobody waits.
    (A shared XPUB can't count: once its pipe to a subscriber is full, it passes over that
    subscriber without a word until half of the pipe has been read.)
    """

    def __init__(
        self,
        board: Switchboard,
        frontend: Endpoint | list[Endpoint],
        backend: Endpoint | list[Endpoint],
        *,
        hwm: int = HWM,
        hwm_bytes: int = HWM_BYTES,
    ) -> None:
        self.lost = 0
        """Messages that subscribers have lost, each counted once for each of them."""
        self._board = board
        self._marks = (hwm, hwm_bytes)
        self._subscribers: set[_Subscriber] = set()
        self._upstream = Upstream()
        super().__init__(
            [self._frontend(end) for end in _as_list(frontend)],
            [self._backend(end) for end in _as_list(backend)],
        )

    @property
    def backlog(self) -> int:
        """Messages held for subscribers that have not taken them yet."""
        return sum(subscriber.lane.backlog for subscriber in self._subscribers)

    def _frontend(self, end: Endpoint) -> RawDoor:
        return RawDoor(self._board, end, "XSUB", self._publisher_came, max_frame=self._marks[1])

    def _backend(self, end: Endpoint) -> RawDoor:
        hwm, hwm_bytes = self._marks
        return RawDoor(
            self._board,
            end,
            "XPUB",
            self._subscriber_came,
            max_frame=hwm_bytes,
            held=lambda peer: Watermark(hwm, hwm_bytes, partial(self._fell_behind, peer), nothing),
        )

    def _publisher_came(self, lane: RawLane) -> None:
        lane.receive = self._publish
        self._upstream.came(lane)

    def _subscriber_came(self, lane: RawLane) -> None:
        subscriber = _Subscriber(lane, self._upstream, partial(self._cut, lane))
        self._subscribers.add(subscriber)
        lane.closed = partial(self._subscriber_left, subscriber)

    def _subscriber_left(self, subscriber: _Subscriber) -> None:
        self._subscribers.discard(subscriber)
        subscriber.unsubscribe_all()

    def _cut(self, lane: RawLane) -> None:
        self._board.notice(
            "connections_cut",
            f"{lane.peer} subscribes to too much: a topic has at most {_LONGEST_TOPIC} bytes, "
            f"all of one subscriber {_MOST_TOPICS}",
        )
        lane.close()

    def _publish(self, messages: list[bytes]) -> None:
        for subscriber in self._subscribers:
            self.lost += subscriber.publish(messages)

    def _fell_behind(self, peer: str) -> None:
        self._board.notice("subscribers_behind", f"{peer} reads too slowly and loses messages")


class _Subscriber:
    """One subscriber: what it wants, and its lane."""

    def __init__(self, lane: RawLane, upstream: Upstream, too_much: Callable[[], None]) -> None:
        self.lane = lane
        self._upstream = upstream
        self._too_much = too_much
        self._topics: dict[bytes, None] = {}
        self._weight = 0
        self._prefixes: tuple[bytes, ...] | None = ()  # the topics; None: they have changed
        lane.receive = self._receive

    def publish(self, messages: list[bytes]) -> int:
        """Send what it wants of them; how many of these it lost."""
        wanted = messages if b"" in self._topics else self._wanted_of(messages)
        if self.lane.held.is_full:
            return len(wanted)
        if wanted:
            self.lane.post(wanted)
        return 0

    def unsubscribe_all(self) -> None:
        """Take back, upstream, what it had subscribed to."""
        for topic in self._topics:
            self._upstream.want_no_more(topic)
        self._upstream.tell()

    def _wanted_of(self, messages: list[bytes]) -> list[bytes]:
        """Those whose first frame begins with one of its topics."""
        if self._prefixes is None:
            self._prefixes = tuple(self._topics)
        prefixes = self._prefixes
        return [
            message
            for message in messages
            if (
                message.startswith(prefixes, 9, 9 + int.from_bytes(message[1:9]))
                if message[0] & LONG
                else message.startswith(prefixes, 2, 2 + message[1])
            )
        ]

    def _receive(self, messages: list[bytes]) -> None:
        """Take its subscriptions; what else it says is for nobody."""
        for message in messages:
            frame = first_frame(message)
            verb, topic = frame[:1], frame[1:]
            if verb == _SUBSCRIBE and topic not in self._topics:
                if not self._has_room(topic):
                    self._too_much()
                    break
                self._topics[topic] = self._prefixes = None
                self._upstream.want(topic)
            elif verb == _UNSUBSCRIBE and topic in self._topics:
                del self._topics[topic]
                self._prefixes = None
                self._weight -= len(topic) + _TOPIC
                self._upstream.want_no_more(topic)
        self._upstream.tell()

    def _has_room(self, topic: bytes) -> bool:
        self._weight += len(topic) + _TOPIC
        return len(topic) <= _LONGEST_TOPIC and self._weight <= _MOST_TOPICS


def _as_list(ends: Endpoint | list[Endpoint]) -> list[Endpoint]:
    return [ends] if isinstance(ends, Endpoint) else ends
