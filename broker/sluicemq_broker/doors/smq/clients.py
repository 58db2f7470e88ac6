"""Clients that repeat, over their next connection, what was not answered over the last one.

Requests that such a client has sent over an older connection may still lie unread here: in the buffers of a
broker that stood still, or in a relay. They were sent again since, and must not be done twice.
A client numbers its connections to all brokers, and brokers tell each other the newest one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sluicemq.protocol.names import is_queue_name
from sluicemq.protocol.wire import MAX_NUMBER
from sluicemq_broker.bus import BusEvent, BusKind, Channel, silent
from sluicemq_broker.runtime import Bucket
from sluicemq_devices.hub import Latest


class ClientConnection(NamedTuple):
    """A connection of a client that repeats: the client's name, and the number of the connection."""

    client: str
    connection: int

    @classmethod
    def read(cls, about: dict[Any, Any], principal: str) -> tuple[str, ClientConnection | None]:
        """Return the client's id in a HELLO and its connection; none for one that does not repeat."""
        own, number = about.get("id", ""), about.get("connection")
        if not is_queue_name(own):
            return "", None
        if type(number) is not int or not 0 < number <= MAX_NUMBER:
            return "", None
        return own, cls(f"{own}/{principal}", number)


class Clients:
    """The newest connections of clients; those that connected longest ago are forgotten."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.channel: Callable[[], Channel] = silent
        """Returns the channel to other brokers."""
        self._now = now
        self._newest: Latest[str, int] = Latest(20_000)  # a quarter of a kilobyte each
        self._notices = Bucket(500.0, 5_000.0)  # each second, and at once

    def has_newer_connection(self, than: ClientConnection) -> bool:
        """Return True if the client has a newer connection than this one, here or at another broker."""
        return self._newest.get(than.client, 0) > than.connection

    def arrived(self, connection: ClientConnection) -> None:
        """Note a connection; other brokers hear of it if it is not the client's first one."""
        self._note(connection)
        channel = self.channel()
        if connection.connection > 1 and channel.shared and self._notices.take(self._now()):
            channel.announce(BusEvent(BusKind.CLIENT, *connection))

    def on_event(self, event: BusEvent) -> None:
        """Note a connection to another broker."""
        if event.name:
            self._note(ClientConnection(event.name, event.number))

    def _note(self, connection: ClientConnection) -> None:
        newest = max(connection.connection, self._newest.get(connection.client, 0))
        self._newest[connection.client] = newest
