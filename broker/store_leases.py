"""The brokers' leases in MongoDB: who may hold jobs, told by a counter and never by a clock.

One document an owner id: ``{_id, state: live|dead, beat, lease, name, started_at, ended_at?}``. It
is written, durably, before the first job is reserved under that id. A dead one stays a day to be
looked at; an owner without a document counts as dead.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pymongo import IndexModel

from broker.mongo import Documents, durable, translated
from broker.store_documents import date

_KEPT: Final = timedelta(days=1).total_seconds()


class LeaseStore:
    """All leases of one database."""

    def __init__(self, database: Documents) -> None:
        self._leases = durable(database)["owners"]

    def prepare(self) -> None:
        """Make the index that removes dead leases after a day."""
        with translated():
            self._leases.create_indexes([IndexModel([("ended_at", 1)], expireAfterSeconds=int(_KEPT))])

    def begin(self, owner: str, name: str, lease: float, now: float) -> None:
        """Write the lease of a new owner id; repeating it after a lost reply is harmless."""
        born = {"state": "live", "beat": 0, "lease": lease, "name": name, "started_at": date(now)}
        with translated():
            self._leases.update_one({"_id": owner}, {"$setOnInsert": born}, upsert=True)

    def beat(self, owners: list[str]) -> int:
        """Raise the counters of these leases that are not dead; returns how many there were."""
        with translated():
            live = {"_id": {"$in": owners}, "state": "live"}
            return self._leases.update_many(live, {"$inc": {"beat": 1}}).matched_count

    def live(self) -> dict[str, tuple[int, float]]:
        """The counter of every live lease, and how many seconds it may stand still."""
        with translated():
            found = self._leases.find({"state": "live"}, {"beat": 1, "lease": 1})
            return {each["_id"]: (each["beat"], each["lease"]) for each in found}

    def end(self, owner: str, now: float, *, beat: int | None = None) -> bool:
        """Mark a lease dead; with ``beat`` only if its counter still stands there.

        From then on no heartbeat matches it. Returns whether this call did it.
        """
        lease = {"_id": owner, "state": "live"} | ({} if beat is None else {"beat": beat})
        with translated():
            ended = self._leases.update_one(lease, {"$set": {"state": "dead", "ended_at": date(now)}})
        return ended.modified_count == 1
