"""What the subscribers of a FORWARDER want, and which publisher has been told how much of it."""

from __future__ import annotations

from collections import OrderedDict, deque
from functools import partial

from sluicemq_devices.hub import in_turns
from sluicemq_devices.sockets import RawLane

_RUN = 100  # subscriptions sent at once: of a publisher that does not read, so many are held
_TURN = 1000  # changes noted for a publisher, and told to one, in a turn of the hub


class Upstream:
    """All topics that are wanted, each as long as one subscriber wants it.

    A change is told to all publishers by :meth:`tell`; many of them in several turns of the hub.
    """

    def __init__(self) -> None:
        self._wanted: dict[bytes, int] = {}
        self._publishers: dict[RawLane, _Publisher] = {}
        self._changes: deque[tuple[bytes, bool]] = deque()  # that no publisher has noted yet
        self._noted = 0  # changes, so far
        self._telling = False

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
        if not self._telling:
            self._telling = True
            in_turns(self._tell_some)

    def came(self, lane: RawLane) -> None:
        """Tell a new publisher all that is wanted."""
        self._publishers[lane] = _Publisher(lane, list(self._wanted), self._noted + len(self._changes))
        lane.on(closed=partial(self._left, lane), unblocked=self.tell)
        self.tell()

    def _left(self, lane: RawLane) -> None:
        del self._publishers[lane]

    def _change(self, topic: bytes, *, on: bool) -> None:
        if self._publishers:
            self._changes.append((topic, on))

    def _tell_some(self) -> bool:
        """Do what one turn allows; whether there is more to do."""
        self._note()
        left = _TURN
        for publisher in self._publishers.values():
            left -= publisher.tell(left)
        self._telling = left <= 0 or bool(self._changes)
        return self._telling

    def _note(self) -> None:
        publishers = self._publishers.values()
        for _ in range(min(len(self._changes), max(1, _TURN // max(1, len(publishers))))):
            topic, on = self._changes.popleft()
            self._noted += 1
            for publisher in publishers:
                if publisher.since < self._noted:
                    publisher.change(topic, on=on)


class _Publisher:
    """What one publisher is to be told: never more than the difference to what it was told before."""

    def __init__(self, lane: RawLane, wanted: list[bytes], since: int) -> None:
        self.since = since
        """Changes that are in ``wanted`` already."""
        self._lane = lane
        self._first = wanted  # topics wanted when it came, that come before all changes
        self._untold: OrderedDict[bytes, bool] = OrderedDict()

    def change(self, topic: bytes, *, on: bool) -> None:
        """Have it told, unless it was not told the contrary yet."""
        if self._untold.pop(topic, None) is None:
            self._untold[topic] = on

    def tell(self, most: int) -> int:
        """Tell it as much as its connection takes, or ``most``; how many topics that were."""
        told = 0
        while told < most and (self._first or self._untold) and self._lane.writable:
            count = min(_RUN, most - told)
            run = self._take_first(count) if self._first else self._take(count)
            told += count
            if run:
                self._lane.post([self._lane.subscription(topic, on=on) for topic, on in run])
        return told

    def _take_first(self, count: int) -> list[tuple[bytes, bool]]:
        """Of the first topics, those that nobody has given up in the meantime."""
        topics, self._first[-count:] = self._first[-count:], []
        return [(topic, True) for topic in topics if self._untold.pop(topic, None) is None]

    def _take(self, count: int) -> list[tuple[bytes, bool]]:
        return [self._untold.popitem(last=False) for _ in range(min(count, len(self._untold)))]
