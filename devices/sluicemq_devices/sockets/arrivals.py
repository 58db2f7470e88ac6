"""Messages that have arrived: the peer's ZeroMQ has them in its memory, and they are no longer on the way."""

from __future__ import annotations

import _socket
from collections import deque
from collections.abc import Callable
from typing import Final

from gevent import get_hub

from sluicemq_devices.hub import shielded
from sluicemq_devices.sockets.kernel_state import has_left, outstanding
from sluicemq_devices.sockets.outbox import Outbox
from sluicemq_devices.zmtp import ping

#: Seconds between looks at what the kernel still has: each time twice as long, while nothing changes.
_FIRST_CHECK: Final = 0.001
_LONGEST_CHECK: Final = 0.256

Then = Callable[[], object]


class Arrivals:
    """Messages of one connection that were sent and have not arrived yet, in order.

    A peer that has announced ZMTP 3.1 is sent a PING. Its PONG comes after its ZeroMQ has taken the messages
    before the PING into its memory, and not while there is no room for them (RCVHWM). One PING is under way
    at a time. It has a number, which the PONG brings back.

    Other peers could take a PING for a message. For these the kernel is asked, which knows less: the peer's
    machine has acknowledged everything or, on a Unix socket, the peer has read everything.
    """

    __slots__ = ("_asked", "_asks", "_awaited", "_number", "_outbox", "_say", "_socket", "_timer", "_wait")

    def __init__(
        self, socket: _socket.socket, outbox: Outbox, say: Callable[[bytes], None], *, asks: bool
    ) -> None:
        """``say``: sends a command behind all that was sent; ``asks``: the peer has announced ZMTP 3.1."""
        self._socket = socket
        self._outbox = outbox
        self._say = say
        self._asks = asks
        self._awaited: deque[Then] = deque()
        self._asked = 0  # of these, the ones sent before the PING that is under way
        self._number = 0
        self._wait = _FIRST_CHECK
        self._timer = get_hub().loop.timer(_FIRST_CHECK)

    @property
    def awaits_pong(self) -> bool:
        """True if a PONG is awaited, for which the peer may have no room yet."""
        return self._asked > 0

    def expect(self, then: Then) -> bytes:
        """Call ``then`` when the messages sent now have arrived; return the bytes to send behind them."""
        self._awaited.append(then)
        if self._asks:
            return b"" if self._asked else self._ask()
        if not self._timer.active:
            self._check_later(_FIRST_CHECK)
        return b""

    def answered(self, number: bytes) -> None:
        """Handle a PONG. A PONG with another number answers a heartbeat, or nothing."""
        if self._asked and number == self._number.to_bytes(8):
            self._arrived(self._asked)
            if self._awaited and not self._asked:
                self._say(self._ask())

    def stop(self) -> None:
        """The connection has ended: nothing more arrives."""
        self._timer.stop()
        self._timer.close()
        self._awaited.clear()
        self._asked = 0

    def _ask(self) -> bytes:
        self._number += 1
        self._asked = len(self._awaited)
        return ping(self._number.to_bytes(8))

    def _check_later(self, seconds: float) -> None:
        self._wait = seconds
        self._timer.stop()
        self._timer.close()
        self._timer = get_hub().loop.timer(seconds)
        self._timer.start(self._check)

    def _check(self) -> None:
        self._timer.stop()
        if self._outbox or outstanding(self._socket):
            self._check_later(min(2 * self._wait, _LONGEST_CHECK))
        elif not has_left(self._socket):  # else its kernel may have thrown it away
            self._arrived(len(self._awaited))

    def _arrived(self, count: int) -> None:
        arrived = [self._awaited.popleft() for _ in range(count)]
        self._asked = 0
        for then in arrived:
            shielded(then)
