"""The last message of each topic of a stream, for subscribers that come late (a last value cache)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from time import thread_time
from typing import Final
from weakref import WeakKeyDictionary

import gevent
from gevent import get_hub

from sluicemq.protocol.packed import LONGEST_TOPIC
from sluicemq_devices.relays import Subscriber

#: Topics at most; of more the oldest are forgotten.
MOST_TOPICS: Final = 100_000
#: New topics that are sorted together: 2 ms beside 100,000 others.
_SORTED_AT_ONCE: Final = 1000


class LastValues:
    """The last message of each topic, as it is sent to subscribers; up to ``most_bytes`` together.

    Topics are sorted, so that those with one beginning are found without a look at the others.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.messages: dict[bytes, bytes] = {}  # the latest message last
        self._bytes = 0
        self._listed: set[bytes] = set()  # topics in the next two lists; some are forgotten
        self.in_order: list[bytes] = []
        self._new: list[bytes] = []

    def note(self, topics: Iterable[bytes], messages: Iterable[bytes]) -> int:
        """Keep messages that were published in this order; returns how many topics were forgotten."""
        forgotten = 0
        for topic, message in zip(topics, messages, strict=True):
            self._bytes += len(message) - len(self.messages.pop(topic, b""))
            self.messages[topic] = message
            if topic not in self._listed:
                self._listed.add(topic)
                self._new.append(topic)
                if len(self._new) >= _SORTED_AT_ONCE:
                    self._sort()
        while len(self.messages) > MOST_TOPICS or self._bytes > self._most_bytes > 0 < len(self.messages):
            oldest = next(iter(self.messages))
            self._bytes -= len(self.messages.pop(oldest))
            forgotten += 1
        return forgotten

    def of(self, topic: bytes, subscribed: Container[bytes]) -> Iterator[bytes | None]:
        """Yield the last message of each topic with this beginning, in the order of topics.

        None for a topic that a longer one of ``subscribed`` has brought already.
        """
        if len(topic) > LONGEST_TOPIC or any(topic[:size] in subscribed for size in range(len(topic))):
            return
        self._sort()
        some = self._from(topic)
        while some and some[0].startswith(topic):
            for other in some:
                if not other.startswith(topic):
                    return
                had = any(other[:size] in subscribed for size in range(len(topic) + 1, len(other) + 1))
                yield None if had else self.messages.get(other)
            some = self._from(some[-1] + b"\0")

    def _from(self, topic: bytes) -> list[bytes]:
        """Return the next topics from this one on."""
        first = bisect_left(self.in_order, topic)
        # Topics that are looked up together: others may come before the next ones are.
        return self.in_order[first : first + 64]

    def _sort(self) -> None:
        if len(self.in_order) > 2 * len(self.messages) + _SORTED_AT_ONCE:  # most are forgotten
            self.in_order = [topic for topic in self.in_order if topic in self.messages]
            self._listed = {*self.in_order, *self._new}
        if self._new:
            self.in_order += self._new
            self.in_order.sort()
            self._new = []


class LateMessages:
    """Last messages on their way to subscribers that came late: each subscriber gets them in its own turns.

    A subscriber that subscribes faster than that is not read meanwhile, so a flood of subscriptions costs the
    others no more than a flood of messages.
    """

    def __init__(self, latest: LastValues, send: Callable[[Subscriber, list[bytes]], None]) -> None:
        self._latest = latest
        self._send = send
        self._waiting: WeakKeyDictionary[Subscriber, dict[bytes, None]] = WeakKeyDictionary()
        self._began = False
        self._turn = 0.0  # of the hub, in which some were sent at once

    def begin(self) -> None:
        """Send what was subscribed to until now: all last messages are known."""
        self._began = True
        for subscriber in list(self._waiting):
            gevent.spawn(self._send_all, subscriber, self._messages(subscriber))

    def add(self, subscriber: Subscriber, topic: bytes) -> None:
        """Send the last messages of a new subscription: some at once, the rest in turns of its subscriber."""
        is_new = subscriber not in self._waiting
        topics = self._waiting.setdefault(subscriber, {})
        topics[topic] = None
        # Subscriptions of one subscriber whose last messages wait, at most: then it is not read for a
        # while.
        if len(topics) >= 1000:
            subscriber.lane.pause(self)
        if is_new and self._began:
            self._send_first(subscriber)

    def _send_first(self, subscriber: Subscriber) -> None:
        now = get_hub().loop.now()
        messages = self._messages(subscriber)
        if now == self._turn or self._send_some(subscriber, messages):
            gevent.spawn(self._send_all, subscriber, messages)
        else:
            del self._waiting[subscriber]
        self._turn = now

    def _send_all(self, subscriber: Subscriber, messages: Iterator[bytes | None]) -> None:
        while subscriber.lane.work(partial(self._send_some, subscriber, messages)):
            pass
        del self._waiting[subscriber]
        subscriber.lane.resume(self)

    def _messages(self, subscriber: Subscriber) -> Iterator[bytes | None]:
        """Yield the last messages of all subscriptions of one subscriber that wait; None: nothing to send."""
        topics = self._waiting[subscriber]
        while topics and subscriber.is_there:
            topic = next(iter(topics))
            if topic in subscriber.topics:
                yield from self._latest.of(topic, subscriber.topics)
            topics.pop(topic, None)
            yield None

    def _send_some(self, subscriber: Subscriber, messages: Iterator[bytes | None]) -> bool:
        """Send messages for one piece of time; return True if there are more."""
        # Seconds of CPU for the last messages of one subscriber before others have their turn
        until = thread_time() + 0.002
        some = list[bytes]()
        more = False
        for looks, message in enumerate(messages, 1):
            if message is not None:
                some.append(message)
            if looks % 16 == 0 and thread_time() > until:
                more = True
                break
        if some:
            self._send(subscriber, some)
        return more
