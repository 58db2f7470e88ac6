"""Search: jobs of one queue that match conditions, slice by slice; and jobs by id in many queues.

A slice looks at a bounded number of jobs. One statement answers with the ids of those that match by the
fields that MongoDB compares. It can't look into payloads, which are binary, nor into packs: their candidates
are read and looked through here, a few at a time.

Jobs are searched by their ids, backwards: ids that libraries and brokers make rise with time, so the newest
come first. Jobs of one state that has an index of its own are searched in the order of that index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pymongo.errors import ExecutionTimeout

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.job import SCHEDULED, State
from sluicemq_broker.store.admin.dead_letters import LAST, is_a
from sluicemq_broker.store.admin.inspector import MOST_CUT
from sluicemq_broker.store.admin.job_view import not_expired, order_shown, shown, state_at
from sluicemq_broker.store.admin.listing import LISTED
from sluicemq_broker.store.admin.places import Place, Sort, place_of, ranges
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.halving import by_bytes
from sluicemq_broker.store.jobs.documents import PACK_FIELDS, collection
from sluicemq_broker.store.jobs.find_packs import packs_around
from sluicemq_broker.store.jobs.pack_contents import is_pack, opened
from sluicemq_broker.store.values import BY_ID, Document, Jobs, date
from sluicemq_devices.hub import in_parts, in_pieces, let_others_run

#: Documents of a slice: for 2,000 MongoDB needs some 6 ms, and the hub 1 ms.
SLICE: Final = 2000
#: Milliseconds for a slice, before a smaller one is tried, and the smallest one.
_MOST_MS: Final = 200
_LEAST: Final = 10
#: Candidates that are read at once, those of which the content decides and those that are shown.
_LOOKED_INTO: Final = 200
_SHOWN: Final = 20
#: Bytes of a document that is looked into, at most.
LARGEST_READ: Final = 4 * 2**20
#: Queues that one statement looks at for an id.
QUEUES_AT_ONCE: Final = 100

_BYTES: Final = {"$cond": [is_a("payload", "binData"), {"$binarySize": "$payload"}, 0]}
_FIELDS: Final[Document] = {
    **LISTED,
    "payload": {"$cond": [{"$lte": [_BYTES, MOST_CUT]}, "$payload", "$$REMOVE"]},
}
#: What says whether a text is in a job.
_CONTENT: Final[Document] = {
    **dict.fromkeys(("payload", "seq", "kind", "tenant", "group", *PACK_FIELDS), 1),
    "errors": {"$slice": -1},
}


class Wanted(NamedTuple):
    """Conditions of a search, of which all must hold.

    ``words``: in the id, kind, tenant, group, last error or payload; ``text``: in the payload; ``error``: in
    the last one; all without regard to upper and lower case of ASCII. ``headers``: values by name, as texts.
    ``since`` and ``until``: of the time when it ended, or else was pushed, in Unix seconds.
    """

    words: str | None = None
    text: str | None = None
    kind: str | None = None
    tenant: str | None = None
    group: str | None = None
    error: str | None = None
    headers: Mapping[str, str] = {}
    states: tuple[str, ...] = ()
    since: float | None = None
    until: float | None = None


class Candidate(NamedTuple):
    """A document that matches as far as MongoDB can say; ``at``: for :meth:`Search.place`.

    ``looked``: jobs of the slice up to it, with it.
    """

    id: str
    bytes: int
    at: Any
    looked: int


class Slice(NamedTuple):
    """A part of a search: how many jobs were looked at, and where the next one begins; None: nowhere."""

    candidates: list[Candidate]
    looked: int
    end: Place | None


class Found(NamedTuple):
    """The jobs that match of a candidate, which may be a pack; ``unread``: it is too large for that."""

    candidate: Candidate
    jobs: list[Document]
    unread: bool


class Search:
    """A search for jobs in one queue; ``now``: which jobs are due and which have expired.

    ``largest``: bytes of a document that is looked into.
    """

    #: States of which one is searched in the order of its index: beside them may be a million dead letters.
    indexed = (State.READY, SCHEDULED, State.RESERVED)

    def __init__(
        self, database: Documents, queue: str, wanted: Wanted, now: float, largest: int = LARGEST_READ
    ) -> None:
        self._jobs: Jobs = durable(database)[collection(queue)]
        self._wanted = wanted
        self._now = now
        self._largest = largest
        self._needles = [text.encode().lower() for text in (wanted.text, wanted.words) if text is not None]
        with translated():
            self._these, self._sort, self._index = self._order()

    @property
    def reads_content(self) -> bool:
        """True if candidates are read to see if they match."""
        return bool(self._needles)

    def slice(self, after: Place | None, size: int = SLICE) -> Slice:
        """Look at the jobs behind a place, up to ``size`` documents.

        Raises BadFrames for a place of another order, and Unavailable where MongoDB is too slow for ten.
        """
        while True:
            try:
                with translated():
                    return self._read(after, size)
            except Exception as error:
                if not isinstance(error.__cause__, ExecutionTimeout):
                    raise
                if size <= _LEAST:
                    raise UnavailableError("MongoDB is too slow for a search now") from error
            size = max(_LEAST, size // 4)

    def found(self, candidates: Sequence[Candidate]) -> Iterator[Found]:
        """Yield each candidate, in order, with those of its jobs that match."""
        size = _LOOKED_INTO if self._needles else _SHOWN
        for part in by_bytes(candidates, lambda candidate: candidate.bytes, 2**20, lambda: size):
            readable = [candidate.id for candidate in part if candidate.bytes <= self._largest]
            with translated():
                hits = self._hits(readable) if self._needles else readable
                documents = self._documents(hits, _FIELDS) if hits else {}
            for candidate in part:
                stored = documents.get(candidate.id)
                yield Found(
                    candidate, self._matching(stored) if stored else [], candidate.bytes > self._largest
                )
            let_others_run()

    def place(self, candidate: Candidate) -> Place | None:
        """Return the place of a candidate; None: it is no job, and nothing begins behind it."""
        return self._place(candidate.at or [candidate.id])

    def _order(self) -> tuple[Document, Sort, str]:
        """Return the jobs that are searched, their order, and its index."""
        match self._wanted.states:
            case (state,) if state in self.indexed:
                return not_expired(state, self._now), *order_shown(self._jobs, state)
        return {"_id": {"$gte": ""}}, [("_id", -1)], BY_ID  # only texts are ids of jobs

    def _read(self, after: Place | None, size: int) -> Slice:
        at = [f"${name}" for name, _ in self._sort]
        number: Document = {"$ifNull": ["$left", 1]}
        weight: Any = {"$bsonSize": "$$ROOT"} if self._needles else 0
        candidate = ["$_id", weight, 0 if self._index == BY_ID else at, number]
        row_or_number: Document = {"$cond": [condition(self._wanted, self._now), candidate, number]}
        seen: list[Any] = []
        last: list[Any] = []
        for these in ranges(self._these, self._sort, after):
            steps: list[Document] = [
                {"$match": these},
                {"$sort": dict(self._sort)},
                {"$limit": size - len(seen)},
                {"$group": {"_id": None, "seen": {"$push": row_or_number}, "last": {"$last": {"at": at}}}},
            ]
            for document in self._jobs.aggregate(steps, hint=self._index, maxTimeMS=_MOST_MS):
                seen += document["seen"]
                last = document["last"]["at"]
            if len(seen) >= size:
                break
        return _slice(seen, self._place(last) if len(seen) >= size else None)

    def _place(self, values: Sequence[Any]) -> Place | None:
        names = [name for name, _ in self._sort]
        return place_of(dict(zip(names, values, strict=True)), self._sort)

    def _hits(self, ids: Sequence[str]) -> list[str]:
        """Return those of these documents in which the texts are."""
        found = self._documents(ids, _CONTENT)
        return [
            stored["_id"]
            for stored in in_pieces(found.values())
            if any(self._says(job) for job in opened(stored, self._now))
        ]

    def _documents(self, ids: Sequence[str], fields: Document) -> dict[str, Document]:
        found = self._jobs.find({"_id": {"$in": list(ids)}}, fields, hint=BY_ID)
        return {stored["_id"]: stored for stored in found}

    def _matching(self, stored: Document) -> list[Document]:
        jobs = opened(stored, self._now)
        if self._needles and is_pack(stored):
            jobs = [job for job in jobs if self._says(job)]
        rows = [_row(job, self._now) for job in jobs]
        states = self._wanted.states  # a candidate may have expired, or have changed meanwhile
        return [job for job in rows if not states or job["state"] in states]

    def _says(self, job: Document) -> bool:
        """Return whether the texts that are looked for are in a job."""
        wanted, payload = self._wanted, _lower(job.get("payload"))
        if wanted.text is not None and self._needles[0] not in payload:
            return False
        if wanted.words is None:
            return True
        needle = self._needles[-1]
        return needle in payload or any(needle in _lower(name) for name in _names_in(job))


def _slice(seen: Sequence[Any], end: Place | None) -> Slice:
    """Return the slice with these documents: of each the number of its jobs, or a candidate."""
    candidates: list[Candidate] = []
    looked = 0
    for found in seen:
        if isinstance(found, list):
            looked += _jobs_of(found[3])
            candidates.append(Candidate(found[0], found[1], found[2], looked))
        else:
            looked += _jobs_of(found)
    return Slice(candidates, looked, end)


def condition(wanted: Wanted, now: float) -> Document:
    """Return the expression that is true of documents that match, but for the texts in them."""
    names = {"kind": wanted.kind, "tenant": wanted.tenant, "group": wanted.group}
    holds: list[Document] = [
        {"$eq": [f"${name}", {"$literal": value}]} for name, value in names.items() if value is not None
    ]
    headers = {"$cond": [is_a("headers", "object"), "$headers", {}]}
    for name, value in wanted.headers.items():
        there = {"$getField": {"field": {"$literal": name}, "input": headers}}
        holds.append({"$eq": [_text(there), {"$literal": value}]})
    if wanted.error is not None:
        needle = wanted.error.encode().lower().decode()
        holds.append({"$gte": [{"$indexOfCP": [{"$toLower": _LAST_ERROR}, {"$literal": needle}]}, 0]})
    if wanted.states:
        holds.append({"$or": [_is_in(state, now) for state in wanted.states]})
    for operator, when in (("$gte", wanted.since), ("$lt", wanted.until)):
        if when is not None:
            holds += [{"$gte": [_TIME, date(0)]}, {operator: [_TIME, date(when)]}]
    return {"$and": holds}


def with_id(
    database: Documents, queues: Sequence[str], beginning: str, now: float
) -> list[tuple[str, Document]]:
    """Return the jobs of these queues whose id begins so, each with its queue; that of this id first.

    A job in a pack is found by its whole id. One statement looks at up to :data:`QUEUES_AT_ONCE` queues.
    """
    found: list[tuple[str, Document]] = []
    with translated():
        for queue, ids in _places_of(durable(database), queues, beginning).items():
            jobs = durable(database)[collection(queue)]
            for stored in jobs.find({"_id": {"$in": ids}}, _FIELDS, hint=BY_ID):
                inside = [job for job in opened(stored, now) if str(job["_id"]).startswith(beginning)]
                found += [(queue, _row(job, now)) for job in inside]
    return sorted(found, key=lambda row: (row[1]["id"], row[0]))


def _places_of(database: Documents, queues: Sequence[str], beginning: str) -> dict[str, list[str]]:
    """Return the ids of documents that may have such jobs, by queue."""
    places: dict[str, list[str]] = {}
    these: Document = {"_id": {"$gte": beginning, "$lt": beginning + "\U0010ffff"}}
    if packs := packs_around(beginning):
        these = {"$or": [these, packs]}
    for some in in_parts(queues, QUEUES_AT_ONCE):
        first, *others = (_steps_of(queue, these) for queue in some)
        unions = [
            {"$unionWith": {"coll": collection(queue), "pipeline": steps}}
            for queue, steps in zip(some[1:], others, strict=True)
        ]
        jobs = database[collection(some[0])]
        for document in jobs.aggregate([*first, *unions], hint=BY_ID, maxTimeMS=10 * _MOST_MS):
            places.setdefault(document["queue"], []).append(document["_id"])
    return places


def _steps_of(queue: str, these: Document) -> list[Document]:
    """Return the steps for one queue; without a sort, which the index makes needless: a quarter cheaper."""
    return [{"$match": these}, {"$limit": _SHOWN}, {"$project": {"_id": 1, "queue": {"$literal": queue}}}]


def _text(value: Any) -> Document:
    return {"$convert": {"input": value, "to": "string", "onError": "", "onNull": ""}}


_TIME: Final = {"$ifNull": ["$ended_at", "$created_at"]}
_LAST_ERROR: Final[Document] = {
    "$let": {
        "vars": {"last": LAST},
        "in": {"$concat": [_text("$$last.type"), " ", _text("$$last.reason")]},
    }
}


def _is_in(state: str, now: float) -> Document:
    due = {State.READY.value: "$lte", SCHEDULED: "$gt"}.get(state)
    if due is None:
        return {"$eq": ["$state", state]}
    return {"$and": [{"$eq": ["$state", State.READY.value]}, {due: ["$eligible_at", date(now)]}]}


def _jobs_of(number: Any) -> int:
    """Return how many jobs a document has that says this number."""
    return number if isinstance(number, int) else 1


def _names_in(job: Document) -> Iterator[Any]:
    yield from (job.get(name) for name in ("_id", "kind", "tenant", "group"))
    errors = job.get("errors")
    if isinstance(errors, list) and errors and isinstance(errors[-1], dict):
        yield from (errors[-1].get(name) for name in ("type", "reason"))


def _lower(value: Any) -> bytes:
    if isinstance(value, str):
        value = value.encode(errors="replace")
    return value.lower() if isinstance(value, bytes) else b""


def _row(job: Document, now: float) -> Document:
    """Return a job as it is shown, with the beginning of its payload."""
    row = shown(job, state_at(job, now))
    if not isinstance(row.get("errors", []), list):  # it is no job
        del row["errors"]
    if isinstance(payload := row.get("payload"), bytes):
        row["payload_bytes"] = len(payload)
        row["payload"] = payload[:256]
    return row
