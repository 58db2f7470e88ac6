"""The bus of brokers in one process; used with an embedded MongoDB, which no other broker uses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gevent.queue import Empty, Queue

#: The listeners by the name of the place.
_places: defaultdict[str, set[LocalFeed]] = defaultdict(set)


class LocalFeed:
    """The lines received by one listener."""

    def __init__(self) -> None:
        self.lines: Queue[str] = Queue()

    def next(self) -> Sequence[str]:
        """See :meth:`Feed.next`."""
        try:
            first = self.lines.get(timeout=1.0)  # seconds after which a feed returns no lines
        except Empty:
            return ()
        return [first, *(self.lines.get_nowait() for _ in range(self.lines.qsize()))]


class LocalTransport:
    """Connects all transports of one ``place`` in this process."""

    in_store = False

    def __init__(self, place: str) -> None:
        self._place = place
        self._feed = LocalFeed()

    @contextmanager
    def listen(self, greeting: Sequence[str]) -> Iterator[LocalFeed]:
        """See :meth:`Transport.listen`."""
        listening = _places[self._place]
        listening.add(self._feed)
        self.send(greeting)
        try:
            yield self._feed
        finally:
            listening.discard(self._feed)
            if not listening:
                _places.pop(self._place, None)

    def send(self, lines: Sequence[str]) -> None:
        """See :meth:`Transport.send`."""
        for feed in _places.get(self._place, set()) - {self._feed}:
            for line in lines:
                feed.lines.put_nowait(line)
