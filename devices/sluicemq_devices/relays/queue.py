"""QUEUE: REQ and DEALER clients at the front, REP workers at the back."""

from __future__ import annotations

import itertools
from functools import partial

from sluicemq_devices.hub import Mishap
from sluicemq_devices.relays.backlog import HoldingDevice
from sluicemq_devices.relays.device import HWM, HWM_BYTES
from sluicemq_devices.sockets import Endpoint, RawDoor, RawLane, Switchboard
from sluicemq_devices.zmtp import LONG, MORE

_LONGEST_IDENTITY = 255  # bytes
_NUMBERS = 1 << 32


class Queue(HoldingDevice):
    """ROUTER to DEALER and back; requests that no worker takes are held, then the clients wait.

    A client that does not read its answers keeps nobody else waiting: past the marks they are
    dropped and noticed.

        frame before a request, and before its answer:  MORE  length  identity of the client

    The identity is the routing id that the client has announced, or else made up: 5 bytes, a zero
    first, as ZeroMQ's ROUTER makes them. An answer goes to whoever has its identity when it comes,
    so a client that has connected anew under its own still gets it. Of two connections that announce
    the same, the second is given one made up, while the first is there.
    """

    kinds = ("ROUTER", "DEALER")
    envelope = _LONGEST_IDENTITY

    def __init__(
        self,
        board: Switchboard,
        frontend: Endpoint,
        backend: Endpoint,
        *,
        hwm: int = HWM,
        hwm_bytes: int = HWM_BYTES,
        answering: float = 1.0,
    ) -> None:
        """``answering``: seconds in which, at a stop, workers may still answer what they were asked."""
        super().__init__(board, frontend, backend, hwm=hwm, hwm_bytes=hwm_bytes)
        self._askers: dict[bytes, RawLane] = {}
        self._numbers = itertools.count(1)
        self._answering = answering
        self._ending = False

    def _client_came(self, lane: RawLane) -> None:
        envelope = self._envelope_for(lane.identity)
        self._askers[envelope] = lane
        lane.on(receive=partial(self._ask, envelope), closed=partial(self._client_left, envelope, lane))

    def _client_left(self, envelope: bytes, lane: RawLane) -> None:
        if self._askers[envelope] is lane:  # not of one that has taken its place
            del self._askers[envelope]

    def _envelope_for(self, identity: bytes) -> bytes:
        envelope = _frame(identity)
        while not identity or self._is_here(envelope):
            identity = b"\0" + (next(self._numbers) % _NUMBERS).to_bytes(4)
            envelope = _frame(identity)
        return envelope

    def _is_here(self, envelope: bytes) -> bool:
        """True if somebody has this identity, and has not gone unseen: a full queue reads no end."""
        asker = self._askers.get(envelope)
        return asker is not None and not asker.deserted

    def _ask(self, envelope: bytes, questions: list[bytes]) -> None:
        self._take([envelope + question for question in questions])

    def _answer(self, messages: list[bytes]) -> None:
        groups: dict[bytes, list[bytes]] = {}
        for message in messages:
            if message[0] == MORE:
                end = 2 + message[1]
                groups.setdefault(message[:end], []).append(message[end:])
            else:
                envelope, answer = _unusual(message)
                groups.setdefault(envelope, []).append(answer)
        for envelope, group in groups.items():
            asker = self._askers.get(envelope)
            if asker and not (asker.held.is_full or asker.is_full):
                asker.post(group)
            else:
                self._drop(len(group))

    def _worker_left(self, lane: RawLane) -> None:
        unanswered = lane.posted - len(lane.unsent) - lane.received
        if unanswered > 0:
            self._board.notice(
                Mishap.QUESTIONS_LOST,
                f"{lane.peer} has gone with {unanswered} of them; nobody will answer these",
            )
        super()._worker_left(lane)

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._board.notice(
                Mishap.REPLIES_DROPPED, f"{self._clients.address}: the asker is gone or does not read"
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
        self._wait_while(lambda: self._clients.received > self._workers.received, self._answering)

    def _resume(self) -> None:
        if not (self._ending or self._mark.is_full):
            super()._resume()


def _frame(identity: bytes) -> bytes:
    return bytes((MORE, len(identity))) + identity


def _unusual(message: bytes) -> tuple[bytes, bytes]:
    """Envelope and rest of an answer whose first frame is no short one with others behind it.

    The envelope is empty if it is none that a client can have.
    """
    end = 9 + int.from_bytes(message[1:9])
    if message[0] != MORE | LONG or end - 9 > _LONGEST_IDENTITY:
        return b"", message
    return _frame(bytes(message[9:end])), message[end:]
