"""Which queues are paused: read from MongoDB again and again, since any broker may be told to."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gevent.lock import BoundedSemaphore

from sluicemq_broker.store import Documents, PauseStore

_NOTHING: frozenset[str] = frozenset()


class Pauses:
    """What of which queue is paused, as MongoDB said last; one read for each database, not each queue."""

    def __init__(self, database: Callable[[str], Documents], names: Iterable[str]) -> None:
        """``names``: of all databases with queues."""
        self._stores = {name: PauseStore(database(name)) for name in names}
        self._known: dict[str, dict[str, frozenset[str]]] = {}
        self._reading = BoundedSemaphore()  # or a read that began before an order would end after its own

    def of(self, database: str, queue: str) -> frozenset[str]:
        """What is paused of a queue: ``delivery``, ``intake``, both, or nothing."""
        return self._known.get(database, {}).get(queue, _NOTHING)

    def read(self) -> bool:
        """Ask MongoDB whether anything has changed; raises :class:`Unavailable`, then all holds on."""
        with self._reading:
            before = self._known
            self._known = {name: store.paused() for name, store in self._stores.items()}
            return self._known != before

    def order(self, database: str, statement: Callable[[PauseStore], None]) -> None:
        """Write a change, durably, and read what holds then."""
        statement(self._stores[database])
        self.read()
