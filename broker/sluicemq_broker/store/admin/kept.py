"""Sizes of the collections of a database, beside those of queues and streams, and the room on its disk."""

from __future__ import annotations

from typing import NamedTuple

from sluicemq_broker.store.admin.collections import COLLECTIONS, LEFT, PREFIXES
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.documents import PUT_ASIDE
from sluicemq_broker.store.jobs.removed_queues import EMPTY
from sluicemq_broker.store.values import date, seconds


class Measured(NamedTuple):
    """A collection: its documents, their bytes with indexes on the disk, the time of the oldest one."""

    name: str
    documents: int
    bytes: int
    oldest: float | None


class Disk(NamedTuple):
    """Bytes of a database with its indexes; of its disk, those that are free, and all."""

    used: int
    free: int
    total: int


def measure(database: Documents) -> list[Measured]:
    """Measure the collections that are not named by a queue or a stream; those of somebody else, too.

    Of collections of removed queues only the number is known.
    """
    with translated():
        names = database.list_collection_names()
        left = sum(name.startswith((PUT_ASIDE, EMPTY)) for name in names)
        own = sorted(name for name in names if not name.startswith((*PREFIXES, "system.")))
        return [
            Measured(LEFT, left, 0, None),
            *(_measured(durable(database), collection) for collection in own),
        ]


def disk_of(database: Documents) -> Disk:
    """Return the room on the disk of a database, as MongoDB sees it."""
    with translated():
        stats = database.command("dbStats")
    total = int(stats.get("fsTotalSize", 0))  # 0 of a database that is not there
    used = int(stats["storageSize"]) + int(stats["indexSize"])
    return Disk(used, total - int(stats.get("fsUsedSize", 0)), total)


def _measured(database: Documents, name: str) -> Measured:
    documents = database[name]
    parts = [
        document["storageStats"] for document in documents.aggregate([{"$collStats": {"storageStats": {}}}])
    ]
    size = sum(int(part["storageSize"]) + int(part["totalIndexSize"]) for part in parts)  # of each shard
    oldest = None
    about = COLLECTIONS.get(name)
    if about and about.dates:
        by, shown = about.dates
        first = documents.find_one({by: {"$gte": date(0)}}, {shown: 1}, sort=[(by, 1)])
        oldest = seconds(first[shown]) if first else None
    return Measured(name, sum(int(part["count"]) for part in parts), size, oldest)
