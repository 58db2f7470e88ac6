"""One ZeroMQ socket, driven from the gevent hub.

A port reads and writes a plain ``zmq.Socket`` with ``NOBLOCK`` and watches its FD. That FD is
edge-triggered, and *any* call on the socket, a send too, may eat the edge that announced a
message. So whoever touches the socket goes through its port, and the port reads EVENTS again
afterwards. ``zmq.green`` is not used: it costs 18 us a message against 1 to 3, and never yields
while data is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import zmq
import zmq.backend
from gevent import get_hub

from devices.callbacks import nothing, shielded
from devices.flow import Watermark, boundless

Message = list[bytes]

_MOMENT = 1e-9  # seconds; a timer of 0 (or sleep(0)) would run before other timers and starve them
_RETRY = (0.002, 0.1)  # seconds: first and longest
_READ = 1  # libev's EV_READ
_NOBLOCK = int(zmq.NOBLOCK)
_MORE = _NOBLOCK | int(zmq.SNDMORE)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_POLLOUT = int(zmq.POLLOUT)
_REFUSALS = (zmq.EAGAIN, zmq.EHOSTUNREACH)

# The methods of the C class: those of zmq.Socket wrap them at twice the cost.
_receive = zmq.backend.Socket.recv
_send = zmq.backend.Socket.send
_get = zmq.backend.Socket.get


class Port:
    """Turns a socket into calls of ``receive`` with up to ``round_size`` messages at once.

    After :meth:`start`, ``receive`` and ``unblocked`` are called on the hub and must not block.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        receive: Callable[[list[Message]], None],
        *,
        round_size: int = 100,
        unblocked: Callable[[], None] = nothing,
        held: Watermark | None = None,
    ) -> None:
        """``unblocked``: writable again after it was not; ``held``: told of what the socket does not take."""
        self.socket = socket
        self.receive = receive
        self.unblocked = unblocked
        self.caught_up: Callable[[], None] = nothing
        """Called when there is nothing left to read."""
        self.held = held or boundless()
        self.received = 0
        self.behind = False
        self.closed = False
        self._round_size = round_size
        self._addressed = socket.type == zmq.ROUTER
        self._held: deque[Message] = deque()
        self._blocked = False
        loop = get_hub().loop
        self._watcher = loop.io(socket.FD, _READ)
        self._timer = loop.timer(_MOMENT)
        self._retry_after = _RETRY[0]
        self._retry = loop.timer(_RETRY[0])

    @property
    def writable(self) -> bool:
        """Nothing is held and the socket takes a message now; ``unblocked`` follows a False."""
        if self._held or self.closed:
            return False
        events = int(_get(self.socket, _EVENTS))
        if events & _POLLIN:  # reading EVENTS has eaten the edge that would have told
            self._look_again()
        self._blocked = not events & _POLLOUT
        return not self._blocked

    def start(self) -> None:
        """Begin to read."""
        self._watcher.start(self._turn)
        self._look_again()

    def send(self, frames: Message) -> bool:
        """Send now; False: the socket did not take it (full, or no such peer), nothing was sent."""
        return self.send_each([frames]) == 0

    def send_each(self, messages: list[Message]) -> int:
        """Send every one that the socket takes now, as :meth:`send`; how many it did not take."""
        if self.closed:
            return len(messages)
        refused = 0
        for message in messages:
            refused += not self._try(message)
        self._blocked |= refused > 0
        self._look_again()
        return refused

    def post(self, messages: list[Message]) -> None:
        """Send now or, in order, as soon as the socket takes them."""
        if self.closed:
            return
        sent = 0 if self._held else self._send_many(messages)
        if sent < len(messages):
            self._hold(messages[sent:])
        self._look_again()

    def drain(self) -> None:
        """Hand over everything that can be read at once."""
        self._turn()
        while self.behind:
            self._turn()

    def close(self, linger: int) -> None:
        """Close; what was sent and not held is still written, for up to ``linger`` milliseconds."""
        if self.closed:
            return
        self.closed = True
        self.behind = False
        for watcher in (self._watcher, self._timer, self._retry):
            watcher.stop()
            watcher.close()
        self.socket.close(linger)

    def _look_again(self) -> None:
        """Have a turn soon, once, however many sends there were: each may have eaten the edge."""
        if not self._timer.active:
            self._timer.start(self._turn)

    def _turn(self) -> None:
        if self.closed:
            return
        messages = self._read()
        if messages:
            self.received += len(messages)
            shielded(self.receive, messages)
        if not self.closed:  # by receive
            flushed = self._flush()
            self._rest_or_go_on(flushed=flushed)

    def _read(self) -> list[Message]:
        socket = self.socket
        messages: list[Message] = []
        try:
            for _ in range(self._round_size):
                # An address is never alone, and what need not say whether more follows costs a third.
                message = [_receive(socket, _NOBLOCK)] if self._addressed else []
                frame = _receive(socket, _NOBLOCK, copy=False)
                message.append(frame.bytes)
                while frame.more:
                    frame = _receive(socket, _NOBLOCK, copy=False)
                    message.append(frame.bytes)
                messages.append(message)
        except zmq.ZMQError as error:
            # ENOTSUP: PUSH never reads. EFSM can't be: no REQ or REP has a port.
            if error.errno not in (zmq.EAGAIN, zmq.ENOTSUP):
                raise
        return messages

    def _send_many(self, messages: Iterable[Message]) -> int:
        """Send until the socket takes no more; how many it took."""
        sent, socket = 0, self.socket
        try:
            for message in messages:
                if len(message) == 1:  # most messages of a flood, at half the cost
                    _send(socket, message[0], _NOBLOCK)
                elif not self._try(message):
                    break
                sent += 1
        except zmq.ZMQError as error:
            if error.errno not in _REFUSALS:
                raise
        return sent

    def _try(self, frames: Message) -> bool:
        socket = self.socket
        position = 0
        try:
            for frame in frames[:-1]:
                _send(socket, frame, _MORE)
                position += 1
            _send(socket, frames[-1], _NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in _REFUSALS:
                raise
            if position:
                self._abandon(frames[position + 1 :])
            return False
        return True

    def _abandon(self, rest: Message) -> None:
        """Get rid of the rest of a message whose pipe ended half-way: libzmq swallows it up to its end."""
        if rest:
            self._try(rest)

    def _hold(self, messages: list[Message]) -> None:
        self._held.extend(messages)
        self._blocked = True
        self.held.take(len(messages), weight(messages))

    def _flush(self) -> bool:
        """Send what is held, as far as it goes; False: nothing went."""
        if not self._held:
            return True
        sent = self._send_many(self._held)
        gone = [self._held.popleft() for _ in range(sent)]
        self.held.give(sent, weight(gone))
        return sent > 0

    def _rest_or_go_on(self, *, flushed: bool) -> None:
        events = int(_get(self.socket, _EVENTS))
        self.behind = bool(events & _POLLIN)
        if self.behind or (self._held and flushed and events & _POLLOUT):
            self._look_again()
        elif self._held and events & _POLLOUT:
            self._try_later()
        if flushed:
            self._retry_after = _RETRY[0]
        if not self.behind:
            self.caught_up()
        if self._blocked and not self._held and events & _POLLOUT:
            self._blocked = False
            shielded(self.unblocked)

    def _try_later(self) -> None:
        """XPUB and ROUTER say POLLOUT also when they take nothing: who doesn't read must cost little."""
        if not self._retry.active:
            self._retry.close()
            self._retry = get_hub().loop.timer(self._retry_after)
            self._retry.start(self._turn)
            self._retry_after = min(2 * self._retry_after, _RETRY[1])


def weight(messages: Iterable[Message]) -> int:
    """Bytes of all frames of all messages."""
    return sum(len(frame) for message in messages for frame in message)
