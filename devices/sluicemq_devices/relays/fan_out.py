"""The back of a FORWARDER: SUB subscribers, their topics, and the messages they have lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from sluicemq_devices.hub import Mishap, Watermark, in_turns, nothing
from sluicemq_devices.relays.bounds import BOUNDS, Bounds
from sluicemq_devices.relays.subscriber import Subscriber, Subscribers
from sluicemq_devices.relays.upstream import Upstream
from sluicemq_devices.sockets import Endpoint, Guard, Guards, RawDoor, RawLane, Switchboard, open_to_all

_FEW = 32  # subscribers to whom a lot of messages goes in one turn
#: Returns whether a connection may stay; one that may not was cut.
Admits = Callable[[RawLane], bool]
_Deliveries = Iterator[tuple[Subscriber, list[bytes]] | None]
_MOST_DESCRIBED = 1000  # subscribers that are described: those that have lost most


def everybody(_lane: RawLane) -> bool:
    """Return True: a connection may stay."""
    return True


class FanOut:
    """XPUB doors: each message goes to all its subscribers, and none waits for a slow one.

    Each subscriber has a lane with high-water marks of its own. A subscriber that reads too slowly loses
    messages beyond these, as with any PUB socket, but here the losses are counted for each. (libzmq's XPUB
    can't count: once its pipe to a subscriber is full, it skips that subscriber silently until half of the
    pipe has been read.)

    ``upstream`` passes subscriptions to the publishers. ``subscribed(subscriber, topic)`` is called for each
    new topic of a subscriber. ``guard(end)``: guard of the door at this end.
    ``admits(lane)``: whether a subscriber that got past the guard may stay.
    """

    def __init__(
        self,
        board: Switchboard,
        backends: Sequence[Endpoint],
        upstream: Upstream,
        *,
        hwm: int,
        hwm_bytes: int,
        subscribed: Callable[[Subscriber, bytes], None] | None = None,
        bounds: Bounds = BOUNDS,
        guard: Guards = open_to_all,
        admits: Admits = everybody,
    ) -> None:
        self.sent = 0
        """Messages sent, counted for each subscriber that got them."""
        self.lost = 0
        """Messages lost, counted for each subscriber that lost them."""
        self._board = board
        self._marks = (hwm, hwm_bytes)
        self.under_way: deque[tuple[Callable[[], None], _Deliveries]] = deque()
        self._turn = bounds.turn
        self._admits = admits
        self.subscriptions = Subscribers(upstream, subscribed, bounds)
        self.doors = [self._backend(end, guard(end)) for end in backends]

    @property
    def backlog(self) -> int:
        """Messages held for subscribers that have not taken them yet."""
        held = sum(subscriber.lane.backlog for subscriber in self.subscriptions.subscribers)
        return held + len(self.under_way)

    @property
    def is_quick(self) -> bool:
        """True if :meth:`pass_on` sends at once, in this turn, unless very many topics have changed."""
        return not self.under_way and len(self.subscriptions.subscribers) <= _FEW

    def describe(self) -> list[dict[str, Any]]:
        """Return ``{peer, topics, held, lost}`` of the subscribers; of many, those that have lost most."""
        worst = sorted(self.subscriptions.subscribers, key=lambda subscriber: subscriber.lost, reverse=True)
        return [subscriber.describe() for subscriber in worst[:_MOST_DESCRIBED]]

    def pass_on(self, messages: list[bytes], wait: Callable[[], None], resume: Callable[[], None]) -> None:
        """Send messages to subscribers; call ``wait`` and later ``resume`` if that takes several turns."""
        deliveries = self.subscriptions.choose(messages)
        if self.is_quick and self._send_all(deliveries):
            return
        self.under_way.append((resume, deliveries))
        wait()
        if len(self.under_way) == 1:
            in_turns(self.take_turn)

    def send(self, subscriber: Subscriber, messages: list[bytes]) -> None:
        """Send messages to a subscriber; beyond its mark, or its share of unread bytes, it loses them."""
        lane = subscriber.lane
        if lane.held.is_full or lane.is_full:
            if not subscriber.is_behind:
                subscriber.is_behind = True
                self._fell_behind(lane.peer)
            self.lost += len(messages)
            subscriber.lost += len(messages)
            self._board.count(Mishap.MESSAGES_LOST, len(messages))
        else:
            subscriber.is_behind = False
            self.sent += len(messages)
            lane.post(messages)

    def _send_all(self, deliveries: _Deliveries) -> bool:
        """Send deliveries; return False if it took long and a rest is left."""
        for delivery in deliveries:
            if delivery is None:
                return False
            self.send(*delivery)
        return True

    def take_turn(self) -> bool:
        """Send for one turn what is under way; return True if there is more."""
        until = perf_counter() + self._turn
        while self.under_way:
            resume, deliveries = self.under_way[0]
            for delivery in deliveries:
                if delivery:
                    self.send(*delivery)
                if perf_counter() > until:
                    return True
            self.under_way.popleft()
            resume()
        return False

    def _backend(self, end: Endpoint, guard: Guard) -> RawDoor:
        hwm, hwm_bytes = self._marks
        return RawDoor(
            self._board,
            end,
            "XPUB",
            self._connected,
            max_frame=hwm_bytes,
            held=lambda _: Watermark(hwm, hwm_bytes, nothing, nothing),
            guard=guard,
        )

    def _connected(self, lane: RawLane) -> None:
        if not self._admits(lane):
            return
        subscriber = Subscriber(lane, self.subscriptions, partial(self._refuse, lane.peer))
        self.subscriptions.subscribers.add(subscriber)
        lane.on(receive=subscriber.receive, closed=subscriber.leave)

    def _fell_behind(self, peer: str) -> None:
        self._board.notice(Mishap.SUBSCRIBERS_BEHIND, f"{peer} reads too slowly and loses messages")

    def _refuse(self, peer: str, why: str) -> None:
        self._board.notice(Mishap.SUBSCRIPTIONS_REFUSED, f"{peer} will not get what it subscribes to: {why}")
