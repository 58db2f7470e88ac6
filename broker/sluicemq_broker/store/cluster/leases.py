"""Leases of brokers in MongoDB: who may hold jobs, decided by a counter and never by a clock.

A lease is in every database in which its broker has queues, so every broker that shares one of them finds it.
One document an owner id: ``{_id, state: live|dead, beat, lease, name, version?, reads?, started_at, seen_at,
worked?, ended_at?}``; ``reads``: the oldest and the newest schema that its broker reads. It is written,
durably, before the first job is reserved under that id. A dead one stays a day to be looked at; an owner
without a document counts as dead.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from pymongo import IndexModel, ReturnDocument
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

from sluicemq_broker import __version__
from sluicemq_broker.store.availability import NOT_LINEARIZABLE
from sluicemq_broker.store.cluster.schema import READS
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.creation import by_majority
from sluicemq_broker.store.errors import ServerCode, translated
from sluicemq_broker.store.set_aside import (
    COUNT,
    DATE,
    LIST,
    NUMBER,
    TEXT,
    field,
    read_or_damaged,
    readable,
)
from sluicemq_broker.store.values import DAY, Document, date


class Seen(NamedTuple):
    """A broker: its name, since when it runs, when it was seen last; ``ended``: when it fell silent.

    ``version`` is empty for one that does not say; ``reads``: the oldest and the newest schema that it reads.
    """

    name: str
    since: float
    seen: float
    ended: float | None
    version: str = __version__
    reads: tuple[int, int] = READS


class Lease(NamedTuple):
    """The counter of a live lease, how many seconds it may stand still, and the broker's work.

    ``worked``: jobs from push to commit, as of the last heartbeat; None: an older version does not say.
    """

    beat: int
    seconds: float
    worked: float | None


class _Lease(StrEnum):
    """The states of a lease."""

    LIVE = "live"
    DEAD = "dead"


class LeaseStore:
    """All leases of one database."""

    def __init__(self, database: Documents) -> None:
        self._leases = durable(database)["owners"]

    def prepare(self) -> None:
        """Make the index that removes dead leases after a day."""
        with translated():
            # failpoint leases.prepare
            self._leases.create_indexes(
                [IndexModel([("ended_at", 1)], expireAfterSeconds=DAY)], **by_majority(self._leases)
            )

    def begin(self, owner: str, name: str, lease: float, now: float) -> None:
        """Write the lease of a new owner id; repeating it after a lost reply is harmless."""
        new = {"state": _Lease.LIVE, "beat": 0, "lease": lease, "name": name}
        new |= {"version": __version__, "reads": READS}
        new |= {"started_at": date(now), "seen_at": date(now)}
        with translated():
            # failpoint leases.begin
            self._leases.update_one({"_id": owner}, {"$setOnInsert": new}, upsert=True)

    def beat(self, owners: list[str], now: float, worked: float = 0.0) -> int:
        """Raise the counters of the leases that are not dead; return how many there were.

        ``worked``: how many jobs the broker has worked so far, which shows others whether it is busy.
        """
        with translated():
            live = {"_id": {"$in": owners}, "state": _Lease.LIVE}
            beat = {"$inc": {"beat": 1}, "$set": {"seen_at": date(now), "worked": worked}}
            try:
                # failpoint leases.beat
                return self._leases.update_many(live, beat).matched_count
            except OperationFailure as error:
                if error.code != ServerCode.TYPE_MISMATCH:  # the counter is a number
                    raise
                return 0  # somebody has damaged the counter: the lease counts as dead

    def live(self) -> dict[str, tuple[int, float]]:
        """Return the counter of every live lease, and how many seconds it may stand still."""
        return {owner: (lease.beat, lease.seconds) for owner, lease in self.leases().items()}

    def leases(self) -> dict[str, Lease]:
        """Return every live lease by its owner; an owner whose lease can't be read counts as dead."""
        with translated():
            found = self._leases.find({"state": _Lease.LIVE}, {"beat": 1, "lease": 1, "worked": 1})
            return dict(readable(self._leases, found, _lease))

    def brokers(self) -> list[Seen]:
        """Return brokers with a live lease or silent for less than a day; the oldest first."""
        these = {"$or": [{"state": _Lease.LIVE}, {"silent": True}]}
        with translated():
            return list(readable(self._leases, self._leases.find(these).sort("started_at", 1), read_broker))

    def is_live(self, owner: str) -> bool:
        """Return True if this lease is live for certain: never on the word of a former primary.

        Without that, two servers that take themselves for the primary might answer the read of the leases and
        that of the jobs; or a lease was ended by a write that no majority has seen, and that is undone.
        """
        sure = self._leases.with_options(read_concern=ReadConcern("linearizable"))
        with translated():
            try:
                # Milliseconds in which a primary must confirm that it is still the primary.
                found = sure.find_one({"_id": owner}, {"state": 1}, max_time_ms=5000)
            except OperationFailure as error:
                if error.code not in NOT_LINEARIZABLE:
                    raise
                found = self._leases.find_one({"_id": owner}, {"state": 1})
        return found is not None and found["state"] == _Lease.LIVE

    def end(self, owner: str, now: float, *, beat: int | None = None, silent: bool = False) -> Seen | None:
        """Mark a lease dead (with ``beat`` only if its counter still stands there); return its broker.

        From then on no heartbeat matches it. ``silent``: its broker did not stop, but fell silent. None: this
        call did not end it.
        """
        lease = {"_id": owner, "state": _Lease.LIVE} | ({} if beat is None else {"beat": beat})
        ended = {"state": _Lease.DEAD, "ended_at": date(now)} | ({"silent": True} if silent else {})
        with translated():
            # failpoint leases.end
            found = self._leases.find_one_and_update(
                lease, {"$set": ended}, return_document=ReturnDocument.AFTER
            )
        if found is None:
            return None
        seen = read_or_damaged(self._leases, found, read_broker)
        return seen if isinstance(seen, Seen) else Seen(owner, now, now, now)


def _lease(stored: Document) -> tuple[str, Lease]:
    worked = field(stored, "worked", NUMBER, None)
    lease = Lease(field(stored, "beat", COUNT), field(stored, "lease", NUMBER), worked)
    return field(stored, "_id", TEXT), lease


def read_broker(stored: Document) -> Seen:
    """Read what a lease says of its broker."""
    _lease(stored)
    since = field(stored, "started_at", DATE)
    seen = field(stored, "seen_at", DATE, since)  # an older version's has none
    ended = field(stored, "ended_at", DATE) if field(stored, "state", TEXT) == _Lease.DEAD else None
    # One that does not say is of a version before 0.3: it reads nothing that this one writes.
    first, last = (COUNT(number) for number in field(stored, "reads", LIST, (0, 0)))
    return Seen(
        field(stored, "name", TEXT), since, seen, ended, field(stored, "version", TEXT, ""), (first, last)
    )
