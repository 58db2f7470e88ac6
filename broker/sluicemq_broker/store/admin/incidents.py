"""What has happened that somebody would like to hear of, in MongoDB: from when until when, and to whom.

::

    incidents: {_id: "backlog/mail/3f2a91bc/1790000000000", kind, queue, broker, at, until, remove_at,
                figures: {...}}

One document an incident and broker, written whole each time it goes on: to write it twice changes nothing,
and a broker that is killed loses what it has noticed since it wrote last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

from pymongo import IndexModel, ReplaceOne

from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.values import Document, date, seconds

#: Days for which they are kept.
INCIDENTS_KEPT: Final = 90


class Incident(NamedTuple):
    """Something of ``kind`` that has happened from ``at`` until ``until``, in Unix seconds of the server.

    ``queue`` is empty where it is about a broker; ``broker`` is whose it is, or who has noticed it.
    """

    kind: str
    queue: str
    broker: str
    at: float
    until: float
    figures: Mapping[str, Any]


class IncidentStore:
    """The incidents of one database."""

    def __init__(self, database: Documents) -> None:
        self._incidents = durable(database)["incidents"]

    def prepare(self) -> None:
        """Make the indexes: for what is over, and for reading the latest."""
        over = IndexModel([("remove_at", 1)], expireAfterSeconds=0)
        with translated():
            self._incidents.create_indexes([over, IndexModel([("until", -1)])])

    def write(self, writer: str, incidents: Iterable[Incident]) -> None:
        """Write these as they are now; one is known by its kind, queue and beginning, and its writer."""
        statements = [
            ReplaceOne({"_id": _id(writer, each)}, _document(each), upsert=True) for each in incidents
        ]
        if statements:
            with translated():
                self._incidents.bulk_write(statements, ordered=False)

    def between(self, since: float, until: float, most: int) -> list[Incident]:
        """Those that touch this time, the latest end first, and at most so many."""
        these = {"until": {"$gte": date(since)}, "at": {"$lte": date(until)}}
        with translated():
            return [_read(each) for each in self._incidents.find(these).sort("until", -1).limit(most)]


def _id(writer: str, incident: Incident) -> str:
    return f"{incident.kind}/{incident.queue or incident.broker}/{writer}/{int(incident.at * 1000)}"


def _document(incident: Incident) -> Document:
    return {
        "kind": incident.kind,
        "queue": incident.queue,
        "broker": incident.broker,
        "at": date(incident.at),
        "until": date(incident.until),
        "remove_at": date(incident.until) + timedelta(days=INCIDENTS_KEPT),
        "figures": dict(incident.figures),
    }


def _read(stored: Document) -> Incident:
    at, until = seconds(stored["at"]), seconds(stored["until"])
    return Incident(stored["kind"], stored["queue"], stored["broker"], at, until, stored["figures"])
