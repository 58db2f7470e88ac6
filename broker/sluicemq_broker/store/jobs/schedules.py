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
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Final

from pymongo import IndexModel
from pymongo.client_session import ClientSession
from pymongo.errors import DuplicateKeyError

from sluicemq.protocol.errors import NotFound, QueueFull, Unavailable
from sluicemq_broker.job import Job, Misfire, Timetable
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.creation import by_majority
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.jobs.transactions import insert_with
from sluicemq_broker.store.values import Document, date, seconds

#: Schedules of one database, at most.
MOST_SCHEDULES: Final = 1000
#: How often others may change a schedule between reading and replacing it.
_TRIES: Final = 20


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

    @property
    def described(self) -> Document:
        """All that somebody has said of it: not its next run, and what became of the former ones."""
        return {**self.times, **_said(self)}

    @property
    def times(self) -> Document:
        """When it runs; for one that runs every some seconds, without the time from which they count."""
        table = self.timetable
        return {"every": table.every} if table.every else {"cron": table.cron, "timezone": table.timezone}


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

    def put(self, schedule: Schedule) -> bool:
        """Store a schedule, or replace it; False: it is there, just so.

        One that has equal times keeps its next run, perhaps overdue. A paused one stays paused.
        """
        with translated():
            for _ in range(_TRIES):
                found = self.schedules.find_one({"_id": schedule.name})
                stored = found and _read(found)
                if stored and stored.described == schedule.described:
                    return False
                if self._replace(stored, schedule) if stored else self._add(schedule):
                    return True
        raise Unavailable(f"schedule {schedule.name!r} is changed by others all the time: ask again")

    def _add(self, schedule: Schedule) -> bool:
        """Store a new schedule; False: another broker has made it just now."""
        if self.schedules.count_documents({}) >= MOST_SCHEDULES:
            raise QueueFull(f"there are {MOST_SCHEDULES} schedules already: remove one")
        new = {"_id": schedule.name, **_written(schedule), **_planned(schedule), "paused": False, "pushed": 0}
        with suppress(DuplicateKeyError):
            self.schedules.insert_one(new)
            return True
        return False

    def _replace(self, stored: Schedule, schedule: Schedule) -> bool:
        """Replace what is said of a schedule; False: it was changed, or removed, since it was read."""
        said = _written(schedule)
        if stored.times != schedule.times:
            said |= _planned(schedule)
        gone = {key: "" for key in ("cron", "timezone", "every", "added_by") if key not in said}
        seen = {"_id": stored.name, "revision": stored.revision}
        return self.schedules.update_one(seen, {"$set": said, "$unset": gone}).matched_count == 1

    def remove(self, name: str) -> None:
        """Remove a schedule; raises :class:`NotFound`."""
        with translated():
            if not self.schedules.delete_one({"_id": name}).deleted_count:
                raise NotFound(f"there is no schedule {name!r}")

    def pause(self, name: str) -> bool:
        """Push nothing until :meth:`resume`; False: it was paused. Raises :class:`NotFound`."""
        return self._change(name, {"paused": True})

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

    def _change(self, name: str, fields: Document) -> bool:
        with translated():
            found = self.schedules.update_one({"_id": name}, {"$set": fields})
        if not found.matched_count:
            raise NotFound(f"there is no schedule {name!r}")
        return found.modified_count > 0


#: Filter for schedules that are not paused.
_RUNS: Final[Document] = {"paused": False}


def _written(schedule: Schedule) -> Document:
    """Return the fields that are written whenever something else is said of a schedule."""
    return {**schedule.described, "revision": token_hex(8)}


def _planned(schedule: Schedule) -> Document:
    """Return the fields that plan its next run."""
    return {"begins_at": date(schedule.timetable.begins_at), "next_at": date(schedule.next_at)}


def _said(schedule: Schedule) -> Document:
    """Return the fields of a schedule that don't say when it runs."""
    return {
        "queue": schedule.queue,
        "payload": schedule.payload,
        "headers": dict(schedule.headers),
        "misfire": str(schedule.misfire),
        "from_configuration": schedule.from_configuration,
        **({"added_by": schedule.added_by} if schedule.added_by else {}),
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
