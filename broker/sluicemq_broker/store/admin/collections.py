"""The registry of a database's collections: how each is bounded, read, and treated by a restore."""

from __future__ import annotations

from typing import Final, NamedTuple

from sluicemq_broker.runtime import of_time
from sluicemq_broker.store.admin.audit import MOST_AUDITED, AuditKind, read_audited
from sluicemq_broker.store.admin.history import MONTHS_KEPT, MOST_DAYS, read_day, read_month
from sluicemq_broker.store.admin.incidents import MOST_INCIDENTS, read_incident
from sluicemq_broker.store.admin.logins import read_login
from sluicemq_broker.store.admin.principals import MOST_PRINCIPALS, read_principal
from sluicemq_broker.store.admin.queue_records import read_record
from sluicemq_broker.store.admin.revisions import LAST, read_last
from sluicemq_broker.store.admin.tasks import read_task
from sluicemq_broker.store.cluster.configurations import read_tables
from sluicemq_broker.store.cluster.figures import read_figures
from sluicemq_broker.store.cluster.leases import read_broker
from sluicemq_broker.store.cluster.limits import read_limits
from sluicemq_broker.store.cluster.schema import read_numbers
from sluicemq_broker.store.jobs.documents import PUT_ASIDE, QUEUE_PREFIX
from sluicemq_broker.store.jobs.removed_queues import EMPTY
from sluicemq_broker.store.jobs.schedules import MOST_SCHEDULES, read_schedule
from sluicemq_broker.store.set_aside import Reader
from sluicemq_broker.store.streams.stream_store import STREAM_PREFIX
from sluicemq_broker.store.streams.subscriptions import MOST_SUBSCRIPTIONS, read_subscription
from sluicemq_broker.store.values import DAY, Document

#: The name under which the collections of removed queues are measured together.
LEFT: Final = "removed"


class Collection(NamedTuple):
    """A collection and its bound in words; ``most``: documents, where they are bounded in number, too.

    ``dates``: of one whose documents go with time, the indexed date by which the first one goes, and the date
    by which people know it. ``read``: how brokers read its documents; None: they follow no such rule.
    ``at_start``: a broker writes it by itself when it starts on a new database, so a restore may replace it.
    """

    bound: str
    most: int | None = None
    dates: tuple[str, str] | None = None
    read: Reader[object] | None = None
    at_start: bool = True


def _of_days(days: float, most: int | None, *dates: str) -> Collection:
    number = "" if most is None else f", {most:,}"
    return Collection(f"{of_time(days * DAY)}{number}", most, (dates[0], dates[-1]))


def _read_meta(stored: Document) -> object:
    return read_numbers(stored) if stored["_id"] == "schema" else None


def _revised(read: Reader[object]) -> Reader[object]:
    """Return the reader of documents that brokers follow, and of the one with their last revision."""
    return lambda stored: read_last(stored) if stored["_id"] == LAST else read(stored)


_AUDITED: Final = len(AuditKind) * MOST_AUDITED

#: All collections of a broker that are named by no queue or stream: what is here is shown, checked by the
#: doctor and restored. ``bus`` is read once, and ``places`` has only counters of the server's.
COLLECTIONS: Final[dict[str, Collection]] = {
    "audit": Collection(f"audit_retention, {_AUDITED:,}", _AUDITED, ("at", "at"), read=read_audited),
    "bus": Collection("1 MiB"),
    "configurations": _of_days(1, None, "used_at")._replace(read=read_tables),
    "figures": _of_days(1 / 24, None, "at")._replace(read=read_figures),
    "history": Collection(
        f"history_retention, {MOST_DAYS:,}", MOST_DAYS, ("remove_at", "day"), read=read_day
    ),
    "history_months": _of_days(MONTHS_KEPT, MOST_DAYS, "remove_at", "month")._replace(read=read_month),
    "incidents": Collection(
        f"incident_retention, {MOST_INCIDENTS:,}", MOST_INCIDENTS, ("until", "until"), read=read_incident
    ),
    "limits": Collection("its queues: a day longer", read=read_limits),
    "logins": _of_days(1, None, "removed_at")._replace(read=_revised(read_login)),
    "meta": Collection("a few documents", read=_read_meta),
    "owners": _of_days(1, None, "ended_at")._replace(read=read_broker),
    "places": Collection("its queues: a day longer"),
    "principals": Collection(
        f"{MOST_PRINCIPALS:,}", MOST_PRINCIPALS, read=_revised(read_principal), at_start=False
    ),
    "queues": Collection("orders that hold: a day longer", read=_revised(read_record), at_start=False),
    "schedules": Collection(f"{MOST_SCHEDULES:,}", MOST_SCHEDULES, read=read_schedule),
    "subscriptions": Collection(f"{MOST_SUBSCRIPTIONS:,}", MOST_SUBSCRIPTIONS, read=read_subscription),
    "tasks": _of_days(1, None, "ended_at")._replace(read=read_task, at_start=False),
    LEFT: Collection("a minute, or until their jobs' parents know", at_start=False),
}
#: Prefixes of the collections that are named by a queue or a stream.
PREFIXES: Final = (QUEUE_PREFIX, STREAM_PREFIX, PUT_ASIDE, EMPTY)
