"""Load, queues and workers of each broker, for the dashboards of the others.

::

    figures: {_id: name of the broker, at, said: bytes}

It is said again every few seconds while there are other brokers. What is old is not read, and goes.
"""

from __future__ import annotations

from pymongo import IndexModel

from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.creation import by_majority
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.set_aside import BINARY, TEXT, field, readable
from sluicemq_broker.store.values import Document, date


class FigureStore:
    """The figures of all brokers on one database; repeating any of these is harmless."""

    def __init__(self, database: Documents) -> None:
        self._figures = durable(database)["figures"]

    def prepare(self) -> None:
        """Make the index that removes what is old."""
        with translated():
            # failpoint figures.prepare
            self._figures.create_indexes(
                [IndexModel([("at", 1)], expireAfterSeconds=3600)],
                **by_majority(self._figures),
            )

    def put(self, broker: str, said: bytes, now: float) -> None:
        """Store what a broker says now, in the place of what it said before."""
        with translated():
            # failpoint figures.put
            self._figures.update_one({"_id": broker}, {"$set": {"at": date(now), "said": said}}, upsert=True)

    def others(self, broker: str, since: float) -> dict[str, bytes]:
        """Return by name what the other brokers have said since then."""
        with translated():
            found = self._figures.find({"_id": {"$ne": broker}, "at": {"$gte": date(since)}})
            return dict(readable(self._figures, found, read_figures))


def read_figures(stored: Document) -> tuple[str, bytes]:
    """Read what a broker has said."""
    return field(stored, "_id", TEXT), field(stored, "said", BINARY)
