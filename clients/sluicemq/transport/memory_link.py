"""A link to a broker in the memory of this process, which handles each message while it is sent."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from typing import Final, Protocol

import zmq

from sluicemq.transport.access import Access
from sluicemq.transport.link import Link
from sluicemq.transport.native import cut_off


class Peer(Protocol):
    """The broker's end of one link. All but ``due`` may be called while it sends on another one."""

    @property
    def due(self) -> float:
        """Return the seconds until it has something to say by itself; ``inf``: never."""

    def receive(self, frames: list[bytes]) -> None:
        """Handle a message."""

    def wake(self) -> None:
        """Say what is due."""

    def leave(self) -> None:
        """Note that the client has gone."""


class BrokerInMemory(Protocol):
    """A broker that links connect to."""

    def accept(self, link: MemoryLink) -> Peer:
        """Return the broker's end of a new link."""


#: The brokers of this process by their endpoints.
brokers: Final[dict[str, BrokerInMemory]] = {}


class MemoryLink(Link):
    """Has the methods of a :class:`Link`, and no socket: only a pipe, on which the broker rings."""

    def __init__(self, wakeup_fd: int) -> None:
        self.refused = self.reached = self.handshaken = False
        self.failure = None
        self._peer: Peer | None = None
        self._cut = self._rung = self._closed = False
        self._inbox: deque[list[bytes]] = deque()
        self._bell, self._ringer = os.pipe()
        os.set_blocking(self._bell, False)
        self._poller = zmq.Poller()
        for source in (wakeup_fd, self._bell):
            self._poller.register(source, zmq.POLLIN)

    def connect(self, access: Access, address: str, *, ipv6: bool) -> None:  # noqa: ARG002 - as a Link
        """Connect at once; without a broker of this endpoint nothing listens there."""
        broker = brokers.get(address)
        if broker is None:
            self.refused = True
            return
        self.reached = self.handshaken = True
        self._peer = broker.accept(self)

    def wait(self, seconds: float) -> None:
        """Return when something has arrived, the wake-up has been rung, or the time is over."""
        if self._peer is not None:
            seconds = min(seconds, self._peer.due)
        if not (self._inbox or self._cut or self.refused):
            self._poller.poll(max(0, int(seconds * 1000 + 0.999)))
        if self._rung:
            with suppress(BlockingIOError):  # the ring is on its way
                os.read(self._bell, 64)
            self._rung = False  # before the inbox is looked at
        if self._peer is not None:
            self._peer.wake()

    def send(self, frames: list[bytes]) -> None:
        """Have the broker handle one message."""
        if self._peer is not None and not self._cut:
            self._peer.receive(frames)

    def receive(self) -> list[list[bytes]]:
        """Return all messages that have arrived."""
        return [self._inbox.popleft() for _ in range(len(self._inbox))]

    @property
    def unread(self) -> bool:
        """Return whether messages wait to be received."""
        return bool(self._inbox)

    def broken(self) -> bool:
        """Return whether the broker has cut the link."""
        return self._cut

    @property
    def tcp_fd(self) -> int | None:
        """Return None: there is no socket."""
        return None

    def close(self, linger: int = 0) -> None:  # noqa: ARG002 - as a Link
        """Leave the broker."""
        self._closed = True
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.leave()
        for fd in (self._bell, self._ringer):
            cut_off(fd)
            os.close(fd)

    # ------------------------------------------------------------------ from the broker

    def deliver(self, frames: list[bytes]) -> None:
        """Leave a message for the client; the broker holds its lock."""
        self._inbox.append(frames)
        self._ring()

    def cut(self) -> None:
        """End the connection; the broker holds its lock."""
        self._cut = True
        self._ring()

    def _ring(self) -> None:
        if not (self._rung or self._closed):
            self._rung = True
            os.write(self._ringer, b"\0")
