"""Pauses of queues in MongoDB: they outlast restarts and hold for all brokers.

One document for each queue that was ever paused, beside the queues in their database:
``queues: {_id: queue, paused: ["delivery" | "intake", ...]}``.
"""

from __future__ import annotations

from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import translated


class PauseStore:
    """The pauses of one database's queues; repeating any of these after a lost reply is harmless."""

    def __init__(self, database: Documents) -> None:
        self._queues = durable(database)["queues"]

    def paused(self) -> dict[str, frozenset[str]]:
        """Return what is paused in each queue, by one read."""
        with translated():
            return {each["_id"]: frozenset(each["paused"]) for each in self._queues.find()}

    def pause(self, queue: str, what: str) -> None:
        """Note that deliveries, or intake, of a queue are paused."""
        with translated():
            self._queues.update_one({"_id": queue}, {"$addToSet": {"paused": what}}, upsert=True)

    def resume(self, queue: str, what: str) -> None:
        """Note that deliveries, or intake, of a queue go on."""
        with translated():
            self._queues.update_one({"_id": queue}, {"$pull": {"paused": what}})

    def forget(self, queue: str) -> None:
        """Forget the pauses of a removed queue: a new one of its name is not paused."""
        with translated():
            self._queues.delete_one({"_id": queue})
