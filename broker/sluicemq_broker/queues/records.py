"""Records of queues, followed: pauses, settings and removals that any broker may have written."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gevent.lock import BoundedSemaphore

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.runtime import Timer
from sluicemq_broker.store import Documents, Follower, QueueRecord, QueueRecordStore, Removing
from sluicemq_devices.hub import let_others_run


class QueueRecords:
    """The records of all queues at the last read; while MongoDB is away they hold on.

    Each read is one statement for each database, and brings what has changed since the last one.
    """

    def __init__(self, database: Callable[[str], Documents], names: Iterable[str], timer: Timer) -> None:
        """``names``: all databases with queues."""
        self._followed = {name: _Followed(QueueRecordStore(database(name)), timer) for name in names}
        self._reading = (
            BoundedSemaphore()
        )  # or a read begun before a change would end after the one behind it

    def prepare(self) -> None:
        """Make the indexes."""
        for follower in self._followed.values():
            follower.store.prepare()

    def of(self, database: str, queue: str) -> QueueRecord:
        """Return the record of a queue."""
        return self._followed[database].records.get(queue) or QueueRecord(name=queue)

    def names(self) -> set[str]:
        """Return the queues of which anything was ordered."""
        return {name for followed in self._followed.values() for name in followed.records}

    def store(self, database: str) -> QueueRecordStore:
        """Return the records of a database as they are stored."""
        return self._followed[database].store

    def read(self) -> None:
        """Read what has changed. Raises :class:`Unavailable`: then all is as it was, and read next time."""
        with self._reading:
            for follower in self._followed.values():
                follower.read()

    def apply(self, follow: Callable[[str, str, bool], None]) -> None:
        """Call ``follow(database, name, removed)`` for each record that has changed.

        ``removed``: its queue was removed since the last call. After an error it is called again next time.
        """
        for database, followed in self._followed.items():
            for name in list(followed.changed):
                removed = followed.changed.pop(name, None)
                if removed is None:
                    continue  # another greenlet has it
                try:
                    follow(database, name, removed)
                except SluiceError:
                    followed.note(name, removed=removed)
                    raise
                let_others_run()  # as many as there are queues may have changed

    def removals(self) -> list[tuple[str, QueueRecord, Removing]]:
        """Return the records of queues that are being removed, each with its database."""
        return [
            (database, record, record.removing)
            for database, followed in self._followed.items()
            for record in list(followed.records.values())
            if record.removing
        ]


class _Followed:
    """The records of one database: those that say something, and names of those that have changed."""

    def __init__(self, store: QueueRecordStore, timer: Timer) -> None:
        self.store = store
        self.records: dict[str, QueueRecord] = {}
        self.changed: dict[str, bool] = {}
        self._changes = Follower(store, timer.now)

    def note(self, name: str, *, removed: bool) -> None:
        """Note that a record has changed; ``removed``: because its queue was removed."""
        self.changed[name] = self.changed.get(name, False) or removed

    def read(self) -> None:
        """Read what has changed."""
        last = self._changes.revision
        found, complete = self._changes.read()
        for record in found:
            removed = last is not None and record.removed > last
            if (
                removed
                or record.orders != self.records.get(record.name, QueueRecord(name=record.name)).orders
            ):
                self.note(record.name, removed=removed)
            if record.says_nothing:
                self.records.pop(record.name, None)
            else:
                self.records[record.name] = record
        if complete:
            for gone in self.records.keys() - {record.name for record in found}:
                del self.records[gone]
                self.note(gone, removed=False)
