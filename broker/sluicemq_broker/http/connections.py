r"""Connections of the HTTP door: which one is closed when there are too many, or when too much lies unread.

Each :class:`Connection` is in one of four states::

    IDLE --> ANSWERED --> READING --> IDLE        a request
                      \--> FOLLOWING               an event stream, until one side leaves

A new connection is always accepted. If all are taken, the one that has been idle for longest is closed, of
the address that has most. At most half of the connections are event streams: one more closes the oldest.

The unread bytes of answers are counted over all connections. A peer that reads nothing of its answer is
closed when others wait for its memory, or for its turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum, auto

from sluicemq_broker.runtime import Count, Counters


class ConnectionState(Enum):
    """States of a connection."""

    IDLE = auto()
    ANSWERED = auto()
    READING = auto()
    FOLLOWING = auto()


class Connection:
    """One connection from ``address``; ``end()`` closes it at once.

    ``unread``: bytes in memory for its answer; ``served``: requests and pieces of answers so far;
    ``has_left()``: whether the peer has closed its side.
    """

    __slots__ = ("address", "end", "has_left", "served", "since", "state", "unread")

    def __init__(self, address: str, end: Callable[[], None], now: float) -> None:
        self.address = address
        self.end = end
        self.has_left: Callable[[], bool] = bool
        self.state = ConnectionState.IDLE
        self.since = now
        self.unread = 0
        self.served = 0


class Connections:
    """All connections of the door, ``most`` at one time. ``held()`` hears how many bytes lie unread."""

    def __init__(self, most: int, counters: Counters, held: Callable[[int], None]) -> None:
        self.most = most
        self.most_following = most // 2
        self.unread = 0
        self._counters = counters
        self._held = held
        self._connections: dict[Connection, None] = {}  # in the order in which they came

    def __len__(self) -> int:
        return len(self._connections)

    def enter(self, address: str, end: Callable[[], None], now: float) -> Connection:
        """Accept a new connection; where there are too many, another one is closed."""
        while len(self._connections) >= self.most and self.give_way(now):
            pass
        connection = Connection(address, end, now)
        self._connections[connection] = None
        return connection

    def give_way(self, now: float) -> bool:
        """Close the connection that is idle or stalled for longest; False if all are in use."""
        found = self._longest(ConnectionState.IDLE) or self._stalled(now)
        return self._close(found)

    def leave(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self._hold(connection, 0)
        self._connections.pop(connection, None)

    def idle(self, connection: Connection, now: float) -> None:
        """Note that a connection waits for its next request."""
        self._hold(connection, 0)
        connection.state, connection.since = ConnectionState.IDLE, now

    def answer(self, connection: Connection, now: float) -> None:
        """Note that an answer is being made for a connection."""
        connection.state, connection.since = ConnectionState.ANSWERED, now
        connection.served += 1

    def follow(self, connection: Connection, now: float) -> None:
        """Note that a connection follows an event stream; of too many the oldest is closed."""
        if sum(1 for _ in self._all(ConnectionState.FOLLOWING)) >= self.most_following:
            self._close(self._longest(ConnectionState.FOLLOWING))
        connection.state, connection.since = ConnectionState.FOLLOWING, now

    def read(self, connection: Connection, unread: int, now: float) -> None:
        """Note that a connection has an answer to read, and how many bytes are kept until then."""
        self._hold(connection, unread)
        connection.state, connection.since = ConnectionState.READING, now

    def took(self, connection: Connection, now: float) -> None:
        """Note that the peer has read a piece of its answer."""
        connection.served += 1
        if connection.state is ConnectionState.READING:
            connection.since = now

    def end_stalled(self, now: float) -> bool:
        """Close the connection that has read nothing for longest; False if all are being read."""
        return self._close(self._stalled(now))

    def end_all(self, state: ConnectionState) -> None:
        """Close all connections in a state."""
        for connection in list(self._all(state)):
            connection.end()

    def _hold(self, connection: Connection, unread: int) -> None:
        if connection in self._connections:
            self.unread += unread - connection.unread
            connection.unread = unread
            self._held(self.unread)

    def _close(self, connection: Connection | None) -> bool:
        if connection is None:
            return False
        self.leave(connection)
        self._counters.notice(
            Count.HTTP_CONNECTIONS_CUT,
            f"HTTP: a connection of {connection.address} was closed to make room for others; "
            f"{len(self._connections)} of {self.most} are open",
        )
        connection.end()
        return True

    def _all(self, state: ConnectionState) -> Iterator[Connection]:
        return (connection for connection in self._connections if connection.state is state)

    def _longest(self, state: ConnectionState) -> Connection | None:
        """Return the connection longest in a state, of the address with most in that state."""
        found = list(self._all(state))
        if not found:
            return None
        by_address = Counter(connection.address for connection in found)
        most = max(by_address.values())
        return min(
            (connection for connection in found if by_address[connection.address] == most),
            key=lambda connection: connection.since,
        )

    def _stalled(self, now: float) -> Connection | None:
        """Return the connection that has read nothing for longest, if that is a second."""
        slow = [
            connection for connection in self._all(ConnectionState.READING) if now - connection.since >= 1.0
        ]
        return min(slow, key=lambda connection: connection.since, default=None)
