"""QUEUE: REQ and DEALER clients at the front, REP workers at the back."""

from __future__ import annotations

import itertools
from functools import partial

from devices.device import HWM, HWM_BYTES, wait_while
from devices.doors import RawDoor, RawLane
from devices.endpoints import Endpoint
from devices.holding import HoldingDevice
from devices.switchboard import Switchboard
from devices.zmtp_frames import MORE

_ANSWERING = 1.0  # seconds in which, at a stop, workers may still answer what they were asked
_ENVELOPE = 7  # bytes of the frame that says who asks, with its header
_NUMBERS = 1 << 32


class Queue(HoldingDevice):
    """ROUTER to DEALER and back; requests that no worker takes are held, then the clients wait.

    A client that does not read its answers keeps nobody else waiting: past the marks they are
    dropped and noticed.

        frame before a request, and before its answer:  MORE  5  0  number of the client (4 bytes)
    """

    kinds = ("ROUTER", "DEALER")
    envelope = 5

    def __init__(
        self,
        board: Switchboard,
        frontend: Endpoint,
        backend: Endpoint,
        *,
        hwm: int = HWM,
        hwm_bytes: int = HWM_BYTES,
    ) -> None:
        super().__init__(board, frontend, backend, hwm=hwm, hwm_bytes=hwm_bytes)
        self._askers: dict[bytes, RawLane] = {}
        self._numbers = itertools.count(1)
        self._ending = False

    def _client_came(self, lane: RawLane) -> None:
        envelope = bytes((MORE, 5, 0)) + (next(self._numbers) % _NUMBERS).to_bytes(4)
        self._askers[envelope] = lane
        lane.receive = partial(self._ask, envelope)
        lane.closed = partial(self._client_left, envelope)

    def _client_left(self, envelope: bytes) -> None:
        del self._askers[envelope]

    def _ask(self, envelope: bytes, questions: list[bytes]) -> None:
        self._take([envelope + question for question in questions])

    def _answer(self, messages: list[bytes]) -> None:
        answers: dict[bytes, list[bytes]] = {}
        for message in messages:
            answers.setdefault(bytes(message[:_ENVELOPE]), []).append(message[_ENVELOPE:])
        for envelope, group in answers.items():
            asker = self._askers.get(envelope)
            if asker and not asker.held.is_full:
                asker.post(group)
            else:
                self._drop(len(group))

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._board.notice(
                "replies_dropped", f"{self._clients.address}: the asker is gone or does not read"
            )

    def start(self) -> None:
        """Open both doors, or none: OSError names the address that can't be bound."""
        self._ending = False
        super().start()
        self._resume()

    def _end_intake(self, door: RawDoor) -> None:
        """Read no more; the connections stay for the answers."""
        self._ending = True
        door.pause()

    def _end_work(self) -> None:
        """Let answers out for a while before the clients' connections end."""
        wait_while(lambda: self._clients.received > self._workers.received, _ANSWERING)

    def _resume(self) -> None:
        if not (self._ending or self._mark.is_full):
            super()._resume()
