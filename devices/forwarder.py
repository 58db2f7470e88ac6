"""FORWARDER: PUB publishers at the front, SUB subscribers at the back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from devices.callbacks import nothing
from devices.device import HWM, HWM_BYTES, Device
from devices.doors import Lane, LaneDoor, SharedDoor
from devices.endpoints import Endpoint
from devices.flow import Watermark
from devices.port import Message
from devices.switchboard import Switchboard

_SUBSCRIBE = b"\x01"
_UNSUBSCRIBE = b"\x00"
#: Bytes of one topic, at most: libzmq's XSUB recurses once for each, and half a million overflow the stack.
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
        self._publishers = [
            SharedDoor(board, end, "XSUB", self._publish, max_frame=hwm_bytes, sndhwm=0)
            for end in _as_list(frontend)
        ]
        super().__init__(self._publishers, [self._backend(end) for end in _as_list(backend)])

    @property
    def backlog(self) -> int:
        """Messages held for subscribers that have not taken them yet."""
        return sum(subscriber.lane.backlog for subscriber in self._subscribers)

    def _backend(self, end: Endpoint) -> LaneDoor:
        hwm, hwm_bytes = self._marks
        return LaneDoor(
            self._board,
            end,
            "XPUB",
            self._opened,
            max_frame=hwm_bytes,
            heartbeat=None,
            silence=None,
            held=lambda peer: Watermark(hwm, hwm_bytes, partial(self._fell_behind, peer), nothing),
        )

    def _opened(self, lane: Lane) -> None:
        subscriber = _Subscriber(lane, self._send_up, partial(self._cut, lane))
        self._subscribers.add(subscriber)
        lane.closed = partial(self._left, subscriber)

    def _left(self, subscriber: _Subscriber) -> None:
        self._subscribers.discard(subscriber)
        subscriber.unsubscribe_all()

    def _send_up(self, subscription: Message) -> None:
        for door in self._publishers:
            door.send(subscription)

    def _cut(self, lane: Lane) -> None:
        self._board.notice(
            "connections_cut",
            f"{lane.peer} subscribes to too much: a topic has at most {_LONGEST_TOPIC} bytes, "
            f"all of one subscriber {_MOST_TOPICS}",
        )
        lane.close()

    def _publish(self, messages: list[Message]) -> None:
        for subscriber in self._subscribers:
            self.lost += subscriber.publish(messages)

    def _fell_behind(self, peer: str) -> None:
        self._board.notice("subscribers_behind", f"{peer} reads too slowly and loses messages")


class _Subscriber:
    """One subscriber: what it wants, and its lane."""

    def __init__(self, lane: Lane, send_up: Callable[[Message], None], too_much: Callable[[], None]) -> None:
        self.lane = lane
        self._send_up = send_up
        self._too_much = too_much
        self._topics: dict[bytes, None] = {}
        self._weight = 0
        self._prefixes: tuple[bytes, ...] | None = ()  # the topics; None: they have changed
        lane.receive = self._receive

    def publish(self, messages: list[Message]) -> int:
        """Send what it wants of them; how many of these it lost."""
        if self._prefixes is None:
            self._prefixes = tuple(self._topics)
        prefixes = self._prefixes
        wanted = [message for message in messages if message[0].startswith(prefixes)]
        taken = 0 if self.lane.held.is_full else len(wanted)
        self.lane.post(wanted[:taken])
        return len(wanted) - taken

    def unsubscribe_all(self) -> None:
        """Take back, upstream, what it had subscribed to."""
        for topic in self._topics:
            self._send_up([_UNSUBSCRIBE + topic])

    def _receive(self, messages: list[Message]) -> None:
        for message in messages:
            verb, topic = message[0][:1], message[0][1:]
            if verb == _SUBSCRIBE and topic not in self._topics:
                if not self._has_room(topic):
                    self._too_much()
                    return
                self._topics[topic] = None
                self._prefixes = None
            elif verb == _UNSUBSCRIBE and topic in self._topics:
                del self._topics[topic]
                self._weight -= len(topic) + _TOPIC
                self._prefixes = None
            elif verb in (_SUBSCRIBE, _UNSUBSCRIBE):
                continue
            self._send_up(message)

    def _has_room(self, topic: bytes) -> bool:
        self._weight += len(topic) + _TOPIC
        return len(topic) <= _LONGEST_TOPIC and self._weight <= _MOST_TOPICS


def _as_list(ends: Endpoint | list[Endpoint]) -> list[Endpoint]:
    return [ends] if isinstance(ends, Endpoint) else ends
