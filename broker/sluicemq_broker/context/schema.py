"""Schema number that this broker may write, read again while it runs: another broker may raise it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from sluicemq_broker.store import SCHEMA, NewerSchema, SchemaNumbers, SchemaStore

log = logging.getLogger("broker")


class Schema:
    """The schema of all databases of a broker; ``stores``: the broker's own database first.

    Whatever the number, a broker reads records of all schemas in :data:`READS`; it asks for the number only
    before it writes a record that a broker of an older schema would not understand.
    """

    def __init__(self, stores: Sequence[SchemaStore] = ()) -> None:
        self._stores = stores
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
                "the store has schema %d, and gets schema %d only by 'sluicemq upgrade': run it "
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

    def _note(self, numbers: Sequence[SchemaNumbers]) -> None:
        self.number = min((each.written for each in numbers), default=SCHEMA)


def can_read(reads: Sequence[int], number: int) -> bool:
    """Return True if a broker with these ``reads`` in its lease can read a database of this number."""
    return reads[0] <= number <= reads[1]
