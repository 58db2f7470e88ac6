"""FORWARDER: PUB publishers at the front, SUB subscribers at the back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from time import perf_counter

from sluicemq_devices.doors import Endpoint, RawDoor, RawLane, Switchboard
from sluicemq_devices.hub import Mishap, Watermark, in_turns, nothing
from sluicemq_devices.relays.device import HWM, HWM_BYTES, Device
from sluicemq_devices.relays.subscriber import Subscriber, Subscriptions
from sluicemq_devices.relays.upstream import Upstream

_FEW = 32  # subscribers to whom a lot of messages goes in one turn
_TURN = 0.004  # seconds; with more, what is sent in a turn


class Forwarder(Device):
    """XSUB to XPUB; subscriptions go up to the publishers.

    Every subscriber has a lane and its own high-water marks. One that reads too slowly loses what
    goes beyond them, as with any PUB socket, but here the losses are counted, and nobody waits.
    (A shared XPUB can't count: once its pipe to a subscriber is full, it passes over that
    subscriber without a word until half of the pipe has been read.)

    What is for many is passed on in turns of the hub, one lot after the other, and whoever publishes is not
    read meanwhile.
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
        self._under_way: deque[tuple[RawLane, Iterator[tuple[Subscriber, list[bytes]]]]] = deque()
        self._upstream = Upstream()
        self._subscriptions = Subscriptions(self._upstream)
        super().__init__(
            [self._frontend(end) for end in _as_list(frontend)],
            [self._backend(end) for end in _as_list(backend)],
        )

    @property
    def backlog(self) -> int:
        """Messages held for subscribers that have not taken them yet."""
        held = sum(subscriber.lane.backlog for subscriber in self._subscriptions.subscribers)
        return held + len(self._under_way)

    def _frontend(self, end: Endpoint) -> RawDoor:
        return RawDoor(self._board, end, "XSUB", self._publisher_came, max_frame=self._marks[1])

    def _backend(self, end: Endpoint) -> RawDoor:
        hwm, hwm_bytes = self._marks
        return RawDoor(
            self._board,
            end,
            "XPUB",
            self._subscriber_came,
            max_frame=hwm_bytes,
            held=lambda peer: Watermark(hwm, hwm_bytes, partial(self._fell_behind, peer), nothing),
        )

    def _publisher_came(self, lane: RawLane) -> None:
        lane.receive = partial(self._publish, lane)
        self._upstream.came(lane)

    def _subscriber_came(self, lane: RawLane) -> None:
        subscriber = Subscriber(lane, self._subscriptions, partial(self._refuse, lane.peer))
        self._subscriptions.subscribers.add(subscriber)
        lane.receive = subscriber.receive
        lane.closed = subscriber.leave

    def _publish(self, lane: RawLane, messages: list[bytes]) -> None:
        if not self._under_way and len(self._subscriptions.subscribers) <= _FEW:
            for subscriber, wanted in self._subscriptions.choose(messages):
                self._send(subscriber, wanted)
            return
        self._under_way.append((lane, self._subscriptions.choose(messages)))
        lane.pause(self)
        if len(self._under_way) == 1:
            in_turns(self._pass_on)

    def _pass_on(self) -> bool:
        """Pass on for a moment what is under way; whether there is more."""
        until = perf_counter() + _TURN
        while self._under_way:
            lane, deliveries = self._under_way[0]
            for subscriber, messages in deliveries:
                self._send(subscriber, messages)
                if perf_counter() > until:
                    return True
            self._under_way.popleft()
            lane.resume(self)
        return False

    def _send(self, subscriber: Subscriber, messages: list[bytes]) -> None:
        if subscriber.lane.held.is_full:
            self.lost += len(messages)
        else:
            subscriber.lane.post(messages)

    def _fell_behind(self, peer: str) -> None:
        self._board.notice(Mishap.SUBSCRIBERS_BEHIND, f"{peer} reads too slowly and loses messages")

    def _refuse(self, peer: str, why: str) -> None:
        self._board.notice(Mishap.SUBSCRIPTIONS_REFUSED, f"{peer} will not get what it subscribes to: {why}")


def _as_list(ends: Endpoint | list[Endpoint]) -> list[Endpoint]:
    return [ends] if isinstance(ends, Endpoint) else ends
