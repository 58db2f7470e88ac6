"""The subscribers of a FORWARDER, their topics, and the choice of messages for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sluicemq_devices.hub import in_turns
from sluicemq_devices.relays.bounds import BOUNDS, Bounds
from sluicemq_devices.relays.topics import LONGEST_TOPIC, SubscribedTopics
from sluicemq_devices.relays.upstream import Upstream
from sluicemq_devices.sockets import RawLane
from sluicemq_devices.zmtp import LONG, first_frame

_SUBSCRIBE = b"\x01"
_UNSUBSCRIBE = b"\x00"
_TOPIC = 600  # bytes of memory of a topic, beyond three times its own bytes
_TURN = 500  # topics of a subscriber that has left, which are removed in a turn of the hub
#: Up to 2 subscribers with up to 16 topics together are matched one by one, which is quicker.
_FEW_SUBSCRIBERS, _FEW_TOPICS = 2, 16
_LEAST_CHOSEN = 16  # messages that are matched at once, however many subscribers there are


class Subscribers:
    """All subscribers of one FORWARDER; ``subscribed`` is called with each new topic of one."""

    def __init__(
        self,
        upstream: Upstream,
        subscribed: Callable[[Subscriber, bytes], None] | None = None,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self.subscribers: set[Subscriber] = set()
        """Subscribers that are connected."""
        self.of_everything: set[Subscriber] = set()
        """Subscribers of the empty topic, which get every message."""
        self.weight = 0
        """Bytes that all topics take in memory."""
        self.bounds = bounds
        self.subscribed = subscribed
        self.topics: SubscribedTopics[Subscriber] = SubscribedTopics(bounds.topics)
        self._count = 0
        self._few: list[tuple[Subscriber, tuple[bytes, ...]]] | None = []  # None: to be found out
        self._upstream = upstream

    def choose(self, messages: list[bytes]) -> Iterator[tuple[Subscriber, list[bytes]] | None]:
        """Yield for each subscriber the messages it wants, in lots; subscribers may come and go meanwhile.

        None: some milliseconds have passed, and there may be more.
        """
        get_all = self.of_everything.copy()
        for subscriber in get_all:
            yield subscriber, messages
        if get_all == self.subscribers:
            return
        size = max(_LEAST_CHOSEN, self.bounds.chosen // max(1, len(self.subscribers)))
        for at in range(0, len(messages), size):
            for chosen in self._choose(messages[at : at + size]):
                if not chosen or (chosen[0] in self.subscribers and chosen[0] not in get_all):
                    yield chosen

    def _choose(self, messages: list[bytes]) -> Iterator[tuple[Subscriber, list[bytes]] | None]:
        if self._few is None:
            self._few = self._find_few()
        if self._few:
            for subscriber, prefixes in self._few:
                if wanted := _beginning_with(prefixes, messages):
                    yield subscriber, wanted
            return
        yield from self.topics.wanted(messages)

    def add(self, topic: bytes, subscriber: Subscriber) -> None:
        """Add a subscription, which must be new."""
        self._few = None
        self.weight += weight_of(topic)
        self._upstream.want(topic)
        if topic:
            self.topics.add(topic, subscriber)
            self._count += 1
        else:
            self.of_everything.add(subscriber)

    def remove(self, topic: bytes, subscriber: Subscriber) -> None:
        """Remove a subscription, which must exist."""
        self._few = None
        self.weight -= weight_of(topic)
        self._upstream.want_no_more(topic)
        if topic:
            self.topics.remove(topic, subscriber)
            self._count -= 1
        else:
            self.of_everything.discard(subscriber)

    def leave(self, subscriber: Subscriber) -> None:
        """Remove a subscriber that has left; its topics are removed by and by."""
        self._few = None
        self.subscribers.discard(subscriber)
        self.of_everything.discard(subscriber)

    def notify_publishers(self) -> None:
        """Pass changes of topics on to the publishers."""
        self._upstream.notify()

    def _find_few(self) -> list[tuple[Subscriber, tuple[bytes, ...]]]:
        if self._count > _FEW_TOPICS:
            return []
        choosy = [subscriber for subscriber in self.subscribers - self.of_everything if subscriber.topics]
        return (
            [(subscriber, tuple(subscriber.topics)) for subscriber in choosy]
            if len(choosy) <= _FEW_SUBSCRIBERS
            else []
        )


class Subscriber:
    """One subscriber: its lane, its topics, and the messages it has lost."""

    def __init__(self, lane: RawLane, subscriptions: Subscribers, refused: Callable[[str], None]) -> None:
        """``refused(why)`` is called when a subscription is refused."""
        self.lane = lane
        self.topics: set[bytes] = set()
        self.lost = 0
        """Messages lost because it read too slowly."""
        self.is_behind = False
        """True if it has lost the last message."""
        self.is_there = True
        """False once it has left."""
        self._subscriptions = subscriptions
        self._refused = refused
        self._weight = 0

    def receive(self, messages: list[bytes]) -> None:
        """Carry out its subscriptions; other messages are ignored."""
        for message in messages:
            frame = first_frame(message)
            verb, topic = frame[:1], frame[1:]
            if verb == _SUBSCRIBE and topic not in self.topics:
                self._subscribe(topic)
            elif verb == _UNSUBSCRIBE and topic in self.topics:
                self._unsubscribe(topic)
        self._subscriptions.notify_publishers()

    def describe(self) -> dict[str, Any]:
        """Return its peer and its counts, as ``stats`` shows them."""
        held = self.lane.held.count
        return {"peer": self.lane.peer, "topics": len(self.topics), "held": held, "lost": self.lost}

    def leave(self) -> None:
        """Remove a subscriber that has left, its topics in several turns."""
        self.is_there = False
        self._subscriptions.leave(self)
        in_turns(self._give_up_some)

    def _subscribe(self, topic: bytes) -> None:
        why = self._why_not(topic)
        if why:
            self._refused(why)
            return
        self._weight += weight_of(topic)
        self.topics.add(topic)
        self._subscriptions.add(topic, self)
        if self._subscriptions.subscribed:
            self._subscriptions.subscribed(self, topic)

    def _unsubscribe(self, topic: bytes) -> None:
        self.topics.remove(topic)
        self._weight -= weight_of(topic)
        self._subscriptions.remove(topic, self)

    def _why_not(self, topic: bytes) -> str:
        """Return why a topic is refused; empty if it is not."""
        if len(topic) > LONGEST_TOPIC:
            return f"a topic of {len(topic)} bytes, more than {LONGEST_TOPIC}"
        more, bounds = weight_of(topic), self._subscriptions.bounds
        if self._weight + more > bounds.bytes_of_one:
            return (
                f"its {len(self.topics)} topics take {self._weight} bytes, and at most {bounds.bytes_of_one}"
            )
        if self._subscriptions.weight + more > bounds.bytes_of_all:
            taken = self._subscriptions.weight
            return f"topics of all subscribers take {taken} bytes, and at most {bounds.bytes_of_all}"
        return ""

    def _give_up_some(self) -> bool:
        for _ in range(min(_TURN, len(self.topics))):
            self._subscriptions.remove(self.topics.pop(), self)
        self._subscriptions.notify_publishers()
        return bool(self.topics)


def weight_of(topic: bytes) -> int:
    """Return the bytes of memory that a subscription to this topic takes at most."""
    return _TOPIC + 3 * len(topic)


def _beginning_with(prefixes: tuple[bytes, ...], messages: list[bytes]) -> list[bytes]:
    """Return the messages whose first frame begins with one of the prefixes."""
    return [
        message
        for message in messages
        if (
            message.startswith(prefixes, 9, 9 + int.from_bytes(message[1:9]))
            if message[0] & LONG
            else message.startswith(prefixes, 2, 2 + message[1])
        )
    ]
