"""Logins at MongoDB: connections that have lost theirs are closed, and a new password takes its place.

MongoDB keeps the connections of a user who was dropped, or made again, and refuses each of their statements.
The driver takes that for an error of the statement and uses them on. So a refusal closes all connections of
its client, and the next statement logs in again, as the user that the URI names then.

The driver has no public way for either, so this is where its pools are reached into; the tests hold it to a
real server with users.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary, ref

import pymongo
from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
)

from sluicemq_broker.config import MongoUri
from sluicemq_broker.store.errors import ServerCode

_Client = pymongo.MongoClient[dict[str, Any]]

#: Of this process, by their identity: the driver calls two clients of one MongoDB equal.
_clients: WeakValueDictionary[int, _Client] = WeakValueDictionary()


class LoginWatch(CommandListener):
    """The logins of one client, which :meth:`of` names once it is made."""

    def __init__(self) -> None:
        self._client: Callable[[], _Client | None] = lambda: None
        self._closed_at = float("-inf")

    def of(self, client: _Client) -> None:
        """Watch this client; a new password reaches it by :func:`log_in_again`."""
        self._client = ref(client)
        _clients[id(client)] = client

    def started(self, event: CommandStartedEvent) -> None:
        """Not looked at."""

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Not looked at."""

    def failed(self, event: CommandFailedEvent) -> None:
        """Close the connections if one has lost its login."""
        now, code = time.monotonic(), event.failure.get("code")
        if code not in {ServerCode.UNAUTHORIZED, ServerCode.AUTHENTICATION_FAILED}:
            return
        # Seconds between two times: a user who lacks a right is refused again and again.
        if now - self._closed_at < 5.0:
            return
        self._closed_at = now
        if client := self._client():
            _close_connections(client)


def log_in_again(uri: MongoUri) -> None:
    """Have all clients of this process log in as this URI says; statements under way end as they began."""
    with pymongo.MongoClient[dict[str, Any]](uri.login, connect=False) as made:
        credentials = made.options.pool_options._credentials  # noqa: SLF001
    for client in list(_clients.values()):
        setattr(client.options.pool_options, "_PoolOptions__credentials", credentials)  # noqa: B010 - no name
        _close_connections(client)


def _close_connections(client: _Client) -> None:
    """Close the connections that are idle; those in use are closed when their statement has its answer."""
    for server in list(client._topology._servers.values()):  # noqa: SLF001
        server.pool.reset_without_pause()
