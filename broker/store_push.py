"""How jobs get into a queue's collection, and who holds which ``dedupe_id``.

The document of a job holds its ``dedupe_id`` itself, until its window is over (``dedupe_until``),
in whatever state it is; the unique index makes it one document, over all brokers. Nothing is
swept: the next push with this id that finds the window over takes the id away from its holder.
Where the holder's document is gone (cancelled, purged, expired), so is its hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pymongo.collection import Collection
from pymongo.errors import BulkWriteError
from pymongo.read_concern import ReadConcern

from broker.job import Job
from broker.mongo import AT_FAULT, Unclear, brief
from broker.store_documents import DEDUPE_INDEX, Document, date, seconds
from sluicemq.errors import Duplicate, SluiceError, TooLarge

_DUPLICATE_KEY = 11000


@dataclass(slots=True)
class Pushed:
    """What a push did: positions whose id was there before, and positions refused with the reason.

    ``taken``: positions whose ``dedupe_id`` lies with another document, to be judged still.
    """

    existing: list[int] = field(default_factory=list)
    refused: dict[int, SluiceError] = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)

    def add(self, part: Pushed, positions: Sequence[int]) -> None:
        """Take in what became of some: ``part`` counts as ``positions`` does, which are positions here."""
        self.existing = sorted([*self.existing, *(positions[at] for at in part.existing)])
        self.refused |= {positions[at]: error for at, error in part.refused.items()}
        self.taken += [positions[at] for at in part.taken]


def insert(collection: Collection[Document], documents: Sequence[Document]) -> Pushed:
    """One insert of all: each is stored or not, and in their order where they want the same ids."""
    try:
        collection.insert_many(documents, ordered=False)
    except BulkWriteError as error:
        return refusals(error)
    return Pushed()


def refusals(error: BulkWriteError) -> Pushed:
    """Read the errors of an unordered write.

    A duplicate key means "stored" only if it is that of ``_id`` and no durability is in doubt. A server
    in trouble (a shard that is away) makes it :class:`~broker.mongo.Unclear`: the job is not at fault.
    """
    if error.details.get("writeConcernErrors"):
        raise Unclear(f"durability is not known: {brief(error)}") from error
    pushed = Pushed()
    for each in error.details["writeErrors"]:
        at = each["index"]
        key = each.get("keyPattern", {"_id": 1}) if each.get("code") == _DUPLICATE_KEY else None
        if key == {"_id": 1}:
            pushed.existing.append(at)
        elif key == {"dedupe_id": 1}:
            pushed.taken.append(at)
        elif each.get("code") not in (_DUPLICATE_KEY, *AT_FAULT):
            raise Unclear(f"MongoDB has not taken all: {brief(error)}") from error
        else:
            pushed.refused[at] = TooLarge(f"MongoDB refused it: {str(each.get('errmsg'))[:200]}")
    return pushed


def open_windows(jobs: Iterable[Job], at: float) -> None:
    """A job's window counts from the statement that stores it: nobody can know of it before."""
    for job in jobs:
        if job.dedupe:
            job.dedupe_until = at + job.dedupe.window


def judge(collection: Collection[Document], jobs: Sequence[Job], at: float) -> Pushed:
    """What is to be said of jobs whose ``dedupe_id`` was another's; ``taken`` are those to insert again.

    ``existing``: the job itself is there, whichever index MongoDB has named, and whoever holds its
    ``dedupe_id`` by now. ``refused``: the holder's window is open. Else the ``dedupe_id`` is free, or
    is freed here; the guard on ``dedupe_until`` spares a holder that has come in the meantime. Crash
    or lost reply: a document has lost a ``dedupe_id`` whose window was over, which nobody misses.
    """
    # What is said here must outlive a change of primary.
    known = collection.with_options(read_concern=ReadConcern("majority"))
    stored = {each["_id"] for each in known.find({"_id": {"$in": [job.id for job in jobs]}}, {"_id": 1})}
    holders = _holders(known, {job.dedupe.id for job in jobs if job.dedupe})
    over = [each["_id"] for each in holders.values() if seconds(each["dedupe_until"]) <= at]
    if over:
        collection.update_many(
            {"_id": {"$in": over}, "dedupe_until": {"$lte": date(at)}},
            {"$unset": {"dedupe_id": "", "dedupe_until": ""}},
            hint="_id_",
        )
    judged = Pushed()
    for position, job in enumerate(jobs):
        holder = holders.get(job.dedupe.id) if job.dedupe else None
        if job.id in stored:
            judged.existing.append(position)
        elif holder and seconds(holder["dedupe_until"]) > at:
            judged.refused[position] = _duplicate(holder, at)
        else:
            judged.taken.append(position)
    return judged


def _holders(collection: Collection[Document], names: set[str]) -> dict[str, Document]:
    wanted = {"dedupe_id": 1, "dedupe_until": 1}
    found = collection.find({"dedupe_id": {"$in": list(names)}}, wanted, hint=DEDUPE_INDEX)
    return {each["dedupe_id"]: each for each in found}


def _duplicate(holder: Document, at: float) -> Duplicate:
    first, left = holder["_id"], seconds(holder["dedupe_until"]) - at
    return Duplicate(
        f"not stored: job {first} has dedupe_id {holder['dedupe_id']!r} for {left:.1f} s more; "
        "push it after that, or with another dedupe_id",
        first,
    )
