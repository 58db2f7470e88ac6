"""FORWARDER: PUB publishers at the front, SUB subscribers at the back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sluicemq_devices.relays.bounds import BOUNDS, Bounds
from sluicemq_devices.relays.device import HWM, HWM_BYTES, Device
from sluicemq_devices.relays.fan_out import Admits, FanOut, everybody
from sluicemq_devices.relays.upstream import Upstream
from sluicemq_devices.sockets import Endpoint, Guards, RawDoor, RawLane, Switchboard, open_to_all

Published = Callable[[RawLane, list[bytes]], bool]


def _pass(_lane: RawLane, _messages: list[bytes]) -> bool:
    return True


class Forwarder(Device):
    """XSUB to XPUB; subscriptions go up to the publishers.

    A lot for many subscribers is sent in several turns of the hub, one lot after the other, and its publisher
    is not read meanwhile.
    """

    def __init__(
        self,
        board: Switchboard,
        frontend: Endpoint | list[Endpoint],
        backend: Endpoint | list[Endpoint],
        *,
        hwm: int = HWM,
        hwm_bytes: int = HWM_BYTES,
        bounds: Bounds = BOUNDS,
        guard: Guards = open_to_all,
        admits: tuple[Admits, Admits] = (everybody, everybody),
        published: Published = _pass,
    ) -> None:
        """``guard`` as :class:`FanOut` takes it; so ``admits``: of the frontend and of the backend.

        ``published(lane, messages)`` is called for what comes in; False: it was put back.
        """
        self._published = published
        self.upstream = Upstream()
        self._admits = admits[0]
        self.fan_out = FanOut(
            board,
            _as_list(backend),
            self.upstream,
            hwm=hwm,
            hwm_bytes=hwm_bytes,
            bounds=bounds,
            guard=guard,
            admits=admits[1],
        )
        fronts = [
            RawDoor(board, end, "XSUB", self._publisher_came, max_frame=hwm_bytes, guard=guard(end))
            for end in _as_list(frontend)
        ]
        super().__init__(fronts, self.fan_out.doors)

    @property
    def backlog(self) -> int:
        """Messages held for subscribers that have not taken them yet."""
        return self.fan_out.backlog

    @property
    def sent(self) -> int:
        """Messages sent, counted for each subscriber that got them."""
        return self.fan_out.sent

    @property
    def lost(self) -> int:
        """Messages lost, counted for each subscriber that lost them."""
        return self.fan_out.lost

    @property
    def subscribers(self) -> list[dict[str, Any]]:
        """``{peer, topics, held, lost}`` of the subscribers; of many, those that have lost most."""
        return self.fan_out.describe()

    def _publisher_came(self, lane: RawLane) -> None:
        if self._admits(lane):
            lane.on(receive=partial(self._publish, lane))
            self.upstream.connected(lane)

    def _publish(self, lane: RawLane, messages: list[bytes]) -> None:
        if self._published(lane, messages):
            self.fan_out.pass_on(messages, partial(lane.pause, self), partial(lane.resume, self))


def _as_list(ends: Endpoint | list[Endpoint]) -> list[Endpoint]:
    return [ends] if isinstance(ends, Endpoint) else ends
