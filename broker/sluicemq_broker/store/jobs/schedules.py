"""Schedules: recurring jobs, one document each, in the broker's own database.

::

    schedules: {_id: name, queue, payload, headers, cron?, timezone?, every?, begins_at, misfire,
                revision, next_at, paused, last_at?, pushed, skipped?, from_configuration, added_by?}

``next_at`` is the next run. The broker that pushes it moves ``next_at`` on by compare-and-set, in the
majority transaction that inserts the jobs: of any number of brokers one does, and a crash leaves both or
neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field as of_dataclass
from secrets import token_hex
from typing import Any, Final

from pymongo import IndexModel
from pymongo.client_session import ClientSession
from pymongo.errors import DuplicateKeyError

from sluicemq.protocol.errors import NotFoundError, QueueFullError, UnavailableError
from sluicemq_broker.job import Job, Misfire, Timetable
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.creation import by_majority
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.jobs.transactions import insert_with
from sluicemq_broker.store.set_aside import (
    BINARY,
    COUNT,
    DATE,
    FLAG,
    NUMBER,
    PLAIN_MAP,
    TEXT,
    Damaged,
    field,
    read_one,
    read_or_damaged,
    readable,
)
from sluicemq_broker.store.values import Document, date

#: Schedules of one database, at most.
MOST_SCHEDULES: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One recurring job: its queue, its payload and its times. ``headers``: its options, as of a push."""

    name: str
    queue: str
    payload: bytes
    timetable: Timetable
    headers: Mapping[str, Any] = of_dataclass(default_factory=dict)
    misfire: Misfire = Misfire.ONE
    next_at: float = 0.0
    paused: bool = False
    last_at: float | None = None
    pushed: int = 0
    skipped: int = 0
    """Missed runs that were left out."""
    from_configuration: bool = False
    added_by: str = ""
    """Principal whose jobs these are; empty where it has no name."""
    revision: str = ""
    """Tells this schedule from all others that had its name."""

    @property
    def described(self) -> Document:
        """All that somebody has said of it: not its next run, and what became of the former ones."""
        return {**self.times, **_without_times(self)}

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
            # failpoint schedules.prepare
            self.schedules.create_indexes([due], **by_majority(self.schedules))

    def all(self) -> list[Schedule]:
        """Return all schedules, by name, without their payloads."""
        found = self.schedules.find({}, {"payload": 0}).sort("_id", 1)
        with translated():
            return list(readable(self.schedules, found, _read))

    def one(self, name: str) -> Schedule:
        """Return a schedule; raises :class:`NotFound`, also if it can't be read."""
        with translated():
            found = self.schedules.find_one({"_id": name})
        if found is None:
            raise NotFoundError(f"there is no schedule {name!r}")
        return read_one(self.schedules, found, read_schedule)

    def queue_of(self, name: str) -> str:
        """Return the queue of a schedule, also of a damaged one; raises :class:`NotFound`."""
        with translated():
            found = self.schedules.find_one({"_id": name}, {"queue": 1})
        if found is None:
            raise NotFoundError(f"there is no schedule {name!r}")
        return read_one(self.schedules, found, lambda stored: str(field(stored, "queue", TEXT)))

    def put(self, schedule: Schedule) -> bool:
        """Store a schedule, or replace it; False: it is there, just so.

        One that has equal times keeps its next run, perhaps overdue. A paused one stays paused.
        """
        with translated():
            # How often others may change a schedule between reading and replacing it.
            for _ in range(20):
                found = self.schedules.find_one({"_id": schedule.name})
                stored = None if found is None else read_or_damaged(self.schedules, found, read_schedule)
                if isinstance(stored, Schedule) and stored.described == schedule.described:
                    return False
                if self._replace(stored, schedule) if stored else self._add(schedule):
                    return True
        raise UnavailableError(f"schedule {schedule.name!r} is changed by others all the time: ask again")

    def _add(self, schedule: Schedule) -> bool:
        """Store a new schedule; False: another broker has made it just now."""
        if self.schedules.count_documents({}) >= MOST_SCHEDULES:
            raise QueueFullError(f"there are {MOST_SCHEDULES} schedules already: remove one")
        new = {"_id": schedule.name, **_written(schedule), **_planned(schedule), "paused": False, "pushed": 0}
        with suppress(DuplicateKeyError):
            # failpoint schedules.add
            self.schedules.insert_one(new)
            return True
        return False

    def _replace(self, stored: Schedule | Damaged, schedule: Schedule) -> bool:
        """Replace what is said of a schedule; False: it was changed, or removed, since it was read."""
        said, seen = _written(schedule), {"_id": schedule.name}
        if isinstance(stored, Damaged):
            said |= {**_planned(schedule), "paused": False, "pushed": 0}
        else:
            seen["revision"] = stored.revision
            if stored.times != schedule.times:
                said |= _planned(schedule)
        gone = {key: "" for key in ("cron", "timezone", "every", "added_by") if key not in said}
        # failpoint schedules.replace
        return self.schedules.update_one(seen, {"$set": said, "$unset": gone}).matched_count == 1

    def remove(self, name: str) -> None:
        """Remove a schedule; raises :class:`NotFound`."""
        with translated():
            # failpoint schedules.remove
            if not self.schedules.delete_one({"_id": name}).deleted_count:
                raise NotFoundError(f"there is no schedule {name!r}")

    def pause(self, name: str) -> bool:
        """Push nothing until :meth:`resume`; False: it was paused. Raises :class:`NotFound`."""
        # failpoint schedules.pause
        return self._change(name, {"paused": True})

    def pause_all(self) -> int:
        """Pause all schedules; return how many there are."""
        with translated():
            # failpoint schedules.pause_all
            return self.schedules.update_many({}, {"$set": {"paused": True}}).matched_count

    def resume(self, name: str, next_at: float, begins_at: float) -> None:
        """Go on with that run; runs during the pause were not missed. Raises :class:`NotFound`."""
        # failpoint schedules.resume
        self._change(name, {"paused": False, "next_at": date(next_at), "begins_at": date(begins_at)})

    def due(self, now: float) -> list[str]:
        """Return the names of schedules with a run that is due."""
        over = {**_RUNS, "next_at": {"$lte": date(now)}}
        with translated():
            return [document["_id"] for document in self.schedules.find(over, {"_id": 1})]

    def push(
        self,
        schedule: Schedule,
        next_at: float,
        jobs: Sequence[Job],
        queue: QueueStore,
        now: float,
        skipped: int = 0,
    ) -> Sequence[Job] | None:
        """Move a schedule on and push the jobs of its run whose ids are not there: both or neither.

        ``skipped``: missed runs that are left out.

        Return the jobs that were pushed; None if another broker was first, or the schedule was changed or
        paused meanwhile. Raises :class:`DifferentStore` on a MongoDB without transactions.

        Crash before: another broker, or this one when it is back, pushes the run. After: it is pushed. The
        driver repeats a commit whose reply was lost, under the transaction's number; if that is not answered
        either, the next look at ``next_at`` shows what holds.
        """

        def advance(new: Sequence[Job], session: ClientSession) -> bool:
            counts = {"pushed": len(new), "skipped": skipped}
            return self._advance(schedule, next_at, counts, now, session)

        # failpoint schedules
        return insert_with(queue, jobs, now, advance, "schedules")

    def _advance(
        self, schedule: Schedule, next_at: float, counts: dict[str, int], now: float, session: ClientSession
    ) -> bool:
        """Move ``next_at`` on by compare-and-set; False if another broker was first."""
        seen = {"_id": schedule.name, "revision": schedule.revision, **_RUNS}
        seen["next_at"] = date(schedule.next_at)
        moved: Document = {"next_at": date(next_at), **({"last_at": date(now)} if counts["pushed"] else {})}
        update = {"$set": moved, "$inc": counts}
        # failpoint schedules.move_on
        return self.schedules.update_one(seen, update, session=session).matched_count == 1

    def _change(self, name: str, fields: Document) -> bool:
        with translated():
            # failpoint *
            found = self.schedules.update_one({"_id": name}, {"$set": fields})
        if not found.matched_count:
            raise NotFoundError(f"there is no schedule {name!r}")
        return found.modified_count > 0


#: Filter for schedules that are not paused.
_RUNS: Final[Document] = {"paused": False}


def _written(schedule: Schedule) -> Document:
    """Return the fields that are written whenever something else is said of a schedule."""
    return {**schedule.described, "revision": token_hex(8)}


def _planned(schedule: Schedule) -> Document:
    """Return the fields that plan its next run."""
    return {"begins_at": date(schedule.timetable.begins_at), "next_at": date(schedule.next_at)}


def _without_times(schedule: Schedule) -> Document:
    """Return the fields of a schedule that don't say when it runs."""
    return {
        "queue": schedule.queue,
        "payload": schedule.payload,
        "headers": dict(schedule.headers),
        "misfire": str(schedule.misfire),
        "from_configuration": schedule.from_configuration,
        **({"added_by": schedule.added_by} if schedule.added_by else {}),
    }


def read_schedule(stored: Document) -> Schedule:
    """Read a schedule with its payload. Its times may be unknown to this host alone: see ``problem``."""
    field(stored, "payload", BINARY)
    return _read(stored)


def _read(stored: Document) -> Schedule:
    """Read a schedule without its payload, or with it."""
    table = Timetable(
        field(stored, "cron", TEXT, ""),
        field(stored, "timezone", TEXT, "UTC"),
        field(stored, "every", NUMBER, 0.0),
        field(stored, "begins_at", DATE, 0.0),
    )
    return Schedule(
        name=field(stored, "_id", TEXT),
        queue=field(stored, "queue", TEXT),
        payload=field(stored, "payload", BINARY, b""),
        timetable=table,
        headers=field(stored, "headers", PLAIN_MAP, {}),
        misfire=Misfire(field(stored, "misfire", TEXT)),
        next_at=field(stored, "next_at", DATE),
        paused=field(stored, "paused", FLAG),
        last_at=field(stored, "last_at", DATE, None),
        pushed=field(stored, "pushed", COUNT, 0),
        skipped=field(stored, "skipped", COUNT, 0),
        from_configuration=field(stored, "from_configuration", FLAG, default=False),
        added_by=field(stored, "added_by", TEXT, ""),
        revision=field(stored, "revision", TEXT),
    )
