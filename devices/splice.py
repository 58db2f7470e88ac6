"""One client's connection, joined byte for byte to an inner ZeroMQ socket."""

from __future__ import annotations

import contextlib
import errno

import gevent
from gevent import socket as sockets

from devices.valve import Valve
from devices.zmtp import MessageMeter

_CHUNK = 65536
_MOMENT = 1e-9  # a sleep of 0 would starve timers: 8 ms late against 0.03
_GLANCE = 1.0  # seconds between looks whether a paused connection has been cut
_GRACE = 1.0  # seconds for what libzmq has still to say after the client's end
_GREETING = 64  # bytes of a ZMTP 3 greeting


class Splice:
    """Two greenlets that pass bytes: up (client to inner socket) and down.

    The inner side is always told of the client's end by half-closing, and the splice waits until
    libzmq closes its end in turn: by then everything that the client sent lies in the inner socket.
    """

    def __init__(self, outside: sockets.socket, peer: str) -> None:
        self.peer = peer
        self.cut = False
        """The inner side ended it, unexpectedly."""
        self._outside = outside
        self._inside = sockets.socket(sockets.AF_UNIX)
        self._expected = False
        self._ending = False
        self._client_ended = False
        self._head = b""
        self._endless = False

    def run(self, path: str, valve: Valve, most_bytes: int) -> None:
        """Pass bytes until either side ends, or the client sends a message of more than ``most_bytes``."""
        _connect(self._inside, path)
        self._meter = MessageMeter(most_bytes)
        down = gevent.spawn(self._pass_down)
        try:
            self._pass_up(valve)
            down.join(_GRACE)
        finally:
            down.kill()

    def close(self) -> None:
        """Close both sides."""
        self._outside.close()
        self._inside.close()

    def end(self) -> None:
        """Read no more; what was read is passed on, then both sides are closed."""
        self._ending = self._expected = True
        _shut(self._outside, sockets.SHUT_RD)

    def expect_end(self) -> None:
        """Be told that the inner socket is about to flush and close: no accident."""
        self._expected = True

    @property
    def spoke_zmtp(self) -> bool:
        """It sent nothing at all, or the first bytes of ZMTP 3."""
        return self._head[:1] in (b"", b"\xff")

    @property
    def reason(self) -> str:
        """Why the inner side has probably ended it; libzmq does not say."""
        if self._endless:
            return "a frame over the limit, or a message of too many frames or bytes"
        if not self._head:
            return "it sent nothing in the time for a handshake"
        if not self.spoke_zmtp:
            return f"it does not speak ZMTP 3, but sent {self._head[:24]!r}"
        if len(self._head) < _GREETING:
            return "it never finished its ZMTP greeting"
        return "a frame over the limit, broken ZMTP or no handshake in time"

    def _pass_up(self, valve: Valve) -> None:
        with contextlib.suppress(OSError):
            self._pump(valve)
        _shut(self._inside, sockets.SHUT_WR)

    def _pump(self, valve: Valve) -> None:
        burst = 0
        while self._may_read(valve) and (data := self._read()):
            if len(self._head) < _GREETING:
                self._head += data[: _GREETING - len(self._head)]
            if self._meter.over(data):
                self.cut = self._endless = True
                return
            self._inside.sendall(data)
            valve.passed(len(data))
            burst += len(data)
            if burst >= _CHUNK:  # neither call blocks under a flood, and the port must have its turn
                burst = 0
                gevent.sleep(_MOMENT)

    def _read(self) -> bytes:
        """What the client sends; nothing when it has ended, which is told apart from being cut by libzmq."""
        try:
            data: bytes = self._outside.recv(_CHUNK)
        except OSError:
            data = b""
        self._client_ended = not data
        return data

    def _may_read(self, valve: Valve) -> bool:
        while not self._ending and not valve.wait(_GLANCE):
            pass
        return not self._ending

    def _pass_down(self) -> None:
        taking = True
        with contextlib.suppress(OSError):
            while data := self._inside.recv(_CHUNK):
                taking = taking and self._give(data)
        self.cut = self.cut or not (self._client_ended or self._expected)
        self._ending = True
        _shut(self._outside, sockets.SHUT_RDWR)

    def _give(self, data: bytes) -> bool:
        """Send it to the client; False: it takes no more, and the rest may be thrown away."""
        try:
            rest = memoryview(data)[self._send_now(data) :]
            while rest:
                rest = rest[self._outside.send(rest) :]
        except OSError:
            _shut(self._outside, sockets.SHUT_RDWR)
            return False
        return True

    def _send_now(self, data: bytes) -> int:
        """Bytes taken without waiting: nearly always all of them, and a timer for each would cost more."""
        try:
            return int(self._outside.send(data, 0, 0.0))
        except BlockingIOError:
            return 0


def _connect(inside: sockets.socket, path: str) -> None:
    """Connect to an inner socket; Linux says EAGAIN while its listening queue is full."""
    while error := inside.connect_ex(path):
        if error not in (errno.EAGAIN, errno.EINTR):
            raise OSError(error, "an inner socket can't be reached", path)
        gevent.sleep(0.001)


def _shut(end: sockets.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(how)
