"""The last message of each topic of a stream, for subscribers that come late (a last value cache)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator
from typing import Final

from sluicemq.protocol.packed import LONGEST_TOPIC

#: Topics at most; of more the oldest are forgotten.
MOST_TOPICS: Final = 100_000
#: New topics that are sorted together: 2 ms beside 100,000 others.
_SORTED_AT_ONCE: Final = 1000
_BEHIND_ALL: Final = b"\xff" * (LONGEST_TOPIC + 1)


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
        first = bisect_left(self.in_order, topic)
        for each in self.in_order[first : bisect_right(self.in_order, topic + _BEHIND_ALL)]:
            had = any(each[:size] in subscribed for size in range(len(topic) + 1, len(each) + 1))
            yield None if had else self.messages.get(each)

    def _sort(self) -> None:
        if len(self.in_order) > 2 * len(self.messages) + _SORTED_AT_ONCE:  # most are forgotten
            self.in_order = [each for each in self.in_order if each in self.messages]
            self._listed = {*self.in_order, *self._new}
        if self._new:
            self.in_order += self._new
            self.in_order.sort()
            self._new = []
