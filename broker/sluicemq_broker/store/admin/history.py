"""History: what was counted in each minute, hour and day, one document for a subject and a day.

::

    history: {_id: "queue/mail/2026-11-22", subject, name, day, remove_at,
              total: {pushed: 17, ...},
              hours: {"13": {total: {...}, minutes: {"07": {pushed: 2, ...}, ...}}, ...},
              flushes: {writer: number}, minutes_removed?, rolled_up?}
    history_months: {_id: "queue/mail/2026-11", subject, name, month, remove_at, total?, days: {"22": {...}}}

Minutes are nested under hours, since an update searches a field from the first one on: past 23 hours and 59
minutes at most, not past 1,439. So the last minute of a day costs about as much as the first, instead of
twice as much (``benchmarks/history.py``). A document is made with its hours, in their order; minutes and
counters are added when something is counted. Making all minutes ahead, at 0, would take 100 KB for each queue
that is used once a day, and would make no minute cheaper.

All brokers add to one document. Each addition has its writer's name and a number, noted in ``flushes``: an
addition that is sent again after a lost answer is carried out once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from pymongo import IndexModel, UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure

from sluicemq.protocol.rules import kept
from sluicemq_broker.job import State
from sluicemq_broker.store.admin.newest import keep_newest
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.creation import by_majority
from sluicemq_broker.store.errors import ServerCode, brief, translated
from sluicemq_broker.store.set_aside import ASIDE, MAP, TEXT, Damaged, field, readable
from sluicemq_broker.store.values import DAY, Document, date
from sluicemq_devices.hub import in_parts

#: Days for which minutes are kept, hours and days, and months.
MINUTES_KEPT, DAYS_KEPT, MONTHS_KEPT = 8, 400, 5 * 366
#: Documents of days, and of months, at most: names that come and go make one for each day.
MOST_DAYS: Final = 1_000_000
_HOURS: Final = [f"{hour:02}" for hour in range(24)]
#: Documents in one roll-up.
_ROLLED_UP_AT_ONCE: Final = 20
#: Codes for a document in which nothing can be counted: a map, or a number, is none.
_NO_PLACE: Final = {ServerCode.TYPE_MISMATCH, ServerCode.PATH_NOT_VIABLE}
_DATE: Final = kept("a date", lambda value: isinstance(value, datetime))


class HistorySubject(NamedTuple):
    """A subject of counts: ``queue``, ``stream`` or ``device`` and its name, or ``broker`` and a host.

    ``broker`` and ``*`` is all brokers together. No name has a ``/``.
    """

    kind: str
    name: str


class MinuteCounts(NamedTuple):
    """Counts of a subject in one minute: ``added`` to the stored ones, ``most`` where it is higher."""

    subject: HistorySubject
    minute: int
    """Minutes since 1970."""
    added: Mapping[str, int]
    most: Mapping[str, int]


class HistoryStore:
    """The history in one database; ``kept``: seconds for which hours and days are."""

    def __init__(self, database: Documents, kept: float = DAYS_KEPT * DAY) -> None:
        self._kept = timedelta(seconds=kept)
        self._days = durable(database)["history"]
        self._months = durable(database)["history_months"]

    def prepare(self) -> None:
        """Make the indexes: for removal, and for reading many days."""
        over = IndexModel([("remove_at", 1)], expireAfterSeconds=0)
        with translated():
            # failpoint history.index_days
            self._days.create_indexes(
                [over, IndexModel([("subject", 1), ("name", 1), ("day", 1)])], **by_majority(self._days)
            )
            # failpoint history.index_months
            self._months.create_indexes(
                [over, IndexModel([("subject", 1), ("name", 1), ("month", 1)])], **by_majority(self._months)
            )

    # ------------------------------------------------------------------ write

    def add(self, writer: str, number: int, counted: Iterable[MinuteCounts]) -> None:
        """Add counts to their days; ``number`` rises with each call of this ``writer``.

        Crash before or in between: some are not added, and never will be. Lost reply: repeating it with the
        number adds what is not added yet.
        """
        updates = _updates(writer, number, counted)
        documents = list(updates)
        with translated():
            for some in in_parts(documents, 50):  # so that the driver encodes no statement for long
                self._add({document: updates[document] for document in some})

    def _add(self, updates: dict[str, UpdateOne]) -> None:
        if self._written(list(updates.values())) == len(updates):
            return
        there = {document["_id"] for document in self._days.find({"_id": {"$in": list(updates)}}, {"_id": 1})}
        missing = [key for key in updates if key not in there]  # the others were added by an earlier copy
        for key in missing:
            self._make(key)
        if missing:
            self._written([updates[key] for key in missing])

    def _written(self, updates: list[UpdateOne]) -> int:
        """Return how many documents were found; damaged ones, in which nothing can be counted, among them."""
        try:
            # failpoint history.add
            return self._days.bulk_write(updates, ordered=False).matched_count
        except BulkWriteError as error:
            failed, details = error.details["writeErrors"], error.details
            if (
                details.get("writeConcernErrors")
                or not {document["code"] for document in failed} <= _NO_PLACE
            ):
                raise
            for failure in failed:
                damaged = failure["op"]["q"]["_id"]
                ASIDE.note(Damaged(self._days.database.name, "history", damaged, brief(error)))
            return int(details["nMatched"]) + len(failed)

    def make(self, subject: HistorySubject, day: datetime) -> None:
        """Make the document of a day where it is missing, so that the first counts find it."""
        with translated():
            self._make(_id(subject, day))

    def _make(self, document: str) -> None:
        kind, name, day = document.split("/")
        began = datetime.fromisoformat(day)
        with suppress(DuplicateKeyError):  # another broker has made it
            # failpoint history.begin_day
            self._days.insert_one(
                {
                    "_id": document,
                    "subject": kind,
                    "name": name,
                    "day": began,
                    "remove_at": began + self._kept,
                    "total": {},
                    "hours": {hour: {"total": {}, "minutes": {}} for hour in _HOURS},
                }
            )

    # ------------------------------------------------------------------- read

    def minutes(self, subject: HistorySubject, day: datetime) -> dict[datetime, Document]:
        """Return the counts of each minute of a day; minutes without any are left out."""
        with translated():
            found = self._days.find_one({"_id": _id(subject, day)}, {"hours": 1})
        days = [{**found, "day": day}] if found else []
        return next(readable(self._days, days, _minutes), {})

    def minutes_of(
        self, subjects: Iterable[HistorySubject], first: datetime, since: float, until: float
    ) -> dict[str, dict[datetime, Document]]:
        """Return by name the counts of each minute between two times, less than a day apart.

        ``first``: the day of ``since``. Only the hours between are read.
        """
        hours = range(int(since) // 3600, int(until) // 3600 + 1)
        wanted = {"name": 1, "day": 1, **{f"hours.{hour % 24:02}.minutes": 1 for hour in hours}}
        days = {first, day_of(until)}
        ids = [_id(subject, day) for subject in subjects for day in days]
        found: dict[str, dict[datetime, Document]] = {}
        with translated():
            for name, minutes in readable(self._days, self._days.find({"_id": {"$in": ids}}, wanted), _named):
                found.setdefault(name, {}).update(minutes)
        return found

    def hours(self, subject: HistorySubject, first: datetime, last: datetime) -> dict[datetime, Document]:
        """Return the counts of each hour of these days."""
        wanted = {"day": 1, **{f"hours.{hour}.total": 1 for hour in _HOURS}}
        found = readable(self._days, self._between(subject, first, last, wanted), _hours)
        return {at: counted for part in found for at, counted in part.items()}

    def days(self, subject: HistorySubject, first: datetime, last: datetime) -> dict[datetime, Document]:
        """Return the counts of each of these days."""
        found = self._between(subject, first, last, {"day": 1, "total": 1})
        totals = readable(self._days, found, lambda day: (day["day"], _plain(day["total"])))
        return {day: counted for day, counted in totals if counted}

    def months(self, subject: HistorySubject) -> dict[datetime, Document]:
        """Return the counts of each month that is kept, without the last two days."""
        with translated():
            found = list(self._months.find({"subject": subject.kind, "name": subject.name}).sort("month", 1))
        return {month: counted for month, counted in readable(self._months, found, read_month) if counted}

    def _between(
        self, subject: HistorySubject, first: datetime, last: datetime, wanted: Document
    ) -> list[Document]:
        these = {"subject": subject.kind, "name": subject.name, "day": {"$gte": first, "$lte": last}}
        with translated():
            return list(self._days.find(these, wanted).sort("day", 1))

    # --------------------------------------------------------------- retention

    def roll_up(self, today: datetime) -> int:
        """Add finished days to their months, and remove old minutes; return how many days changed.

        A day is finished when yesterday's brokers have written their last counts of it. Each step sets what
        it reads, so several brokers may do it at once, and a crash in between does no harm.
        """
        over = {"day": {"$lt": today - timedelta(days=1)}, "rolled_up": {"$exists": False}}
        wanted = {"subject": 1, "name": 1, "day": 1, "total": 1}
        with translated():
            found = list(self._days.find(over, wanted).limit(_ROLLED_UP_AT_ONCE))
            for total in readable(self._days, found, _month_of):
                self._into_month(*total)
            # failpoint history.roll_up
            self._days.update_many(
                {"_id": {"$in": [document["_id"] for document in found]}}, {"$set": {"rolled_up": True}}
            )
            return len(found) + self._remove_minutes(today)

    def trim(self, most: int = MOST_DAYS) -> int:
        """Remove the oldest days and months of too many, as :func:`keep_newest`; return how many."""
        with translated():
            # failpoint history.trim
            return sum(
                keep_newest(collection, "remove_at", most) for collection in (self._days, self._months)
            )

    def _into_month(self, subject: HistorySubject, began: datetime, total: Mapping[str, int]) -> None:
        month = began.replace(day=1)
        new = {
            "subject": subject.kind,
            "name": subject.name,
            "month": month,
            "remove_at": month + timedelta(days=MONTHS_KEPT),
        }
        key = f"{subject.kind}/{subject.name}/{month:%Y-%m}"
        try:
            # failpoint history.add_to_month
            self._months.update_one(
                {"_id": key}, {"$setOnInsert": new, "$set": {f"days.{began:%d}": total}}, upsert=True
            )
        except OperationFailure as error:
            if error.code not in _NO_PLACE:
                raise
            ASIDE.note(Damaged(self._months.database.name, "history_months", key, brief(error)))

    def _remove_minutes(self, today: datetime) -> int:
        old = {"day": {"$lt": today - timedelta(days=MINUTES_KEPT)}, "minutes_removed": {"$exists": False}}
        found = [document["_id"] for document in self._days.find(old, {"_id": 1}).limit(_ROLLED_UP_AT_ONCE)]
        if found:
            gone = {f"hours.{hour}.minutes": "" for hour in _HOURS}
            removed = {"$unset": gone, "$set": {"minutes_removed": True}}
            # failpoint history.remove_minutes
            self._days.update_many({"_id": {"$in": found}}, removed)
        return len(found)


def day_of(seconds: float) -> datetime:
    """Return the day of a time, in UTC, as MongoDB keeps it."""
    return date(seconds // DAY * DAY)


def _id(subject: HistorySubject, day: datetime) -> str:
    return f"{subject.kind}/{subject.name}/{day:%Y-%m-%d}"


def _minutes(stored: Document) -> dict[datetime, Document]:
    day = _DATE(stored["day"])
    return {
        day + timedelta(hours=int(hour), minutes=int(minute)): counted
        for hour, minutes in sorted(field(stored, "hours", MAP, {}).items())
        for minute, counts in sorted(field(minutes, "minutes", MAP, {}).items())
        if (counted := _plain(counts))
    }


def _hours(stored: Document) -> dict[datetime, Document]:
    day = _DATE(stored["day"])
    return {
        day + timedelta(hours=int(hour)): counted
        for hour, there in sorted(field(stored, "hours", MAP, {}).items())
        if (counted := _plain(there.get("total", {})))
    }


def _named(stored: Document) -> tuple[str, dict[datetime, Document]]:
    return field(stored, "name", TEXT), _minutes(stored)


def _month_of(stored: Document) -> tuple[HistorySubject, datetime, dict[str, int]]:
    subject = HistorySubject(field(stored, "subject", TEXT), field(stored, "name", TEXT))
    return subject, _DATE(stored["day"]), _plain(field(stored, "total", MAP))


def read_day(stored: Document) -> None:
    """Check the document of a day."""
    _month_of(stored)
    _minutes(stored)
    _hours(stored)


def read_month(stored: Document) -> tuple[datetime, dict[str, int]]:
    """Read the sum of a month."""
    return _DATE(stored["month"]), _sum([_plain(day) for day in field(stored, "days", MAP).values()])


def _updates(writer: str, number: int, counted: Iterable[MinuteCounts]) -> dict[str, UpdateOne]:
    """Return one update for each document; it adds nothing if it was carried out before."""
    added: dict[str, dict[str, int]] = {}
    most: dict[str, dict[str, int]] = {}
    for part in counted:
        when = date(part.minute * 60)
        document = _id(part.subject, when)
        hour = f"hours.{when:%H}"
        sums, highest = added.setdefault(document, {}), most.setdefault(document, {})
        for place in ("total", f"{hour}.total", f"{hour}.minutes.{when:%M}"):
            for name, count in part.added.items():
                sums[f"{place}.{name}"] = sums.get(f"{place}.{name}", 0) + count
            for name, count in part.most.items():
                highest[f"{place}.{name}"] = max(highest.get(f"{place}.{name}", 0), count)
    return {
        document: UpdateOne(
            {"_id": document, f"flushes.{writer}": {"$not": {"$gte": number}}},
            {
                **({"$inc": added[document]} if added[document] else {}),
                **({"$max": most[document]} if most[document] else {}),
                "$set": {f"flushes.{writer}": number},
            },
        )
        for document in added
    }


def _plain(counts: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts that are not 0, as plain numbers."""
    return {name: int(count) for name, count in counts.items() if count}


def _sum(days: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for day in days:
        for name, count in day.items():
            total[name] = (
                max(total.get(name, 0), count) if name == State.READY else total.get(name, 0) + count
            )
    return total
