"""STREAMER: PUSH producers at the front, PULL workers at the back."""

from __future__ import annotations

from devices.device import HWM, HWM_BYTES, Device
from devices.doors import SharedDoor
from devices.endpoints import Endpoint
from devices.flow import Watermark
from devices.switchboard import Switchboard


class Streamer(Device):
    """PULL to PUSH; what no worker takes is held up to the marks, then the producers wait."""

    def __init__(
        self,
        board: Switchboard,
        frontend: Endpoint,
        backend: Endpoint,
        *,
        hwm: int = HWM,
        hwm_bytes: int = HWM_BYTES,
    ) -> None:
        self._held = Watermark(hwm, hwm_bytes, full=self._pause, drained=self._resume)
        self._workers = SharedDoor(
            board,
            backend,
            "PUSH",
            lambda _: None,
            max_frame=hwm_bytes,
            sndhwm=min(hwm, 1000),
            held=self._held,
        )
        self._producers = SharedDoor(board, frontend, "PULL", self._workers.post, max_frame=hwm_bytes)
        super().__init__([self._producers], [self._workers])

    @property
    def backlog(self) -> int:
        """Messages that no worker has taken yet."""
        return self._held.count

    def _pause(self) -> None:
        self._producers.pause()

    def _resume(self) -> None:
        self._producers.resume()
