"""Damaged documents of a database, for the doctor: all collections are read as brokers read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pymongo.collection import Collection

from sluicemq_broker.store.admin.audit import read_audited
from sluicemq_broker.store.admin.history import read_day, read_month
from sluicemq_broker.store.admin.incidents import read_incident
from sluicemq_broker.store.admin.logins import read_login
from sluicemq_broker.store.admin.principals import read_principal
from sluicemq_broker.store.admin.queue_records import read_record
from sluicemq_broker.store.admin.revisions import LAST, read_last
from sluicemq_broker.store.admin.tasks import read_task
from sluicemq_broker.store.cluster.configurations import read_tables
from sluicemq_broker.store.cluster.leases import read_broker
from sluicemq_broker.store.cluster.limits import read_limits
from sluicemq_broker.store.cluster.schema import read_numbers
from sluicemq_broker.store.connection import Documents
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.schedules import read_schedule
from sluicemq_broker.store.set_aside import Damaged, Reader, read_or_damaged
from sluicemq_broker.store.streams.segments import HEAD, OUTLINE, head_of, segment_of
from sluicemq_broker.store.streams.stream_store import STREAM_PREFIX
from sluicemq_broker.store.streams.subscriptions import read_subscription
from sluicemq_broker.store.values import Document

#: Documents of one collection, and of one stream, that are read: the latest.
_MOST: Final = 10_000
_MOST_SEGMENTS: Final = 1000
_OUTLINE: Final = {**OUTLINE, "first": 1, "removed": 1}
#: Documents in one reply: those of the history are large.
_AT_ONCE: Final = 100


def _meta(stored: Document) -> object:
    return read_numbers(stored) if stored["_id"] == "schema" else None


def _revised(read: Reader[object]) -> Reader[object]:
    """Return the reader of documents that brokers follow, and of the one with their last revision."""
    return lambda stored: read_last(stored) if stored["_id"] == LAST else read(stored)


#: How brokers read the documents of each collection. Those of jobs have a rule of their own, ``bus`` is read
#: once, and ``places`` has only counters of the server's.
READERS: Final[Mapping[str, Reader[object]]] = {
    "audit": read_audited,
    "configurations": read_tables,
    "history": read_day,
    "history_months": read_month,
    "incidents": read_incident,
    "limits": read_limits,
    "logins": _revised(read_login),
    "meta": _meta,
    "owners": read_broker,
    "principals": _revised(read_principal),
    "queues": _revised(read_record),
    "schedules": read_schedule,
    "subscriptions": read_subscription,
    "tasks": read_task,
}


def damaged_documents(database: Documents) -> Iterator[Damaged]:
    """Yield the documents that brokers can't read; of large collections the latest are looked at."""
    with translated():
        for name in sorted(database.list_collection_names()):
            if name in READERS:
                yield from _damaged(database[name], READERS[name], None, _MOST)
            elif name.startswith(STREAM_PREFIX):
                yield from _damaged(database[name], _in_stream, _OUTLINE, _MOST_SEGMENTS)


def _in_stream(stored: Document) -> object:
    return head_of(stored) if stored["_id"] == HEAD else segment_of(stored)


def _damaged(
    documents: Collection[Any], read: Reader[object], fields: Document | None, most: int
) -> Iterator[Damaged]:
    for each in documents.find({}, fields).sort("$natural", -1).limit(most).batch_size(_AT_ONCE):
        found = read_or_damaged(documents, each, read)
        if isinstance(found, Damaged):
            yield found
