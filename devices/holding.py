"""What STREAMER and QUEUE have in common: one socket for all workers, and a backlog in front of it."""

from __future__ import annotations

from devices.device import HWM, HWM_BYTES, Device
from devices.doors import SharedDoor
from devices.endpoints import Endpoint
from devices.flow import Watermark
from devices.port import Message
from devices.switchboard import Switchboard


class HoldingDevice(Device):
    """What no worker takes is held up to the marks, then whoever sends it waits."""

    kinds: tuple[str, str]
    """The sockets of the frontend and of the backend."""

    def __init__(
        self,
        board: Switchboard,
        frontend: Endpoint,
        backend: Endpoint,
        *,
        hwm: int = HWM,
        hwm_bytes: int = HWM_BYTES,
    ) -> None:
        front, back = self.kinds
        self._held = Watermark(hwm, hwm_bytes, full=self._pause, drained=self._resume)
        self._workers = SharedDoor(
            board,
            backend,
            back,
            self._answer,
            max_frame=hwm_bytes,
            sndhwm=min(hwm, 1000),
            held=self._held,
        )
        self._clients = SharedDoor(
            board, frontend, front, self._workers.post, max_frame=hwm_bytes, sndhwm=max(hwm, 1000)
        )
        super().__init__([self._clients], [self._workers])

    @property
    def backlog(self) -> int:
        """Messages that no worker has taken yet."""
        return self._held.count

    def _answer(self, messages: list[Message]) -> None:
        """Take what workers send: nothing comes from PULL."""

    def _pause(self) -> None:
        self._clients.pause()

    def _resume(self) -> None:
        self._clients.resume()
