"""What people ask of a queue in MongoDB: how much, which, and removing what waits."""

from __future__ import annotations

from typing import Any

from broker.mongo import Documents, durable, translated
from broker.store_documents import (
    ANY_PRIORITY,
    ENDED_INDEX,
    ORDER,
    READY_INDEX,
    RESERVED_INDEX,
    SCHEMA,
    Document,
    date,
    seconds,
)
from sluicemq.errors import NotFound, Unavailable

#: Up to so many jobs of a state are counted one by one; above, the figure is an estimate.
COUNTED_EXACTLY = 10_000

_PREFIX = "queue."
_BATCH = 5_000


class Inspector:
    """Reads and removals over the queue collections of one database."""

    def __init__(self, database: Documents) -> None:
        self._database = durable(database)

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
        return sorted(name.removeprefix(_PREFIX) for name in found)

    def counts(self, queue: str, now: float) -> dict[str, Any]:
        """``{ready, scheduled, reserved, done, dead, exact}``.

        Ready and scheduled are estimates above ``COUNTED_EXACTLY`` (then ``exact`` is False).
        """
        jobs = self._database[_PREFIX + queue]
        with translated():
            reserved = jobs.count_documents({"state": "reserved"}, hint=RESERVED_INDEX)
            done, dead = (
                jobs.count_documents(_selects(state, now), hint=ENDED_INDEX) for state in ("done", "dead")
            )
            ready, scheduled = (
                jobs.count_documents(_selects(state, now), hint=READY_INDEX, limit=COUNTED_EXACTLY)
                for state in ("ready", "scheduled")
            )
            rest = jobs.estimated_document_count() - reserved - done - dead
        exact = ready < COUNTED_EXACTLY and scheduled < COUNTED_EXACTLY
        if ready >= COUNTED_EXACTLY:
            ready = max(ready, rest - scheduled)
        elif scheduled >= COUNTED_EXACTLY:
            scheduled = max(scheduled, rest - ready)
        return {
            "ready": ready,
            "scheduled": scheduled,
            "reserved": reserved,
            "done": done,
            "dead": dead,
            "exact": exact,
        }

    def peek(self, queue: str, state: str, limit: int, most_bytes: int, now: float) -> list[Document]:
        """The first ``limit`` jobs of a state, in the order in which they would be handed out.

        Fewer, but one at least, if their payloads come to more than ``most_bytes``.
        """
        shown: list[Document] = []
        with translated():
            found = (
                self._database[_PREFIX + queue].find(_selects(state, now)).sort(_order(state)).limit(limit)
            )
            for each in found:
                shown.append(_shown(each, state))
                most_bytes -= len(each.get("payload", b""))
                if most_bytes < 0:
                    break
        return shown

    def purge(self, queue: str, state: str, now: float) -> int:
        """Remove all jobs of a state, in batches; never those that are reserved. Returns how many."""
        jobs, removed = self._database[_PREFIX + queue], 0
        with translated():
            while True:
                chosen = [each["_id"] for each in jobs.find(_selects(state, now), {"_id": 1}).limit(_BATCH)]
                if not chosen:
                    return removed
                removed += jobs.delete_many(
                    {"_id": {"$in": chosen}, "state": _stored(state)}, hint="_id_"
                ).deleted_count

    def drop(self, queue: str) -> int:
        """Remove a queue with all it holds; returns about how many jobs that were."""
        with translated():
            jobs = self._database[_PREFIX + queue]
            count: int = jobs.estimated_document_count()
            jobs.drop()
        return count

    def cancel(self, queue: str, job_id: str) -> None:
        """Remove one job that waits; raises :class:`NotFound` if there is none or a worker has it."""
        with translated():
            jobs = self._database[_PREFIX + queue]
            if jobs.delete_one({"_id": job_id, "state": {"$in": ["ready", "waiting"]}}).deleted_count:
                return
            found = jobs.find_one({"_id": job_id}, {"state": 1})
        what = f"is {found['state']}" if found else "is not there"
        raise NotFound(f"job {job_id!r} {what} in queue {queue!r}: only a job that waits can be cancelled")


class NewerSchema(Unavailable):
    """The database was written by a newer version, whose documents this one can't read."""


def collection(queue: str) -> str:
    """The name of a queue's collection."""
    return _PREFIX + queue


#: The states that can be asked for; ``scheduled`` is a ``ready`` job that is not due yet.
SHOWN_STATES = ("ready", "scheduled", "waiting", "reserved", "done", "dead")


def _stored(state: str) -> str:
    return "ready" if state == "scheduled" else state


def _selects(state: str, now: float) -> Document:
    """The jobs of a state, in words that MongoDB can answer from the state's own index."""
    if state in ("done", "dead"):
        return {"state": state, "ended_at": {"$exists": True}}
    when = {"ready": {"$lte": date(now)}, "scheduled": {"$gt": date(now)}}.get(state)
    return {"state": _stored(state)} | ({**ANY_PRIORITY, "eligible_at": when} if when else {})


def _order(state: str) -> list[tuple[str, int]]:
    return [("ended_at", 1)] if state in ("done", "dead") else ORDER


def _shown(stored: Document, state: str) -> Document:
    shown = {key: _plain(value) for key, value in stored.items() if key != "_id"}
    return {"id": stored["_id"], **shown, "state": state}


def _plain(value: Any) -> Any:
    """Dates as Unix seconds, also inside lists and maps, since msgpack and JSON know no dates."""
    if hasattr(value, "tzinfo"):
        return seconds(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value
