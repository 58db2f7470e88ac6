"""TCP proxies between all places of a chaos run: what lies between any two of them can fail by itself.

::

    with Network(Random(7)) as network:
        port = network.wire("node 1", 27017)  # where all others reach it
        network.knows("broker 1", lambda: broker.pid)
        network.between("broker 1", "node 1").block("broker 1")  # what it sends no longer arrives

A place is recognized by the process that dials (:mod:`chaos.dialers`). So nodes of a replica set and brokers
reach a node at one address, by links of their own.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random
from typing import Any, Final, Self

from chaos.dialers import Dialers, sockets_of

_HOST: Final = "127.0.0.1"
_HELD: Final = 0.5  # seconds for which bytes are kept back before their connection is cut
_INSTANT: Final = 1e-6  # seconds between two writes, for timers of one time have no order


class Link:
    """Everything between two places: all connections, of either direction, and what happens to them."""

    def __init__(self, network: Network, places: frozenset[str]) -> None:
        self._network = network
        self.places = places
        self.blocked: frozenset[str] = frozenset()
        self.refused = False
        self.delay = 0.0
        self.loss = 0.0

    @property
    def troubled(self) -> bool:
        """Return whether anything at all happens to its connections."""
        return bool(self.blocked or self.refused or self.delay or self.loss)

    def block(self, *senders: str) -> None:
        """Hold back what these places send, as if packets were dropped; by default what both send.

        Connections stay open, and all that was held back arrives when the link is restored, as TCP does it.
        """
        self._change(blocked=frozenset(senders) or self.places)

    def refuse(self) -> None:
        """Cut all connections, and refuse new ones."""
        self._change(refused=True)

    def slow(self, seconds: float) -> None:
        """Pass everything on later, each way."""
        self._change(delay=seconds)

    def lose(self, chance: float) -> None:
        """Cut the connection, by this chance, in place of each answer."""
        self._change(loss=chance)

    def halve(self) -> None:
        """Cut all connections for the dialer alone: the other end does not hear of that."""
        self._network.call(lambda: self._network.each(self, Splice.halve))

    def hold(self) -> None:
        """Keep back what dialers send over connections that are open now, and cut these a moment later.

        The place that was dialed does not hear of that. A dialer dials again, and what it has sent before
        arrives when the link is restored: behind what it has sent over its new connection.
        """
        self._network.call(lambda: self._network.each(self, Splice.hold))

    def restore(self) -> None:
        """Pass everything on again; connections that were cut in half end."""
        self._network.call(lambda: self._network.each(self, Splice.release))
        self._change(blocked=frozenset(), refused=False, delay=0.0, loss=0.0)

    def _change(self, **values: Any) -> None:
        def change() -> None:
            vars(self).update(values)
            self._network.each(self, lambda splice: splice.heed(self))

        self._network.call(change)


class Network:
    """All wires of a run, moved by one thread."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="wires", daemon=True)
        self._dialers = Dialers()
        self._links: dict[frozenset[str], Link] = {}
        self._splices: dict[str, set[Splice]] = {}
        self._pids: dict[str, Callable[[], int | None]] = {}
        self.open = Link(self, frozenset())

    def knows(self, place: str, pid: Callable[[], int | None]) -> None:
        """Recognize what a process dials as coming from this place; ``pid`` tells which one it is now."""
        self._pids[place] = pid

    def wire(self, place: str, upstream: int) -> int:
        """Lead to a place's port; returns the port at which others reach it."""

        async def listen() -> int:
            server = await self.loop.create_server(
                lambda: _Entrance(self, place, upstream), _HOST, backlog=512
            )
            return int(server.sockets[0].getsockname()[1])

        self._splices.setdefault(place, set())
        return asyncio.run_coroutine_threadsafe(listen(), self.loop).result(30)

    def between(self, one: str, other: str) -> Link:
        """Return the link of two places."""
        places = frozenset((one, other))
        return self._links.setdefault(places, Link(self, places))

    def restore(self) -> None:
        """Restore all links."""
        for link in list(self._links.values()):
            link.restore()

    def call(self, function: Callable[[], object]) -> None:
        """Run a function in the thread of the wires, and wait until it has run."""

        async def run() -> None:
            function()

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(30)

    # ------------------------------------------------------------ in the thread of the wires

    def each(self, link: Link, function: Callable[[Splice], None]) -> None:
        """Call a function with all connections of a link."""
        for place in link.places & self._splices.keys():
            (dialer,) = link.places - {place}
            self._recognize(self._splices[place], [dialer])
            for splice in [splice for splice in self._splices[place] if splice.dialer == dialer]:
                function(splice)

    def enter(self, splice: Splice) -> None:
        """Add a connection, and let what is wrong with its link happen to it.

        Who has dialed is found out only when a link of the place that was dialed is troubled: that takes more
        time than everything else.
        """
        self._splices[splice.place].add(splice)
        troubled = {
            dialer: link
            for link in self._links.values()
            if splice.place in link.places and link.troubled
            for dialer in link.places - {splice.place}
        }
        self._recognize([splice], troubled)
        splice.heed(troubled.get(splice.dialer, self.open))

    def leave(self, splice: Splice) -> None:
        """Forget a connection."""
        self._splices[splice.place].discard(splice)

    def is_down(self, place: str) -> bool:
        """Return whether a place has no process now, which could be dialed."""
        return place in self._pids and self._pids[place]() is None

    def _recognize(self, splices: Iterable[Splice], places: Iterable[str]) -> None:
        unknown = [splice for splice in splices if not splice.dialer]
        for place in places if unknown else ():
            pid = self._pids[place]() if place in self._pids else None
            sockets = sockets_of(pid) if pid else frozenset()
            for splice in unknown:
                if not splice.dialer and self._dialers.inode(*splice.ends) in sockets:
                    splice.dialer = place

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self._end)
        asyncio.run_coroutine_threadsafe(_others(), self.loop).result(30)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)
        self.loop.close()
        self._dialers.close()

    def _end(self) -> None:
        for splices in self._splices.values():
            for splice in list(splices):
                splice.end()


class Splice:
    """One connection: the end that was dialed here, and the end that is dialed once bytes may pass."""

    def __init__(self, network: Network, place: str, upstream: int, entrance: _End) -> None:
        self.place = place
        self.dialer = ""
        self.ends = entrance.addresses()
        self._network = network
        self._upstream = upstream
        self._link = network.open
        self._entrance, self._exit = entrance, _End()
        self._dialing: asyncio.Task[None] | None = None
        self._over = self._halved = False
        self._held: list[bytes] | None = None
        for end in (self._entrance, self._exit):
            end.splice = self
        network.enter(self)

    def heed(self, link: Link) -> None:
        """Do what the link says now."""
        self._link = link
        if link.refused or self._halved:
            self.end()
            return
        for end in (self._entrance, self._exit):
            end.flow(flows=self._flows(end))
        if self._dialing is None and not link.blocked:
            self._dialing = asyncio.ensure_future(self._dial())

    def received(self, end: _End, data: bytes) -> None:
        """Pass on what one end has sent."""
        if end is self._exit and self._link.loss and self._network.random.random() < self._link.loss:
            self.end()
        elif end is self._entrance and self._held is not None:
            self._held.append(data)
        else:
            self._other(end).write(data, self._link.delay)

    def full(self, end: _End, *, full: bool) -> None:
        """Read no more for an end that takes no more."""
        other = self._other(end)
        other.flow(flows=not full and self._flows(other))

    def ended(self) -> None:
        """End both ends, unless the end that is left must not know."""
        if not self._halved and (self._held is None or not self._exit.connected):
            self.end()

    def halve(self) -> None:
        """End the dialer's end alone."""
        self._halved = self._exit.connected
        self._exit.flow(flows=False)
        self._entrance.abort()

    def hold(self) -> None:
        """Keep back what the dialer sends, and cut its end a moment later."""
        if self._exit.connected and self._held is None:
            self._held = []
            self._network.loop.call_later(_HELD, self._entrance.abort)

    def release(self) -> None:
        """Pass on what was kept back, behind which the connection ends."""
        if self._held is not None:
            self._exit.write(b"".join(self._held), 0.0)
            self._exit.close()

    def end(self) -> None:
        """Cut both ends."""
        self._over = True
        self._network.leave(self)
        for end in (self._entrance, self._exit):
            end.abort()

    def _flows(self, end: _End) -> bool:
        return (self.dialer if end is self._entrance else self.place) not in self._link.blocked

    def _other(self, end: _End) -> _End:
        return self._exit if end is self._entrance else self._entrance

    async def _dial(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self._exit, _HOST, self._upstream)
        except OSError:
            self.end()
        if self._over:
            self._exit.abort()


class _End(asyncio.Protocol):
    """One end of a splice."""

    def __init__(self) -> None:
        self.splice: Splice | None = None
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self._flows = True
        self._due = 0.0

    @property
    def connected(self) -> bool:
        """Return whether it has had a connection."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what has come meanwhile."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.flow(flows=self._flows)
        for data in self._early:
            transport.write(data)

    def addresses(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Return the address of its peer, and its own."""
        assert self._transport
        theirs, ours = (self._transport.get_extra_info(name) for name in ("peername", "sockname"))
        return theirs, ours

    def data_received(self, data: bytes) -> None:
        """Hand it to the splice."""
        assert self.splice
        self.splice.received(self, data)

    def connection_lost(self, _error: Exception | None) -> None:
        """Notify the splice."""
        if self.splice:
            self.splice.ended()

    def pause_writing(self) -> None:
        """Let the other end be read no further."""
        if self.splice:
            self.splice.full(self, full=True)

    def resume_writing(self) -> None:
        """Let the other end be read again."""
        if self.splice:
            self.splice.full(self, full=False)

    def write(self, data: bytes, delay: float) -> None:
        """Write so much later; what came earlier goes earlier, also if the delay has ended meanwhile."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._due = max(now + delay, self._due + _INSTANT)
        if self._due > now + _INSTANT:
            loop.call_at(self._due, self._write, data)
        else:
            self._write(data)

    def flow(self, *, flows: bool) -> None:
        """Read what comes, or leave it where it is."""
        self._flows = flows
        if self._transport and not self._transport.is_closing():
            (self._transport.resume_reading if flows else self._transport.pause_reading)()

    def close(self) -> None:
        """End the connection behind what is written."""
        if self._transport:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection with a reset."""
        if self._transport:
            with suppress(OSError):
                linger = struct.pack("ii", 1, 0)
                connection = self._transport.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()

    def _write(self, data: bytes) -> None:
        if self._transport is None:
            self._early.append(data)
        elif not self._transport.is_closing():
            self._transport.write(data)


class _Entrance(_End):
    """The end that was dialed; it makes the splice."""

    def __init__(self, network: Network, place: str, upstream: int) -> None:
        super().__init__()
        self._where = (network, place, upstream)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Make the splice, unless nobody is there."""
        super().connection_made(transport)
        network, place, _ = self._where
        if network.is_down(place):
            self.abort()
        else:
            Splice(*self._where, self)


async def _others() -> None:
    """Wait for what goes on still."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)
