"""What the brokers of a queue share of its limits: who has how many permits, and what is left of the rate.

One document for each queue that is limited so, beside the queues in their database::

    limits: {_id: queue,
             running: {owner: {permits, order}, ...},     of max_running
             tokens, refilled_at, taken}                  of rate

Permits are taken and given back by saying how many an owner is to have from now on: so a repetition is
harmless. ``order`` numbers what an owner says, and nothing that it said before lands after it. Tokens are
taken once and for all; a lost reply loses some, and the rate is kept.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pymongo import ReturnDocument

from sluicemq_broker.store.connection import Documents, durable, translated
from sluicemq_broker.store.documents import Document, date

COLLECTION: Final = "limits"


class Tokens(NamedTuple):
    """How many jobs may begin now, and the seconds until one more may (0: there are some left)."""

    taken: int
    wait: float


class LimitStore:
    """The limits of one queue."""

    def __init__(self, database: Documents, queue: str) -> None:
        self._queue = {"_id": queue}
        self._limits = durable(database)[COLLECTION]

    def permit(self, owner: str, wanted: int, most: int, order: int) -> int:
        """Have ``wanted`` permits under this owner id, or as many as the others leave of ``most``; how many.

        Nobody loses what it has but by its own word. Crash after it: the permits are the owner's until its
        lease has run out, and :meth:`forget` was called.
        """
        at = f"running.{owner}"
        said = {"$ifNull": [f"${at}.order", 0]}
        mine = {"$ifNull": [f"${at}.permits", 0]}
        left = {"$subtract": [most, {"$subtract": [_all_permits(), mine]}]}
        permits = {"permits": {"$min": [wanted, {"$max": [left, mine]}]}, "order": order}
        answer = self._change([{"$set": {at: {"$cond": [{"$gte": [said, order]}, f"${at}", permits]}}}])
        return int(answer["running"][owner]["permits"])

    def holders(self) -> dict[str, int]:
        """Who has how many permits."""
        with translated():
            found = self._limits.find_one(self._queue, {"running": 1}) or {}
        return {owner: about["permits"] for owner, about in found.get("running", {}).items()}

    def forget(self, owner: str) -> None:
        """An owner is gone, and its jobs are given back: so are its permits; again is harmless."""
        with translated():
            self._limits.update_one(self._queue, {"$unset": {f"running.{owner}": ""}})

    def take(self, wanted: int, rate: float, burst: int, now: float) -> Tokens:
        """Take up to ``wanted`` of the tokens, of which ``rate`` come each second, up to ``burst``."""
        moment = date(now)
        since = {"$max": [0, {"$subtract": [moment, {"$ifNull": ["$refilled_at", moment]}]}]}
        come = {"$multiply": [rate / 1000, since]}  # a difference of dates is in milliseconds
        filled = {"$min": [burst, {"$add": [{"$ifNull": ["$tokens", burst]}, come]}]}
        answer = self._change(
            [
                {"$set": {"tokens": filled, "refilled_at": {"$max": ["$refilled_at", moment]}}},
                {"$set": {"taken": {"$min": [wanted, {"$floor": "$tokens"}]}}},
                {"$set": {"tokens": {"$subtract": ["$tokens", "$taken"]}}},
            ]
        )
        return Tokens(int(answer["taken"]), max(0.0, (1 - answer["tokens"]) / rate))

    @staticmethod
    def leave(database: Documents, owner: str) -> None:
        """An owner has given back its jobs in all queues of this database: so are its permits."""
        held = f"running.{owner}"
        with translated():
            durable(database)[COLLECTION].update_many({held: {"$exists": True}}, {"$unset": {held: ""}})

    def _change(self, steps: list[Document]) -> Document:
        """One statement, atomic as any on one document; the document as it is then."""
        with translated():
            changed = self._limits.find_one_and_update(
                self._queue, steps, upsert=True, return_document=ReturnDocument.AFTER
            )
        return changed or {}


def _all_permits() -> Document:
    holders = {"$objectToArray": {"$ifNull": ["$running", {}]}}
    return {"$sum": {"$map": {"input": holders, "as": "each", "in": "$$each.v.permits"}}}
