"""Sizes of the collections of a database, beside those of queues and streams, and the room on its disk."""

from __future__ import annotations

from typing import Final, NamedTuple

from sluicemq_broker.runtime import of_time
from sluicemq_broker.store.admin.audit import MOST_AUDITED, AuditKind
from sluicemq_broker.store.admin.history import MONTHS_KEPT, MOST_DAYS
from sluicemq_broker.store.admin.incidents import MOST_INCIDENTS
from sluicemq_broker.store.admin.principals import MOST_PRINCIPALS
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.documents import PUT_ASIDE, QUEUE_PREFIX
from sluicemq_broker.store.jobs.removed_queues import EMPTY
from sluicemq_broker.store.jobs.schedules import MOST_SCHEDULES
from sluicemq_broker.store.streams.stream_store import STREAM_PREFIX
from sluicemq_broker.store.streams.subscriptions import MOST_SUBSCRIPTIONS
from sluicemq_broker.store.values import date, seconds

#: The name under which the collections of removed queues are measured together.
LEFT: Final = "removed"


class Collection(NamedTuple):
    """A collection and its bound in words; ``most``: documents, where they are bounded in number, too.

    ``dates``: of one whose documents go with time, the indexed date by which the first one goes, and the date
    by which people know it.
    """

    bound: str
    most: int | None = None
    dates: tuple[str, str] | None = None


def _of_days(days: float, most: int | None, *dates: str) -> Collection:
    number = "" if most is None else f", {most:,}"
    return Collection(f"{of_time(days * _DAY)}{number}", most, (dates[0], dates[-1]))


_DAY: Final = 86_400.0
_AUDITED: Final = len(AuditKind) * MOST_AUDITED
_WITH_QUEUES: Final = "its queues: a day longer"

#: All collections of a broker that are named by no queue or stream.
COLLECTIONS: Final[dict[str, Collection]] = {
    "audit": Collection(f"audit_retention, {_AUDITED:,}", _AUDITED, ("at", "at")),
    "bus": Collection("1 MiB"),
    "configurations": _of_days(1, None, "used_at"),
    "history": Collection(f"history_retention, {MOST_DAYS:,}", MOST_DAYS, ("remove_at", "day")),
    "history_months": _of_days(MONTHS_KEPT, MOST_DAYS, "remove_at", "month"),
    "incidents": Collection(f"incident_retention, {MOST_INCIDENTS:,}", MOST_INCIDENTS, ("until", "until")),
    "limits": Collection(_WITH_QUEUES),
    "logins": _of_days(1, None, "removed_at"),
    "meta": Collection("a few documents"),
    "owners": _of_days(1, None, "ended_at"),
    "places": Collection(_WITH_QUEUES),
    "principals": Collection(f"{MOST_PRINCIPALS:,}", MOST_PRINCIPALS),
    "queues": Collection("orders that hold: a day longer"),
    "schedules": Collection(f"{MOST_SCHEDULES:,}", MOST_SCHEDULES),
    "subscriptions": Collection(f"{MOST_SUBSCRIPTIONS:,}", MOST_SUBSCRIPTIONS),
    "tasks": _of_days(1, None, "ended_at"),
    LEFT: Collection("a minute, or until their jobs' parents know"),
}
#: Prefixes of the collections that are named by a queue or a stream.
PREFIXES: Final = (QUEUE_PREFIX, STREAM_PREFIX, PUT_ASIDE, EMPTY)


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
        left = sum(each.startswith((PUT_ASIDE, EMPTY)) for each in names)
        own = sorted(each for each in names if not each.startswith((*PREFIXES, "system.")))
        return [Measured(LEFT, left, 0, None), *(_measured(durable(database), each) for each in own)]


def disk_of(database: Documents) -> Disk:
    """Return the room on the disk of a database, as MongoDB sees it."""
    with translated():
        stats = database.command("dbStats")
    total = int(stats.get("fsTotalSize", 0))  # 0 of a database that is not there
    used = int(stats["storageSize"]) + int(stats["indexSize"])
    return Disk(used, total - int(stats.get("fsUsedSize", 0)), total)


def _measured(database: Documents, name: str) -> Measured:
    documents = database[name]
    parts = [each["storageStats"] for each in documents.aggregate([{"$collStats": {"storageStats": {}}}])]
    size = sum(int(each["storageSize"]) + int(each["totalIndexSize"]) for each in parts)  # of each shard
    oldest = None
    about = COLLECTIONS.get(name)
    if about and about.dates:
        by, shown = about.dates
        first = documents.find_one({by: {"$gte": date(0)}}, {shown: 1}, sort=[(by, 1)])
        oldest = seconds(first[shown]) if first else None
    return Measured(name, sum(int(each["count"]) for each in parts), size, oldest)
