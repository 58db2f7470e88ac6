"""A scripted SMQ/1 broker: a real ROUTER in a thread, for tests of the client library alone."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

import zmq

from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError
from sluicemq.transport.native import Wakeup

SECONDS = 60.0  # the longest that any test waits for anything


class Received(NamedTuple):
    peer: bytes
    verb: bytes
    number: int
    fields: list[Any]


#: What a verb is answered with: a value, a SluiceError, or SILENCE.
Script = Callable[[Received], Any]
SILENCE = object()


class Several(list[Any]):
    """The elements of an answer that has more than one."""


class ScriptedBroker:
    """Answers everything kindly unless a test sets ``on[verb] = script``."""

    def __init__(
        self,
        port: int = 0,
        heartbeat: float = 0.2,
        silence: float = 60.0,
        limit: int = 12 << 20,
        host: str = "127.0.0.1",
    ) -> None:
        self.hello: dict[str, Any] = {
            "broker": "stub",
            "heartbeat": heartbeat,
            "silence": silence,
            "max_job_bytes": limit,
        }
        self.on: dict[bytes, Script] = {wire.HELLO: lambda _message: self.hello}
        self.received: list[Received] = []
        self.port = port
        self.host = host
        self._change = threading.Condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._wakeup = Wakeup()
        self._over = False
        self._thread: threading.Thread | None = None

    @property
    def endpoint(self) -> str:
        return self.host if self.host.startswith("ipc://") else f"tcp://{self.host}:{self.port}"

    def start(self) -> ScriptedBroker:
        self._over = False
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.rcvhwm = self._socket.sndhwm = 0
        self._guards: list[zmq.Socket[bytes]] = []
        self._guard(self._socket)
        self._socket.ipv6 = self.host.startswith("[")
        if self.host.startswith("ipc://"):
            self._socket.bind(self.host)
        else:
            self._socket.bind(f"tcp://{self.host}:{self.port or '*'}")
            self.port = int(self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rsplit(":", 1)[1])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Vanish, as a killed broker does: connections end, nothing more is answered."""
        if self._thread is not None:
            self._over = True
            self._wakeup.ring()
            self._thread.join(SECONDS)
            self._thread = None

    def answer(self, message: Received, value: Any) -> None:
        """Answer now what was answered with SILENCE."""
        self._call(lambda: self._answer(message, value))

    def deliver(
        self,
        peer: bytes,
        queue: str,
        payloads: list[bytes],
        attempt: int = 1,
        within: float | None = None,
        *,
        alone: bool = False,
    ) -> None:
        """Give jobs to a worker; ids and receipts are made from the payloads. ``within``: their timeout."""
        about = [1e9, True] if alone else []
        told = [] if within is None else [0, 1e9, 0, within]
        rows = [[b"r-" + p, f"id-{p.decode()}", p, {"k": "v"}, attempt, *told] for p in payloads]
        self._call(lambda: self._send(peer, wire.encode(wire.DELIVER, 0, queue, rows, *about)))

    def deliver_told(self, peer: bytes, queue: str, priority: int, age: float, max_attempts: int) -> None:
        """Give a worker one job, and tell what is known of it."""
        row = [b"r-told", "id-told", b"told", None, 1, priority, 1e9 - age, max_attempts]
        self._call(lambda: self._send(peer, wire.encode(wire.DELIVER, 0, queue, [row], 1e9)))

    def send(self, peer: bytes, frames: list[bytes]) -> None:
        self._call(lambda: self._send(peer, frames))

    def of(self, verb: bytes) -> list[Received]:
        with self._change:
            return [message for message in self.received if message.verb == verb]

    def wait_for(self, verb: bytes, count: int = 1) -> list[Received]:
        """Wait until ``count`` messages of a verb have come; all of them."""
        self.wait_until(lambda: sum(message.verb == verb for message in self.received) >= count)
        return self.of(verb)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        with self._change:
            verbs = [message.verb for message in self.received]
            assert self._change.wait_for(holds, SECONDS), f"did not come; got {verbs[-20:]}"

    def pushed(self) -> list[tuple[str, bytes]]:
        """Id and payload of every job pushed so far, repeats included, in the order of arrival."""
        return [(row[0], row[1]) for message in self.of(wire.PUSH) for row in message.fields[1]]

    def settled(self) -> dict[bytes, list[Any]]:
        """Verdict, detail and delay by receipt."""
        return {row[0]: row[1:] for message in self.of(wire.SETTLE) for row in message.fields[0]}

    def _guard(self, door: zmq.Socket[bytes]) -> None:
        """Set who may connect; everybody here."""

    def _admit(self) -> None:
        """Decide about those who connect."""

    def _call(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self._wakeup.ring()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wakeup.fd, zmq.POLLIN)
        pinged = monotonic()
        for source in self._guards:
            poller.register(source, zmq.POLLIN)
        while not self._over:
            poller.poll(self.hello["heartbeat"] * 1000)
            self._wakeup.answer()
            self._admit()
            while self._calls:
                self._calls.popleft()()
            self._read()
            if monotonic() - pinged > self.hello["heartbeat"]:
                pinged = monotonic()
                for peer in {message.peer for message in self.received}:
                    self._send(peer, wire.encode(wire.PING, 0))
        for source in (self._socket, *self._guards):
            source.close()
        self._context.term()

    def _read(self) -> None:
        while self._socket.poll(0):
            peer, *frames = self._socket.recv_multipart()
            message = Received(peer, *wire.decode(frames))
            value = self.on.get(message.verb, _kindly)(message)
            with self._change:
                self.received.append(message)
                self._change.notify_all()
            if value is not SILENCE:
                self._answer(message, value)

    def _answer(self, message: Received, value: Any) -> None:
        if isinstance(value, SluiceError):
            frames = wire.encode(wire.ERROR, message.number, value.code, str(value))
        else:
            values = value if isinstance(value, Several) else (value,)
            frames = wire.encode(wire.OK, message.number, *values)
        self._send(message.peer, frames)

    def _send(self, peer: bytes, frames: list[bytes]) -> None:
        self._socket.send_multipart([peer, *frames])


def _kindly(message: Received) -> Any:
    if message.verb == wire.QUEUE:
        return {}
    if message.verb == wire.HOLD:
        return {"fence": 1, "watermark": 0}
    return [] if message.verb in (wire.PUSH, wire.SETTLE, wire.EXTEND) else None
