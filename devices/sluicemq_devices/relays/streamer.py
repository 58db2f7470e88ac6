"""STREAMER: PUSH producers at the front, PULL workers at the back."""

from __future__ import annotations

from sluicemq_devices.relays.backlog import HoldingDevice
from sluicemq_devices.sockets import RawLane


class Streamer(HoldingDevice):
    """PULL to PUSH; messages that no worker takes are held up to the marks, then the producers wait."""

    kinds = ("PULL", "PUSH")

    def _client_came(self, lane: RawLane) -> None:
        lane.on(receive=self.take)
