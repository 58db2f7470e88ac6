"""Pauses of queues, read from MongoDB: any broker may have written them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gevent.lock import BoundedSemaphore

from sluicemq_broker.store import Documents, PauseStore

_NOTHING: frozenset[str] = frozenset()


class Pauses:
    """The pauses of all queues at the last read; each read is one statement for each database."""

    def __init__(self, database: Callable[[str], Documents], names: Iterable[str]) -> None:
        """``names``: all databases with queues."""
        self._stores = {name: PauseStore(database(name)) for name in names}
        self._known: dict[str, dict[str, frozenset[str]]] = {}
        self._reading = (
            BoundedSemaphore()
        )  # or a read begun before a change would end after the one behind it

    def of(self, database: str, queue: str) -> frozenset[str]:
        """Return what is paused of a queue: ``delivery``, ``intake``, both, or nothing."""
        return self._known.get(database, {}).get(queue, _NOTHING)

    def read(self) -> bool:
        """Read all pauses; True if any changed. Raises :class:`Unavailable`: then none is changed."""
        with self._reading:
            before = self._known
            self._known = {name: store.paused() for name, store in self._stores.items()}
            return self._known != before

    def change(self, database: str, statement: Callable[[PauseStore], None]) -> None:
        """Write a change, durably, and read all pauses."""
        statement(self._stores[database])
        self.read()
