"""What the subscribers of a FORWARDER want, and which publisher has been told how much of it."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from devices.doors import RawLane

_RUN = 100  # subscriptions sent at once: of a publisher that does not read, so many are held


class Upstream:
    """All topics that are wanted, each as long as one subscriber wants it.

    A change is told to all publishers by :meth:`tell`.
    """

    def __init__(self) -> None:
        self._wanted: dict[bytes, int] = {}
        self._publishers: dict[RawLane, _Publisher] = {}

    def want(self, topic: bytes) -> None:
        """One more subscriber wants it."""
        self._wanted[topic] = count = self._wanted.get(topic, 0) + 1
        if count == 1:
            self._change(topic, on=True)

    def want_no_more(self, topic: bytes) -> None:
        """One that wanted it does no longer."""
        self._wanted[topic] -= 1
        if not self._wanted[topic]:
            del self._wanted[topic]
            self._change(topic, on=False)

    def tell(self) -> None:
        """Tell the publishers what has changed."""
        for publisher in self._publishers.values():
            publisher.tell()

    def came(self, lane: RawLane) -> None:
        """Tell a new publisher all that is wanted."""
        publisher = self._publishers[lane] = _Publisher(lane, self._wanted)
        lane.unblocked = publisher.tell
        lane.closed = partial(self._left, lane)
        publisher.tell()

    def _left(self, lane: RawLane) -> None:
        del self._publishers[lane]

    def _change(self, topic: bytes, *, on: bool) -> None:
        for publisher in self._publishers.values():
            publisher.change(topic, on=on)


class _Publisher:
    """What one publisher is to be told: never more than the difference to what it was told before."""

    def __init__(self, lane: RawLane, wanted: dict[bytes, int]) -> None:
        self._lane = lane
        self._untold = OrderedDict.fromkeys(wanted, True)

    def change(self, topic: bytes, *, on: bool) -> None:
        """Have it told, unless it was not told the contrary yet."""
        if self._untold.pop(topic, None) is None:
            self._untold[topic] = on

    def tell(self) -> None:
        """Tell it as much as its connection takes; the rest when that takes more."""
        while self._untold and self._lane.writable:
            run = [self._untold.popitem(last=False) for _ in range(min(_RUN, len(self._untold)))]
            self._lane.post([self._lane.subscription(topic, on=on) for topic, on in run])
