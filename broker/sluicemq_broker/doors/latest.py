"""The last message of each topic of a stream, for subscribers that come late (a last value cache)."""

from __future__ import annotations

from collections.abc import Iterable

#: Topics, and bytes of their messages, at most; of more the oldest are forgotten.
MOST_TOPICS = 100_000


class Latest:
    """What was last published on each topic, as it is sent to subscribers. ``most_bytes``: of all."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._messages: dict[bytes, bytes] = {}  # those last published last
        self._bytes = 0

    def note(self, topics: Iterable[bytes], messages: Iterable[bytes]) -> int:
        """These were published, in this order. Returns how many topics are forgotten: there are too many."""
        forgotten = 0
        for topic, message in zip(topics, messages, strict=True):
            self._bytes += len(message) - len(self._messages.pop(topic, b""))
            self._messages[topic] = message
        while len(self._messages) > MOST_TOPICS or self._bytes > self._most_bytes > 0 < len(self._messages):
            oldest = next(iter(self._messages))
            self._bytes -= len(self._messages.pop(oldest))
            forgotten += 1
        return forgotten

    def of(self, topic: bytes, others: Iterable[bytes]) -> list[bytes]:
        """The last messages of all topics that begin so, but of those that begin with one of the others."""
        had = tuple(others)
        return [
            message
            for each, message in self._messages.items()
            if each.startswith(topic) and not each.startswith(had)
        ]
