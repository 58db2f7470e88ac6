"""What people ask of a queue in MongoDB: how many, which, since when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import bson
import gevent

from sluicemq.protocol.errors import NotFound, Unavailable
from sluicemq_broker.job import State
from sluicemq_broker.store.admin.counting import COUNTED_EXACTLY, SURELY_MANY, Counting, small_counts
from sluicemq_broker.store.admin.job_view import alive, order_of, selects, shown, state_at, stored_state
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.documents import QUEUE_PREFIX, SCHEMA
from sluicemq_broker.store.jobs.indexes import may_have
from sluicemq_broker.store.values import Document

#: Jobs that are read and shown at once; one that weighs so many bytes has a turn of the hub for itself.
_PAGE: Final = 20


_HEAVY: Final = 100_000


#: How much dearer a byte of headers and errors is than one of a payload.
_DEARER: Final = 8


_MOMENT: Final = 1e-9  # seconds


_WEIGHT: Final = {"weight": {"$bsonSize": "$$ROOT"}}


class Inspector:
    """Reads over the queue collections of a database; ``exactly``, ``surely_many``: as :class:`Counting`."""

    def __init__(
        self, database: Documents, *, exactly: int = COUNTED_EXACTLY, surely_many: int = SURELY_MANY
    ) -> None:
        self._database = durable(database)
        self._bounds = {"exactly": exactly, "surely_many": surely_many}

    def check_schema(self) -> None:
        """Note this broker's schema number; raises :class:`NewerSchema` if the database has a higher one."""
        with translated():
            meta = self._database["meta"]
            meta.update_one({"_id": "schema"}, {"$max": {"number": SCHEMA}}, upsert=True)
            found = meta.find_one({"_id": "schema"}) or {}
        if found.get("number", SCHEMA) > SCHEMA:
            raise NewerSchema(
                f"database {self._database.name!r} was written by a newer SluiceMQ (schema "
                f"{found['number']}, this one knows {SCHEMA}): upgrade, or use another --database"
            )

    def names(self) -> list[str]:
        """The queues that have a collection."""
        with translated():
            found = self._database.list_collection_names(filter={"name": {"$regex": "^queue\\."}})
        return sorted(name.removeprefix(QUEUE_PREFIX) for name in found)

    def counts(self, queue: str, now: float) -> dict[str, Any]:
        """How many jobs of each state, and since when the oldest one is ready: :meth:`Counting.counts`."""
        with translated():
            return self._counting(queue, now).counts()

    def small_counts(self, queues: Sequence[str], now: float) -> dict[str, dict[str, Any]]:
        """Return the counts of those of these queues that have few jobs: :func:`counting.small_counts`."""
        return small_counts(self._database, queues, now)

    def oldest_ready(self, queue: str, now: float) -> float | None:
        """Since when the job is due that has been due longest; None: no job is ready."""
        with translated():
            return self._counting(queue, now).oldest_ready()

    def size(self, queue: str) -> int:
        """Bytes of all its documents, before compression; MongoDB keeps that sum, and reads none of them."""
        with translated():
            found = list(
                self._database[QUEUE_PREFIX + queue].aggregate([{"$collStats": {"storageStats": {}}}])
            )
        return sum(int(each["storageStats"]["size"]) for each in found)  # one for each shard

    def peek(self, queue: str, state: str, limit: int, most_bytes: int, now: float) -> list[Document]:
        """The first ``limit`` jobs of a state, in the order in which they would be handed out.

        With a ``limit`` below zero the last ones, and the very last first.
        Fewer, but one at least, if they come to more than ``most_bytes``; all but payloads and results
        counts ``_DEARER`` times, for it is taken apart. A few at a time, so that others have their turn.
        """
        rows: list[Document] = []
        with translated():
            jobs = self._database[QUEUE_PREFIX + queue]
            if not may_have(jobs, state):
                return []
            these = selects(state, now) | (alive(now) if stored_state(state) == State.READY else {})
            found = jobs.find(these, batch_size=_PAGE)
            for each in found.sort(_order(state, limit)).limit(abs(limit)):
                rows.append(shown(each, state))
                weight = _weight(each)
                most_bytes -= weight
                if most_bytes < 0:
                    break
                if weight > _HEAVY or len(rows) % _PAGE == 0:
                    gevent.sleep(_MOMENT)
        return rows

    def weigh_first(self, queue: str, state: str, limit: int, now: float) -> int:
        """Bytes of the documents that :meth:`peek` reads."""
        with translated():
            jobs = self._database[QUEUE_PREFIX + queue]
            if not may_have(jobs, state):
                return 0
            these = selects(state, now) | (alive(now) if stored_state(state) == State.READY else {})
            found = jobs.find(these, _WEIGHT).sort(_order(state, limit)).limit(abs(limit))
            return sum(each["weight"] for each in found)

    def weigh(self, queue: str, job_id: str) -> int:
        """Bytes of the document of one job; 0: there is none."""
        with translated():
            found = self._database[QUEUE_PREFIX + queue].find_one({"_id": job_id}, _WEIGHT)
        return found["weight"] if found else 0

    def show(self, queue: str, job_id: str, now: float) -> Document:
        """All that is stored of one job; raises :class:`NotFound`."""
        with translated():
            found = self._database[QUEUE_PREFIX + queue].find_one({"_id": job_id})
        if found is None:
            raise NotFound(f"job {job_id!r} is not there in queue {queue!r}")
        return shown(found, state_at(found, now))

    def _counting(self, queue: str, now: float) -> Counting:
        return Counting(self._database[QUEUE_PREFIX + queue], now, **self._bounds)


class NewerSchema(Unavailable):
    """The database was written by a newer version, whose documents this one can't read."""


def _order(state: str, limit: int) -> list[tuple[str, int]]:
    """How jobs are sorted of which so many are wanted: from the end, if that is below zero."""
    return order_of(state) if limit > 0 else [(key, -way) for key, way in order_of(state)]


def _weight(stored: Document) -> int:
    """About how many bytes of a plain payload it is as dear as."""
    plain = [stored.get(name) for name in ("payload", "result")]
    dear: Document = {name: stored[name] for name in ("headers", "errors", "raw_headers") if name in stored}
    size = sum(len(each) for each in plain if isinstance(each, bytes | str))
    return size + (_DEARER * len(bson.encode(dear)) if dear else 0)
