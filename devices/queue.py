"""QUEUE: REQ and DEALER clients at the front, REP workers at the back."""

from __future__ import annotations

from devices.device import HWM, HWM_BYTES, Device, wait_while
from devices.doors import SharedDoor
from devices.endpoints import Endpoint
from devices.flow import Watermark
from devices.port import Message
from devices.switchboard import Switchboard

_ANSWERING = 1.0  # seconds in which, at a stop, workers may still answer what they were asked


class Queue(Device):
    """ROUTER to DEALER and back; requests that no worker takes are held, then the clients wait."""

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
            "DEALER",
            self._answer,
            max_frame=hwm_bytes,
            sndhwm=min(hwm, 1000),
            held=self._held,
        )
        self._clients = SharedDoor(board, frontend, "ROUTER", self._workers.post, max_frame=hwm_bytes)
        super().__init__([self._clients], [self._workers])

    @property
    def backlog(self) -> int:
        """Requests that no worker has taken yet."""
        return self._held.count

    def _answer(self, replies: list[Message]) -> None:
        for reply in replies:
            self._clients.send(reply)

    def _end_intake(self, door: SharedDoor) -> None:
        """Read no more, but let answers out for a while before the clients' connections end."""
        door.pause()
        wait_while(lambda: self._clients.received > self._workers.received, _ANSWERING)

    def _pause(self) -> None:
        self._clients.pause()

    def _resume(self) -> None:
        self._clients.resume()
