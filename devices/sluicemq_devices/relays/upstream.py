"""Subscriptions that a FORWARDER passes on to its publishers."""

from __future__ import annotations

from collections import OrderedDict, deque
from functools import partial

from sluicemq_devices.hub import in_turns
from sluicemq_devices.sockets import RawLane

_RUN = 100  # subscriptions sent at once, and so held for a publisher that does not read
_TURN = 1000  # changes noted for the publishers, and sent to them, in a turn of the hub


class Upstream:
    """All wanted topics, each as long as a subscriber wants it.

    :meth:`notify` passes changes on to all publishers, many of them in several turns of the hub.
    """

    def __init__(self) -> None:
        self.wanted: dict[bytes, int] = {}
        self.publishers: dict[RawLane, _Publisher] = {}
        self._changes: deque[tuple[bytes, bool]] = deque()  # that no publisher has noted yet
        self._noted = 0  # changes, so far
        self._notifying = False

    def want(self, topic: bytes) -> None:
        """Count one more subscriber of a topic."""
        self.wanted[topic] = count = self.wanted.get(topic, 0) + 1
        if count == 1:
            self._change(topic, on=True)

    def want_no_more(self, topic: bytes) -> None:
        """Count one subscriber of a topic less."""
        self.wanted[topic] -= 1
        if not self.wanted[topic]:
            del self.wanted[topic]
            self._change(topic, on=False)

    def notify(self) -> None:
        """Pass changes on to the publishers."""
        if not self._notifying:
            self._notifying = True
            in_turns(self._notify_some)

    def connected(self, lane: RawLane) -> None:
        """Send a new publisher all wanted topics."""
        self.publishers[lane] = _Publisher(lane, list(self.wanted), self._noted + len(self._changes))
        lane.on(closed=partial(self._left, lane), unblocked=self.notify)
        self.notify()

    def _left(self, lane: RawLane) -> None:
        del self.publishers[lane]

    def _change(self, topic: bytes, *, on: bool) -> None:
        if self.publishers:
            self._changes.append((topic, on))

    def _notify_some(self) -> bool:
        """Do the work of one turn; return True if there is more."""
        self._note()
        left = _TURN
        for publisher in self.publishers.values():
            left -= publisher.send(left)
        self._notifying = left <= 0 or bool(self._changes)
        return self._notifying

    def _note(self) -> None:
        publishers = self.publishers.values()
        for _ in range(min(len(self._changes), max(1, _TURN // max(1, len(publishers))))):
            topic, on = self._changes.popleft()
            self._noted += 1
            for publisher in publishers:
                if publisher.since < self._noted:
                    publisher.change(topic, on=on)


class _Publisher:
    """Subscriptions to send to one publisher: never more than the difference to those it has."""

    def __init__(self, lane: RawLane, wanted: list[bytes], since: int) -> None:
        self.since = since
        """Number of the last change that ``wanted`` contains."""
        self._lane = lane
        self._first = wanted  # topics wanted when it came, which are sent before all changes
        self.unsent: OrderedDict[bytes, bool] = OrderedDict()

    def change(self, topic: bytes, *, on: bool) -> None:
        """Note a change to send; it cancels an opposite one that was not sent yet."""
        if self.unsent.pop(topic, None) is None:
            self.unsent[topic] = on

    def send(self, most: int) -> int:
        """Send up to ``most`` topics, as far as the connection takes them; return their number."""
        sent = 0
        while sent < most and (self._first or self.unsent) and self._lane.writable:
            count = min(_RUN, most - sent)
            run = self._take_first(count) if self._first else self._take(count)
            sent += count
            if run:
                self._lane.post([self._lane.subscription(topic, on=on) for topic, on in run])
        return sent

    def _take_first(self, count: int) -> list[tuple[bytes, bool]]:
        """Take the next of the first topics, without those that are not wanted any more."""
        topics, self._first[-count:] = self._first[-count:], []
        return [(topic, True) for topic in topics if self.unsent.pop(topic, None) is None]

    def _take(self, count: int) -> list[tuple[bytes, bool]]:
        return [self.unsent.popitem(last=False) for _ in range(min(count, len(self.unsent)))]
