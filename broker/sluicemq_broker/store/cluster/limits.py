"""Limits of a queue that brokers share: who has how many permits, and what is left of the rate.

One document for each limited queue, beside the queues in their database::

    limits: {_id: queue,
             running: {owner: {permits, order}, ...},     of max_running
             tokens, refilled_at, taken,                  of rate
             removed_at?}                                 when the queue was removed: a day later it goes

and one for each tenant with a rate of its own, until its bucket is full again::

            {_id: queue/tenant, tokens, refilled_at, taken: [{owner, order, count}, ...], remove_at}

Permits are taken and given back by saying how many an owner has from now on: so a repetition is harmless.
``order`` numbers what an owner says; an earlier number that lands late changes nothing. Tokens are taken once
and for all: a lost reply loses some, and the rate is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pymongo import IndexModel, ReturnDocument, UpdateOne
from pymongo.errors import BulkWriteError, OperationFailure

from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.creation import by_majority
from sluicemq_broker.store.errors import TROUBLE, ServerCode, applied, brief, in_trouble, translated
from sluicemq_broker.store.set_aside import (
    ASIDE,
    COUNT,
    DATE,
    LIST,
    MAP,
    NUMBER,
    Damaged,
    Read,
    Reader,
    field,
    read_or_damaged,
    readable,
)
from sluicemq_broker.store.values import BY_ID, Document, date

COLLECTION: Final = "limits"

#: Seconds for which a full bucket is kept, so that each broker finds what it has just taken.
_KEPT: Final = 60


class Tokens(NamedTuple):
    """How many jobs may begin now, and the seconds until one more may (0: tokens are left)."""

    taken: int
    wait: float


class TenantBucket(NamedTuple):
    """How many tokens of a tenant were taken, and how many were left then, at server time ``at``."""

    taken: int
    left: float
    at: float


class LimitStore:
    """The limits of one queue."""

    def __init__(self, database: Documents, queue: str) -> None:
        self._queue = {"_id": queue}
        self._limits = durable(database)[COLLECTION]
        self._indexed = False  # the index that removes full buckets of tenants

    def permit(self, owner: str, wanted: int, most: int, number: int) -> int:
        """Have ``wanted`` permits under this owner id, or what others leave of ``most``; return how many.

        Only its owner gives up permits. Crash after it: the permits are the owner's until its lease has run
        out and :meth:`forget` is called.
        """
        at = f"running.{owner}"
        last = {"$ifNull": [f"${at}.order", 0]}
        mine = {"$ifNull": [f"${at}.permits", 0]}
        left = {"$subtract": [most, {"$subtract": [_all_permits(), mine]}]}
        permits = {"permits": {"$min": [wanted, {"$max": [left, mine]}]}, "order": number}
        steps = [{"$set": {at: {"$cond": [{"$gte": [last, number]}, f"${at}", permits]}}}]
        # failpoint limits.permit
        return self._change(steps, lambda answer: _permits(answer)[owner])

    def holders(self) -> dict[str, int]:
        """Return how many permits each owner has."""
        with translated():
            found = self._limits.find_one(self._queue, {"running": 1})
        return next(readable(self._limits, [found] if found else [], _permits), {})

    def forget(self, owner: str) -> None:
        """Remove the permits of an owner whose jobs are given back; repeating it is harmless."""
        with translated():
            # failpoint limits.forget
            self._limits.update_one(self._queue, {"$unset": {f"running.{owner}": ""}})

    def take(self, wanted: int, rate: float, burst: int, now: float) -> Tokens:
        """Take up to ``wanted`` tokens, of which ``rate`` come each second, up to ``burst``."""
        steps = [
            _refill(rate, burst, now),
            {"$set": {"taken": {"$min": [wanted, {"$floor": "$tokens"}]}}},
            {"$set": {"tokens": {"$subtract": ["$tokens", "$taken"]}}},
        ]

        def read(answer: Document) -> Tokens:
            wait = max(0.0, (1 - field(answer, "tokens", NUMBER)) / rate)
            return Tokens(field(answer, "taken", COUNT), wait)

        # failpoint limits.take
        return self._change(steps, read)

    def take_each(
        self, wanted: Mapping[str, int], rate: float, burst: int, now: float, owner: str, number: int
    ) -> dict[str, TenantBucket]:
        """Take tokens of each of these tenants; ``number``: one that no other taking of this owner has.

        One statement for all, of which each document is atomic, and a read of what was taken: other brokers
        may take some between them. A tenant that many others took from meanwhile is left out: its tokens are
        lost, as those of a lost reply.
        """
        steps = {name: _taking(count, rate, burst, now, owner, number) for name, count in wanted.items()}
        with translated():
            if not self._indexed:
                # failpoint limits.prepare
                self._limits.create_indexes(
                    [IndexModel([("remove_at", 1)], name="removal", expireAfterSeconds=0, sparse=True)],
                    **by_majority(self._limits),
                )
                self._indexed = True
            writes = [UpdateOne({"_id": self._of(name)}, step, upsert=True) for name, step in steps.items()]
            try:
                # failpoint limits.take_each
                self._limits.bulk_write(writes, ordered=False)
            except BulkWriteError as error:
                failed = error.details["writeErrors"]
                if not failed or {document["code"] for document in failed} & {
                    ServerCode.DUPLICATE_KEY,
                    *TROUBLE,
                }:
                    raise
                tenants = list(steps)
                for failure in failed:
                    damaged = self._damaged(self._of(tenants[failure["index"]]), brief(error))
                    self._begin_again(damaged)
            with applied():
                return self._buckets(wanted, owner, number)

    def buckets(self, tenants: Iterable[str]) -> dict[str, TenantBucket]:
        """Return what is left of each tenant; tenants that are left out have a full bucket."""
        with translated():
            return self._buckets(tenants)

    @staticmethod
    def leave(database: Documents, owner: str) -> None:
        """Remove the permits of an owner that has given back its jobs in all queues of this database."""
        held = f"running.{owner}"
        with translated():
            # failpoint limits.leave
            durable(database)[COLLECTION].update_many({held: {"$exists": True}}, {"$unset": {held: ""}})

    def _of(self, tenant: str) -> str:
        return f"{self._queue['_id']}/{tenant}"

    def _buckets(self, tenants: Iterable[str], owner: str = "", number: int = 0) -> dict[str, TenantBucket]:
        ids = {self._of(tenant): tenant for tenant in tenants}
        found = self._limits.find({"_id": {"$in": list(ids)}}, hint=BY_ID)
        buckets: dict[str, TenantBucket] = {}
        for document in found:
            bucket = read_or_damaged(self._limits, document, lambda stored: _bucket(stored, owner, number))
            if isinstance(bucket, Damaged):
                self._begin_again(bucket)
            else:
                buckets[ids[document["_id"]]] = bucket
        return buckets

    def _change(self, steps: list[Document], read: Reader[Read]) -> Read:
        """Change the queue's document by one atomic statement; return what ``read`` finds in it then."""
        with translated():
            try:
                answer = read_or_damaged(self._limits, self._changed(steps), read)
            except OperationFailure as error:
                if in_trouble(error) or error.code == ServerCode.DUPLICATE_KEY:
                    raise
                answer = self._damaged(self._queue["_id"], brief(error))
            if not isinstance(answer, Damaged):
                return answer
            self._begin_again(answer)
            return read(self._changed(steps))

    def _changed(self, steps: list[Document]) -> Document:
        # failpoint *
        changed = self._limits.find_one_and_update(
            self._queue, steps, upsert=True, return_document=ReturnDocument.AFTER
        )
        return changed or {}

    def _damaged(self, key: str, why: str) -> Damaged:
        return Damaged(self._limits.database.name, COLLECTION, key, f"MongoDB can't count in it: {why}")

    def _begin_again(self, damaged: Damaged) -> None:
        """Remove counters that somebody has damaged, so that MongoDB can't add to them.

        Each broker says again how many permits it has; a bucket begins full.
        """
        ASIDE.note(damaged)
        # failpoint limits.begin_again
        self._limits.delete_one({"_id": damaged.id})


def _permits(stored: Document) -> dict[str, int]:
    running = field(stored, "running", MAP, {})
    return {owner: field(field(running, owner, MAP), "permits", COUNT) for owner in running}


def _all_permits() -> Document:
    holders = {"$objectToArray": {"$ifNull": ["$running", {}]}}
    return {"$sum": {"$map": {"input": holders, "as": "each", "in": "$$each.v.permits"}}}


def _refill(rate: float, burst: int, now: float) -> Document:
    """Return the step that adds the tokens that came since the last one."""
    moment = date(now)
    since = {"$max": [0, {"$subtract": [moment, {"$ifNull": ["$refilled_at", moment]}]}]}
    come = {"$multiply": [rate / 1000, since]}  # a difference of dates is in milliseconds
    filled = {"$min": [burst, {"$add": [{"$ifNull": ["$tokens", burst]}, come]}]}
    return {"$set": {"tokens": filled, "refilled_at": {"$max": ["$refilled_at", moment]}}}


def _taking(wanted: int, rate: float, burst: int, now: float, owner: str, number: int) -> list[Document]:
    """Return the update that takes a tenant's tokens, and notes under this number how many."""
    taking = {"owner": owner, "order": number, "count": {"$min": [wanted, {"$floor": "$tokens"}]}}
    former = {"$ifNull": ["$taken", []]}
    left = {"$subtract": ["$tokens", {"$last": "$taken.count"}]}
    full = {"$multiply": [1000, {"$add": [_KEPT, {"$divide": [{"$subtract": [burst, "$tokens"]}, rate]}]}]}
    # How many takings a tenant's document keeps, so that each broker finds its own: more than brokers that
    # take tokens of one tenant at a time
    return [
        _refill(rate, burst, now),
        {"$set": {"taken": {"$slice": [{"$concatArrays": [former, [taking]]}, -16]}}},
        {"$set": {"tokens": left}},
        {"$set": {"remove_at": {"$add": ["$refilled_at", {"$toLong": full}]}}},
    ]


def _bucket(stored: Document, owner: str, number: int) -> TenantBucket:
    taken = field(stored, "taken", LIST)
    counts = [taking["count"] for taking in taken if (taking["owner"], taking["order"]) == (owner, number)]
    left, at = field(stored, "tokens", NUMBER), field(stored, "refilled_at", DATE)
    return TenantBucket(int(counts[-1]) if counts else 0, left, at)


def read_limits(stored: Document) -> None:
    """Check a document of a queue, or of a tenant."""
    _permits(stored)
    field(stored, "tokens", NUMBER, None)
    field(stored, "refilled_at", DATE, None)
    if "remove_at" in stored:
        _bucket(stored, "", 0)
