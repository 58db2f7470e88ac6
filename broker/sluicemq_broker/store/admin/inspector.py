"""Inspector: reads of queues for administration: their names, counts, sizes and first jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import bson

from sluicemq.protocol.errors import NotFoundError
from sluicemq_broker.store.admin.counting import COUNTED_EXACTLY, SURELY_MANY, Counting, small_counts
from sluicemq_broker.store.admin.job_view import not_expired, order_shown, shown, state_at
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.documents import QUEUE_PREFIX, collection
from sluicemq_broker.store.jobs.find_packs import find_packed
from sluicemq_broker.store.jobs.indexes import may_have
from sluicemq_broker.store.jobs.pack_contents import alone, opened
from sluicemq_broker.store.values import Document, Jobs
from sluicemq_devices.hub import in_pieces

_WEIGHT: Final = {"weight": {"$bsonSize": "$$ROOT"}}

#: Bytes of a payload, or a result, that is read though only its beginning is wanted.
MOST_CUT: Final = 16_384


def _whole_if_small(name: str) -> Document:
    size: Document = {"$bsonSize": {name: f"${name}"}}
    return {"$cond": [{"$lte": [size, MOST_CUT]}, f"${name}", "$$REMOVE"]}


def _size_of(name: str) -> Document:
    is_binary: Document = {"$eq": [{"$type": f"${name}"}, "binData"]}
    return {"$cond": [is_binary, {"$binarySize": f"${name}"}, "$$REMOVE"]}


#: Steps of a pipeline that leave long payloads and results away, and say how long each is.
_IN_PART: Final[tuple[Document, ...]] = (
    {"$set": {"payload_bytes": _size_of("payload"), "result_bytes": _size_of("result")}},
    {"$set": {"payload": _whole_if_small("payload"), "result": _whole_if_small("result")}},
)


class Inspector:
    """Reads over the queue collections of a database; ``exactly``, ``surely_many``: as :class:`Counting`."""

    def __init__(
        self, database: Documents, *, exactly: int = COUNTED_EXACTLY, surely_many: int = SURELY_MANY
    ) -> None:
        self._database = durable(database)
        self._bounds = {"exactly": exactly, "surely_many": surely_many}

    def names(self) -> list[str]:
        """Return the queues that have a collection."""
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
        """Return when the first ready job became due; None: no job is ready."""
        with translated():
            return self._counting(queue, now).oldest_ready()

    def size(self, queue: str) -> int:
        """Return the bytes of all documents, before compression, as MongoDB keeps them."""
        with translated():
            found = list(self._jobs(queue).aggregate([{"$collStats": {"storageStats": {}}}]))
        return sum(int(document["storageStats"]["size"]) for document in found)  # one for each shard

    def peek(
        self, queue: str, state: str, limit: int, most_bytes: int, now: float, first: int | None = None
    ) -> list[Document]:
        """Return the first ``limit`` jobs of a state, in the order of claims; of a fair queue by tenants.

        With a ``limit`` below zero the last ones, the very last first. Fewer, but one at least, if they have
        more than ``most_bytes``; headers and errors count ``_DEARER`` times, as they are taken apart. A few
        at a time, so that others have their turn.

        ``first``: bytes of each payload and result that are enough, with the number of all. MongoDB can't cut
        them, so those of more than :data:`MOST_CUT` bytes are not read at all.
        """
        rows: list[Document] = []
        with translated():
            found = self._first(queue, state, limit, now, () if first is None else _IN_PART)
            for document in in_pieces(_jobs_in(found, limit, now, first)):
                rows.append(_cut(shown(document, state), first))
                most_bytes -= _weight(document)
                if most_bytes < 0:
                    break
        return rows

    def weigh_first(self, queue: str, state: str, limit: int, now: float, first: int | None = None) -> int:
        """Return the bytes of the documents that :meth:`peek` reads."""
        steps = [*(() if first is None else _IN_PART), {"$project": _WEIGHT}]
        with translated():
            return sum(document["weight"] for document in self._first(queue, state, limit, now, steps))

    def weigh(self, queue: str, job_id: str) -> int:
        """Return the bytes of a job's document; 0: there is none."""
        with translated():
            if packed := self._packed(queue, job_id, 0.0):
                return len(bson.encode(packed))
            found = self._jobs(queue).find_one({"_id": job_id}, _WEIGHT)
        return found["weight"] if found else 0

    def show(self, queue: str, job_id: str, now: float) -> Document:
        """Return all that is stored of a job; raises :class:`NotFound`."""
        with translated():
            # In this order: a job that is lifted out of its pack meanwhile is found alone then.
            packed = self._packed(queue, job_id, now)
            found = self._jobs(queue).find_one({"_id": job_id}) or packed
        if found is None:
            raise NotFoundError(f"job {job_id!r} is not there in queue {queue!r}")
        return shown(found, state_at(found, now))

    def _packed(self, queue: str, job_id: str, now: float) -> Document | None:
        """Return the document that a job in a pack would have alone."""
        packed = find_packed(self._jobs(queue), [job_id]).get(job_id)
        return next(alone(packed.stored, packed.bit, now), None) if packed else None

    def _first(
        self, queue: str, state: str, limit: int, now: float, steps: Iterable[Document] = ()
    ) -> Iterable[Document]:
        """Return the first jobs of a state, as further ``steps`` of a pipeline show them."""
        jobs = self._jobs(queue)
        if not may_have(jobs, state):
            return ()
        sort = {key: way if limit > 0 else -way for key, way in order_shown(jobs, state).sort}
        these = [{"$match": not_expired(state, now)}, {"$sort": sort}]
        return jobs.aggregate(
            [*these, {"$limit": abs(limit)}, *steps], batchSize=20
        )  # a reply is decoded in one turn of the hub

    def _counting(self, queue: str, now: float) -> Counting:
        return Counting(self._jobs(queue), now, **self._bounds)

    def _jobs(self, queue: str) -> Jobs:
        return self._database[collection(queue)]


def _jobs_in(documents: Iterable[Document], limit: int, now: float, first: int | None) -> Iterator[Document]:
    """Yield the jobs in documents, as many as the ``limit`` says; below zero the last first."""
    jobs = (job for document in documents for job in opened(document, now)[:: 1 if limit > 0 else -1])
    for job in islice(jobs, abs(limit)):
        if first is not None and isinstance(job.get("payload"), bytes):
            job.setdefault("payload_bytes", len(job["payload"]))  # it lies in a pack
        yield job


def _cut(row: Document, first: int | None) -> Document:
    """Return a row with the beginnings of its payload and result; ``first``: bytes of each; None: all."""
    for name in ("payload", "result") if first is not None else ():
        if isinstance(row.get(name), bytes):
            row[name] = row[name][:first]
    return row


def _weight(stored: Document) -> int:
    """Return about how many bytes of a payload would cost as much."""
    plain = [stored.get(name) for name in ("payload", "result")]
    dear: Document = {name: stored[name] for name in ("headers", "errors", "raw_headers") if name in stored}
    size = sum(len(value) for value in plain if isinstance(value, bytes | str))
    # A byte of headers and errors costs as much more than one of a payload
    return size + (8 * len(bson.encode(dear)) if dear else 0)
