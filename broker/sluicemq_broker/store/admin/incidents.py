"""Incidents in MongoDB: unusual events of queues and brokers, from when until when.

::

    incidents: {_id: "backlog/mail/3f2a91bc/1790000000000", kind, queue, broker, at, until, remove_at,
                figures: {...}}

One document for each incident and broker, written whole each time it goes on. Writing it twice changes
nothing; a broker that is killed loses what it has noticed since its last write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

from pymongo import IndexModel, ReplaceOne

from sluicemq.protocol.rules import kept
from sluicemq_broker.store.admin.newest import keep_newest
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.creation import by_majority
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.set_aside import DATE, MAP, NUMBER, TEXT, field, readable
from sluicemq_broker.store.values import DAY, Document, date

#: Days for which incidents are kept, and how many are at most.
INCIDENTS_KEPT: Final = 90
MOST_INCIDENTS: Final = 100_000


class Incident(NamedTuple):
    """An incident of ``kind``, from ``at`` until ``until``, in Unix seconds of the server.

    ``queue`` is empty where it concerns a broker; ``broker`` is that broker, or the one that noticed it.
    """

    kind: str
    queue: str
    broker: str
    at: float
    until: float
    figures: Mapping[str, Any]


class IncidentStore:
    """The incidents of one database; ``kept``: seconds for which each is."""

    def __init__(self, database: Documents, kept: float = INCIDENTS_KEPT * DAY) -> None:
        self._kept = timedelta(seconds=kept)
        self._incidents = durable(database)["incidents"]

    def prepare(self) -> None:
        """Make the indexes: for removal, and for reading the latest."""
        over = IndexModel([("remove_at", 1)], expireAfterSeconds=0)
        with translated():
            # failpoint incidents.prepare
            self._incidents.create_indexes(
                [over, IndexModel([("until", -1)])], **by_majority(self._incidents)
            )

    def write(self, writer: str, incidents: Iterable[Incident]) -> None:
        """Write incidents as they are now; each is known by its kind, queue, beginning and writer."""
        statements = [
            ReplaceOne({"_id": _id(writer, incident)}, self._document(incident), upsert=True)
            for incident in incidents
        ]
        if statements:
            with translated():
                # failpoint incidents.write
                self._incidents.bulk_write(statements, ordered=False)

    def trim(self, most: int = MOST_INCIDENTS) -> int:
        """Remove the oldest incidents of too many, as :func:`keep_newest`; return how many."""
        with translated():
            # failpoint incidents.trim
            return keep_newest(self._incidents, "until", most)

    def between(self, since: float, until: float, most: int) -> list[Incident]:
        """Return incidents that touch this time, the latest end first, ``most`` at most."""
        these = {"until": {"$gte": date(since)}, "at": {"$lte": date(until)}}
        with translated():
            found = self._incidents.find(these).sort("until", -1).limit(most)
            return list(readable(self._incidents, found, read_incident))

    def _document(self, incident: Incident) -> Document:
        return {
            "kind": incident.kind,
            "queue": incident.queue,
            "broker": incident.broker,
            "at": date(incident.at),
            "until": date(incident.until),
            "remove_at": date(incident.until) + self._kept,
            "figures": dict(incident.figures),
        }


def _id(writer: str, incident: Incident) -> str:
    return f"{incident.kind}/{incident.queue or incident.broker}/{writer}/{int(incident.at * 1000)}"


_FIGURE: Final = kept(
    "a figure that is a number or a text", lambda value: isinstance(value, int | float | str)
)


def read_incident(stored: Document) -> Incident:
    """Read an incident."""
    kind, queue, broker = (field(stored, name, TEXT) for name in ("kind", "queue", "broker"))
    at, until = field(stored, "at", DATE), field(stored, "until", DATE)
    figures = field(stored, "figures", MAP)
    for name, value in figures.items():
        (NUMBER if name == "count" else _FIGURE)(value)
    return Incident(kind, queue, broker, at, until, figures)
