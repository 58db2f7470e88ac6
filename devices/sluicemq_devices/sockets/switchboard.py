"""The budgets, turns and counters that all doors of a process share."""

from __future__ import annotations

import logging
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Protocol

from sluicemq_devices.hub import Mishap, Notices, SpareTime, StrangersTime, TurnTime, in_turns
from sluicemq_devices.sockets.addresses import Addresses
from sluicemq_devices.sockets.incomplete import MOST_BYTES, Unfinished
from sluicemq_devices.sockets.outgoing_budget import Outgoing

_log = logging.getLogger("devices")
#: Connections kept for the door of the library and the commands: a twentieth of all, and 8 at least.
_KEPT_PART, _LEAST_KEPT = 20, 8
#: Handshakes that may be unfinished by default: a quarter of all connections, and 256 at least.
_UNFINISHED_PART, _LEAST_UNFINISHED = 4, 256
_MOST_CONNECTIONS = 30_000  # however many files may be open: each connection takes memory
_CUT_AT_ONCE = 32  # connections looked at in one turn: the end of one may cost 0.2 ms at its door


class Known(Protocol):
    """A connection, as :meth:`Switchboard.cut_if` needs it."""

    who: Any
    """Identity of the peer, as the guard says; None if it has not decided."""

    def cut(self, why: str) -> None:
        """End the connection at once, and log the reason."""


class Open(Protocol):
    """A door that is open."""

    @property
    def lanes(self) -> Iterable[Known]:
        """Connections of this door."""


class Switchboard:
    """The doors of a process, the budget of connections, and the counters of what goes wrong on them.

    ``notice(kind, text)`` is called when something went wrong on a connection: ``kind`` is a
    :class:`~sluicemq_devices.hub.counts.Mishap`, ``text`` names the peer and the reason. It may be called
    often: log with a limit, as :class:`~sluicemq_devices.hub.Notices` does. ``count(kind, count=1)`` counts
    what is worth no line, like a peer that leaves before it has said anything.
    """

    def __init__(
        self,
        *,
        notice: Callable[[str, str], None] | None = None,
        count: Callable[..., None] | None = None,
        max_connections: int | None = None,
        max_connections_per_address: int | None = None,
        max_handshakes: int | None = None,
        reserve_fds: int = 256,
        handshake: float = 10.0,
        flush: float = 1.0,
        glance: float = 1.0,
        unfinished_bytes: int = MOST_BYTES,
        outgoing: Outgoing | None = None,
        keep: bool = False,
    ) -> None:
        """``handshake``: seconds in which a client must have finished its ZMTP handshake.

        ``max_handshakes``: unfinished handshakes of all clients; by default a quarter of ``max_connections``.
        ``flush``: seconds for what a connection holds, and for the peer's own end, when it is closed.
        ``glance``: seconds between two checks for the end of a paused connection's peer.
        ``unfinished_bytes``: memory of all messages that are not complete.
        ``outgoing``: the budget of bytes that peers have not taken, and of answers being made.
        ``keep``: no door may have more than four fifths of the connections, and some are kept for doors
        that call :meth:`admit` with ``kept``.
        """
        notices = Notices(_log)
        self.notice = notice or notices.notice
        self.count = count or notices.add
        self.unfinished = Unfinished(
            unfinished_bytes, short=partial(self.notice, Mishap.LARGE_MESSAGES_WAITED)
        )
        self.outgoing = outgoing or Outgoing()
        self.outgoing.short = partial(self.notice, Mishap.ANSWERS_WAITED)
        self.doors: set[Open] = set()
        """Doors that are open now, or close."""
        self.max_connections = max_connections or 0
        self.connections = 0
        self.handshake = handshake
        self.flush = flush
        self.glance = glance
        self.addresses = Addresses(max_connections_per_address)
        self.spare = SpareTime()
        self.strangers_time = StrangersTime()
        self.turn_time = TurnTime()
        self._wanted = max_connections
        self._wanted_handshakes = max_handshakes
        self._reserve_fds = reserve_fds
        self._last_file = 0
        self._keep = keep

    @property
    def kept(self) -> int:
        """Connections kept for the doors that must stay reachable."""
        most = self.max_connections
        return min(max(_LEAST_KEPT, most // _KEPT_PART), most // 2) if self._keep else 0

    def start(self) -> None:
        """Raise the limit of open files as far as allowed; it sets the budget of connections."""
        files = _raise_limit_of_files()
        self._last_file = files - self._reserve_fds // 4
        self.max_connections = self._wanted or max(1, min(_MOST_CONNECTIONS, files - self._reserve_fds))
        self.addresses.most_handshakes = self._wanted_handshakes or max(
            _LEAST_UNFINISHED, self.max_connections // _UNFINISHED_PART
        )

    def stop(self) -> None:
        """Admit no connection any more."""
        self.max_connections = 0

    def admit(self, file: int, there: int = 0, *, kept: bool = False, peer: str = "") -> str:
        """Take a connection out of the budget; return "" or the reason why it is refused.

        ``file``: its file number. The system gives the lowest free number, so a high one says that nearly all
        files are open. ``there``: connections that its door has; ``kept``: its door must stay reachable.
        ``peer``: the client's address; "" for a server that was dialled.
        """
        most, open_now = self.max_connections, f"{self.connections} connections are open"
        if file >= self._last_file:
            return f"{open_now}, and too many files"
        if self.connections >= (most if kept else most - self.kept):
            return f"{open_now} of {most}" + ("" if kept or not self.kept else f", {self.kept} are kept")
        if self._keep and there >= max(1, most * 4 // 5):
            return f"{open_now} of {most}, and {there} at this door"
        if why := self.addresses.refusal(peer):
            return why
        self.connections += 1
        if peer:
            self.addresses.opened(peer)
        return ""

    def release(self, peer: str = "") -> None:
        """Give back what :meth:`admit` took for this peer."""
        self.connections -= 1
        if peer:
            self.addresses.closed(peer)

    def cut_if(self, is_over: Callable[[Any], bool], why: str) -> None:
        """Cut the connections at all doors whose ``who`` may stay no longer; some in each turn of the hub."""
        lanes = (lane for door in list(self.doors) for lane in list(door.lanes))
        in_turns(partial(_cut_some, lanes, is_over, why))


def _cut_some(lanes: Iterator[Known], is_over: Callable[[Any], bool], why: str) -> bool:
    """Do the work of one turn; return True if there may be more."""
    some = list(islice(lanes, _CUT_AT_ONCE))
    for lane in some:
        if lane.who is not None and is_over(lane.who):
            lane.cut(why)
    return bool(some)


def _raise_limit_of_files() -> int:
    """Raise the limit of open files as far as allowed, and return it."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard
