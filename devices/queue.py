"""QUEUE: REQ and DEALER clients at the front, REP workers at the back."""

from __future__ import annotations

from devices.device import wait_while
from devices.doors import SharedDoor
from devices.holding import HoldingDevice
from devices.port import Message

_ANSWERING = 1.0  # seconds in which, at a stop, workers may still answer what they were asked


class Queue(HoldingDevice):
    """ROUTER to DEALER and back; requests that no worker takes are held, then the clients wait.

    A client that does not read its answers keeps nobody else waiting: past half of ``hwm`` they are
    dropped and noticed. (libzmq learns in steps of half a mark what a client has taken.)
    """

    kinds = ("ROUTER", "DEALER")

    def _answer(self, messages: list[Message]) -> None:
        self._clients.send_each(messages)

    def _end_intake(self, door: SharedDoor) -> None:
        """Read no more, but let answers out for a while before the clients' connections end."""
        door.pause()
        wait_while(lambda: self._clients.received > self._workers.received, _ANSWERING)
