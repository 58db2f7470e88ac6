"""Schema number that this broker may write, read again while it runs: another broker may raise it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from sluicemq.protocol.errors import OldBrokerError, UnavailableError
from sluicemq_broker.store import SCHEMA, NewerSchema, SchemaNumbers, SchemaStore, Seen

log = logging.getLogger("broker")


class Schema:
    """The schema of all databases of a broker; ``stores``: the broker's own database first.

    Whatever the number, a broker reads records of all schemas in :data:`READS`; it asks for the number only
    before it writes a record that a broker of an older schema would not understand.
    """

    def __init__(self, stores: Sequence[SchemaStore] = ()) -> None:
        self._stores = stores
        self._warned: frozenset[Seen] = frozenset()
        self.number = SCHEMA
        """The schema by which records may be written: the lowest of all databases, at the last look."""
        self.on_newer: Callable[[NewerSchema], Any] = lambda _error: None
        """Called when the number has risen to one that this broker can't read."""

    def open(self) -> None:
        """Look for the first time; a new database gets a number. Raises :class:`NewerSchema`."""
        numbers: list[SchemaNumbers] = []
        for store in self._stores:
            # A database that is added while old brokers are about gets the number of the broker's own.
            numbers.append(store.open(new=numbers[0].written if numbers else SCHEMA))
        self._note(numbers)
        if self.number < SCHEMA:
            log.warning(
                "the store has schema %d, and gets schema %d only by 'sluicemq brokers upgrade': run it "
                "when all brokers are of this version",
                self.number,
                SCHEMA,
            )

    def follow(self) -> None:
        """Read the number again; called every second or so, and under each new lease."""
        try:
            self._note([store.read() for store in self._stores])
        except NewerSchema as error:
            self.on_newer(error)
            raise

    def look_for_old(self, living: Sequence[Seen]) -> None:
        """Log brokers that run in spite of an upgrade: they were stopped meanwhile, or began just then."""
        old = {broker._replace(seen=0.0): broker for broker in _old(living, self.number)}
        for broker in old.keys() - self._warned:
            log.error(
                "%s runs on a store of schema %d, and ignores what it does not know: stop it",
                _described(old[broker]),
                self.number,
            )
        self._warned = frozenset(old)

    def upgrade(self, living: Callable[[], Sequence[Seen]], sleep: Callable[[float], object]) -> int:
        """Raise the number to :data:`SCHEMA`; returns the former one. May be repeated after an error.

        Raises :class:`OldBroker` if one of the ``living()`` brokers can't read it; then all is as before. The
        steps: :mod:`~sluicemq_broker.store.cluster.schema`.
        """
        self.follow()
        before = self.number
        if before < SCHEMA:
            _require_all(living())
            for store in self._stores:
                store.close(SCHEMA)
            self._finish(living, sleep)
            log.warning("the store has schema %d now: older versions can't use it any more", SCHEMA)
        return before

    def _finish(self, living: Callable[[], Sequence[Seen]], sleep: Callable[[float], object]) -> None:
        # Seconds for which a broker of an older schema, which reads the number before it has a lease, may be
        # starting.
        sleep(2.0)
        try:
            _require_all(living())
        except OldBrokerError:
            for store in self._stores:
                store.reopen(SCHEMA)
            raise
        for store in self._stores:
            store.finish(SCHEMA)
        self.follow()
        if self.number < SCHEMA:
            raise UnavailableError("another upgrade was taken back at the same time: try again")

    def _note(self, numbers: Sequence[SchemaNumbers]) -> None:
        self.number = min((number.written for number in numbers), default=SCHEMA)


def can_read(reads: Sequence[int], number: int) -> bool:
    """Return True if a broker with these ``reads`` in its lease can read a database of this number."""
    return reads[0] <= number <= reads[1]


def _require_all(brokers: Sequence[Seen]) -> None:
    """Raise OldBroker if one of these brokers can't read the newest schema."""
    old = ", ".join(_described(broker) for broker in _old(brokers, SCHEMA))
    if old:
        raise OldBrokerError(f"schema {SCHEMA} can't be read by {old}: upgrade or stop that first")


def _old(brokers: Sequence[Seen], number: int) -> list[Seen]:
    return [broker for broker in brokers if not can_read(broker.reads, number)]


def _described(broker: Seen) -> str:
    version = f"version {broker.version}" if broker.version else "an older version"
    seen = datetime.fromtimestamp(broker.seen, UTC).isoformat(sep=" ", timespec="seconds")
    return f"{broker.name} ({version}, reads schema {broker.reads[1]}, last seen {seen})"
