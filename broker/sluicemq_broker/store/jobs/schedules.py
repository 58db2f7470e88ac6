"""Schedules: recurring jobs, one document each, in the broker's own database.

::

    schedules: {_id: name, queue, payload, headers, cron?, timezone?, every?, begins_at, misfire,
                revision, next_at, paused, last_at?, pushed, from_configuration, added_by?}

``next_at`` is the next run. The broker that pushes it moves ``next_at`` on by compare-and-set, in the
majority transaction that inserts the jobs: of any number of brokers one does, and a crash leaves both or
neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Final

from pymongo import IndexModel
from pymongo.client_session import ClientSession

from sluicemq.protocol.errors import NotFound, QueueFull
from sluicemq_broker.job import Job, Misfire, Timetable
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.creation import by_majority
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.jobs.transactions import insert_with
from sluicemq_broker.store.values import Document, date, seconds

#: Schedules of one database, at most.
MOST_SCHEDULES: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One recurring job: its queue, its payload and its times. ``headers``: its options, as of a push."""

    name: str
    queue: str
    payload: bytes
    timetable: Timetable
    headers: Mapping[str, Any] = field(default_factory=dict)
    misfire: Misfire = Misfire.ONE
    next_at: float = 0.0
    paused: bool = False
    last_at: float | None = None
    pushed: int = 0
    from_configuration: bool = False
    added_by: str = ""
    """Principal whose jobs these are; empty where it has no name."""
    revision: str = ""
    """Tells this schedule from all others that had its name."""

    def same_as(self, other: Schedule) -> bool:
        """Return True if both describe one job at equal times, whatever their next runs."""
        return _said(self) == _said(other)


class ScheduleStore:
    """The schedules of one database. Repeating any of these after a lost reply is harmless."""

    def __init__(self, database: Documents) -> None:
        self.schedules = durable(database)["schedules"]

    def prepare(self) -> None:
        """Make the index of :meth:`due`."""
        with translated():
            due = IndexModel([("paused", 1), ("next_at", 1)], name="due")
            self.schedules.create_indexes([due], **by_majority(self.schedules))

    def all(self) -> list[Schedule]:
        """Return all schedules, by name, without their payloads."""
        with translated():
            return [_read(each) for each in self.schedules.find({}, {"payload": 0}).sort("_id", 1)]

    def one(self, name: str) -> Schedule:
        """Return a schedule; raises :class:`NotFound`."""
        with translated():
            found = self.schedules.find_one({"_id": name})
        if found is None:
            raise NotFound(f"there is no schedule {name!r}")
        return _read(found)

    def put(self, schedule: Schedule) -> None:
        """Store a schedule, or replace it; a paused one stays paused."""
        with translated():
            if self.schedules.count_documents({"_id": {"$ne": schedule.name}}) >= MOST_SCHEDULES:
                raise QueueFull(f"there are {MOST_SCHEDULES} schedules already: remove one")
            begins = date(schedule.timetable.begins_at)
            said = {**_said(schedule), "begins_at": begins, "next_at": date(schedule.next_at)}
            said["revision"] = token_hex(8)
            gone = {key: "" for key in ("cron", "timezone", "every", "added_by") if key not in said}
            new = {"paused": False, "pushed": 0}
            update: Document = {"$set": said, "$setOnInsert": new, **({"$unset": gone} if gone else {})}
            self.schedules.update_one({"_id": schedule.name}, update, upsert=True)

    def put_configured(self, schedule: Schedule) -> None:
        """Store a schedule of the configuration; an equal one keeps its next run, perhaps overdue."""
        with translated():
            found = self.schedules.find_one({"_id": schedule.name})
        if found is None or not _read(found).same_as(schedule):
            self.put(schedule)

    def remove(self, name: str) -> None:
        """Remove a schedule; raises :class:`NotFound`."""
        with translated():
            if not self.schedules.delete_one({"_id": name}).deleted_count:
                raise NotFound(f"there is no schedule {name!r}")

    def pause(self, name: str) -> None:
        """Push nothing until :meth:`resume`; raises :class:`NotFound`."""
        self._change(name, {"paused": True})

    def resume(self, name: str, next_at: float, begins_at: float) -> None:
        """Go on with that run; runs during the pause were not missed. Raises :class:`NotFound`."""
        self._change(name, {"paused": False, "next_at": date(next_at), "begins_at": date(begins_at)})

    def due(self, now: float) -> list[str]:
        """Return the names of schedules with a run that is due."""
        over = {**_RUNS, "next_at": {"$lte": date(now)}}
        with translated():
            return [each["_id"] for each in self.schedules.find(over, {"_id": 1})]

    def push(
        self, schedule: Schedule, next_at: float, jobs: Sequence[Job], queue: QueueStore, now: float
    ) -> Sequence[Job] | None:
        """Move a schedule on and push the jobs of its run whose ids are not there: both or neither.

        Return the jobs that were pushed; None if another broker was first, or the schedule was changed or
        paused meanwhile. Raises :class:`DifferentStore` on a MongoDB without transactions.

        Crash before: another broker, or this one when it is back, pushes the run. After: it is pushed. The
        driver repeats a commit whose reply was lost, under the transaction's number; if that is not answered
        either, the next look at ``next_at`` shows what holds.
        """

        def move_on(new: Sequence[Job], session: ClientSession) -> bool:
            return self._move_on(schedule, next_at, len(new), now, session)

        return insert_with(queue, jobs, now, move_on, "schedules")

    def _move_on(
        self, schedule: Schedule, next_at: float, count: int, now: float, session: ClientSession
    ) -> bool:
        """Move ``next_at`` on by compare-and-set; False if another broker was first."""
        seen = {"_id": schedule.name, "revision": schedule.revision, **_RUNS}
        seen["next_at"] = date(schedule.next_at)
        moved: Document = {"next_at": date(next_at), **({"last_at": date(now)} if count else {})}
        update = {"$set": moved, "$inc": {"pushed": count}}
        return self.schedules.update_one(seen, update, session=session).matched_count == 1

    def _change(self, name: str, fields: Document) -> None:
        with translated():
            if not self.schedules.update_one({"_id": name}, {"$set": fields}).matched_count:
                raise NotFound(f"there is no schedule {name!r}")


#: Filter for schedules that are not paused.
_RUNS: Final[Document] = {"paused": False}


def _said(schedule: Schedule) -> Document:
    """Return the fields of a schedule, without its next run."""
    table = schedule.timetable
    when: Document = (
        {"every": table.every} if table.every else {"cron": table.cron, "timezone": table.timezone}
    )
    return {
        "queue": schedule.queue,
        "payload": schedule.payload,
        "headers": dict(schedule.headers),
        "misfire": str(schedule.misfire),
        "from_configuration": schedule.from_configuration,
        **({"added_by": schedule.added_by} if schedule.added_by else {}),
        **when,
    }


def _read(stored: Document) -> Schedule:
    begins = stored.get("begins_at")
    table = Timetable(
        stored.get("cron", ""),
        stored.get("timezone", "UTC"),
        stored.get("every", 0.0),
        seconds(begins) if begins else 0.0,
    )
    last = stored.get("last_at")
    return Schedule(
        name=stored["_id"],
        queue=stored["queue"],
        payload=stored.get("payload", b""),
        timetable=table,
        headers=stored.get("headers", {}),
        misfire=Misfire(stored["misfire"]),
        next_at=seconds(stored["next_at"]),
        paused=stored["paused"],
        last_at=None if last is None else seconds(last),
        pushed=stored.get("pushed", 0),
        from_configuration=stored.get("from_configuration", False),
        added_by=stored.get("added_by", ""),
        revision=stored["revision"],
    )
