"""QUEUE: REQ and DEALER clients at the front, REP workers at the back."""

from __future__ import annotations

import itertools
import secrets
from functools import partial

from sluicemq_devices.hub import Mishap
from sluicemq_devices.relays.backlog import HoldingDevice
from sluicemq_devices.relays.device import HWM, HWM_BYTES
from sluicemq_devices.sockets import Endpoint, Guards, RawDoor, RawLane, Switchboard, open_to_all
from sluicemq_devices.zmtp import LONG, MORE

_LONGEST_IDENTITY = 255  # bytes
_NUMBERS = 1 << 32


class QueueDevice(HoldingDevice):
    """ROUTER to DEALER and back; requests that no worker takes are held, then the clients wait.

    A client that does not read its answers makes no other client wait: beyond the marks its answers are
    dropped and counted.

        frame before a request, and before its answer:  MORE  length  identity of the client

    The identity is the routing id that the client has announced, or a generated one: 5 bytes, a zero first,
    as ZeroMQ's ROUTER makes them. An answer goes to the connection that has the identity when the answer
    comes, so a client that connects again under its own identity still gets it. A second connection with an
    identity that is in use gets a generated one.
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
        guard: Guards = open_to_all,
    ) -> None:
        """``answering``: seconds that workers have, at a stop, to answer the requests they got.

        ``guard(end)``: guard of the door at this end.
        """
        super().__init__(board, frontend, backend, hwm=hwm, hwm_bytes=hwm_bytes, guard=guard)
        self.clients_by_envelope: dict[bytes, RawLane] = {}
        # Not from 1: a worker may answer a client of the device that was here before.
        self._numbers = itertools.count(secrets.randbelow(_NUMBERS))
        self._answering = answering
        self.ending = False

    def _client_came(self, lane: RawLane) -> None:
        envelope = self._envelope_for(lane.identity)
        self.clients_by_envelope[envelope] = lane
        lane.on(receive=partial(self._request, envelope), closed=partial(self._client_left, envelope, lane))

    def _client_left(self, envelope: bytes, lane: RawLane) -> None:
        if self.clients_by_envelope[envelope] is lane:  # unless another has taken its place
            del self.clients_by_envelope[envelope]

    def _envelope_for(self, identity: bytes) -> bytes:
        envelope = _frame(identity)
        while not identity or self._is_here(envelope):
            identity = b"\0" + (next(self._numbers) % _NUMBERS).to_bytes(4)
            envelope = _frame(identity)
        return envelope

    def _is_here(self, envelope: bytes) -> bool:
        """True if a client with this identity is connected; a full queue has not read its end yet."""
        client = self.clients_by_envelope.get(envelope)
        return client is not None and not client.deserted

    def _request(self, envelope: bytes, requests: list[bytes]) -> None:
        self.take([envelope + request for request in requests])

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
            client = self.clients_by_envelope.get(envelope)
            if client and not (client.held.is_full or client.is_full):
                client.post(group)
            else:
                self._drop(len(group))

    def on_worker_gone(self, lane: RawLane) -> None:
        """Count what it has not answered, and have others do what it has not got."""
        unanswered = lane.posted - len(lane.unsent) - lane.received
        if unanswered > 0:
            self._board.notice(
                Mishap.QUESTIONS_LOST,
                f"{lane.peer} has left with {unanswered} requests, which will get no answer",
            )
        super().on_worker_gone(lane)

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._board.notice(
                Mishap.REPLIES_DROPPED, f"{self.clients.address}: the client has left or does not read"
            )

    def start(self) -> None:
        """Open both doors, or none: OSError names the address that can't be bound."""
        self.ending = False
        super().start()
        self._resume()

    def _end_intake(self, door: RawDoor) -> None:
        """Read no more; the connections stay for the answers."""
        self.ending = True
        door.pause()

    def _end_work(self) -> None:
        """Let answers go out for a while before the clients' connections end."""
        self._wait_while(lambda: self.clients.received > self.workers.received, self._answering)

    def _resume(self) -> None:
        if not (self.ending or self.mark.is_full):
            super()._resume()


def _frame(identity: bytes) -> bytes:
    return bytes((MORE, len(identity))) + identity


def _unusual(message: bytes) -> tuple[bytes, bytes]:
    """Return envelope and rest of an answer whose first frame is not a short one that others follow.

    The envelope is empty if no client can have it.
    """
    end = 9 + int.from_bytes(message[1:9])
    if message[0] != MORE | LONG or end - 9 > _LONGEST_IDENTITY:
        return b"", message
    return _frame(bytes(message[9:end])), message[end:]
