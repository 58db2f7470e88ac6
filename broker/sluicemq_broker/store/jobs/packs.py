"""Packs: documents with many plain jobs each, which MongoDB stores, claims and removes as one.

A pack has the fields of one job, for all of its jobs, and these::

    {_id: "pack/MARK/NUMBER",       of its first job's id
     count, left,                   jobs when it was stored, and jobs that are in it still
     first, last,                   the first and the last of their ids, in the order of texts
     jobs: msgpack [[id, payload], ...],
     d0?, d1?, d2?, d3?}            bits of jobs that are not: ended, or lifted out

It is only ever marked, and removed with its last job. A mark names what it sets, and that it was not set::

    commit   {_id, owner, hold, d0: bits clear}  ──▶  d0 |= bits, left -= number of bits
    lift     as a commit; in its transaction each of these jobs is inserted alone, under that reservation
    removal  {_id, owner, hold, left: number of bits}, or {left: 0}

So commits and lifts of one pack go in any order, and a repetition changes nothing. Whatever is about one job
alone (a rollback, a forward, progress, an order by its id) lifts it first, by :func:`lift_out`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

from bson.int64 import Int64
from pymongo import DeleteOne, UpdateOne
from pymongo.client_session import ClientSession

from sluicemq.protocol import msgpack_values
from sluicemq.protocol.errors import BadFramesError, SluiceError
from sluicemq_broker.job import Job, Pack, Reservation, State
from sluicemq_broker.store.errors import applied, translated
from sluicemq_broker.store.halving import in_halves
from sluicemq_broker.store.jobs.documents import PACK_FIELDS, QueueDefaults, document
from sluicemq_broker.store.jobs.documents import job as read_job
from sluicemq_broker.store.jobs.index_models import PACK_INDEX
from sluicemq_broker.store.jobs.indexes import has_packs
from sluicemq_broker.store.jobs.malformed import aside
from sluicemq_broker.store.jobs.outcomes import RELEASE, RESERVATION, dead, taken_over, uncertain
from sluicemq_broker.store.jobs.transactions import Aborted, transact
from sluicemq_broker.store.set_aside import Unreadable
from sluicemq_broker.store.values import BY_ID, Document, Jobs

#: Jobs of a pack, at least: fewer cost as much one by one. At most, and their bytes: it counts whole in
#: memory, and half as many jobs cost MongoDB three times as much each.
LEAST: Final = 32
MOST: Final = 256
MOST_BYTES: Final = 2**20

_PREFIX: Final = "pack/"
_WORDS: Final = ("d0", "d1", "d2", "d3")
_WORD: Final = 2**64 - 1
#: Ids by the library and by brokers: milliseconds, the maker's mark, its count.
_IDS: Final = re.compile(
    r"[0-9a-f]{12}(?:([0-9a-f]{10})([0-9a-f]{8})|-([0-9a-f]{8})-([1-9a-f][0-9a-f]{0,11}))"
)
#: Rare attributes that jobs in packs may have, if all have equal ones.
_ALIKE: Final = frozenset({"story", "kind"})
#: True of packs.
PACKS: Final[Document] = {"left": {"$gte": 0}}


class _Place(NamedTuple):
    """Maker and number of an id that was not given by a producer."""

    mark: str
    number: int

    @property
    def pack(self) -> str:
        """Id of the pack that begins with it."""
        return f"{_PREFIX}{self.mark}/{self.number:012x}"


def _place(job_id: str) -> _Place | None:
    match = _IDS.fullmatch(job_id)
    if match is None:
        return None
    mark, number = match.group(1) or match.group(3), match.group(2) or match.group(4)
    return _Place(mark, int(number, 16))


# ------------------------------------------------------------------------------- to be stored


def form_packs(jobs: Sequence[Job], defaults: QueueDefaults) -> None:
    """Put accepted jobs of one message into packs, where :data:`LEAST` in a row are plain and alike.

    Nothing else decides, so a repeated message makes packs of equal ids again.
    """
    if len(jobs) < LEAST:
        return
    run: list[Job] = []
    size, last = 0, None
    for job in jobs:
        place = _place(job.id)
        follows = last is not None and place == (last.mark, last.number + 1) and len(run) < MOST
        if not (follows and size + job.size <= MOST_BYTES and _alike(run[0], job)):
            _form(run)
            run, size = [], 0
        last = place if _plain(job, defaults) else None
        if last is not None:
            run.append(job)
            size += job.size
    _form(run)


def _form(run: Sequence[Job]) -> None:
    if len(run) >= LEAST and (first := _place(run[0].id)) is not None:
        pack = Pack(first.pack, run[0].seq, len(run))
        for job in run:
            job.pack_into(pack)


def _plain(job: Job, defaults: QueueDefaults) -> bool:
    return (
        not job.headers
        and job.__dict__.keys() <= _ALIKE
        and job.eligible_at == job.created_at
        and not job.keep_done
        and job.max_attempts == defaults.max_attempts
        and job.visibility_timeout == defaults.visibility_timeout
        and job.size < MOST_BYTES
    )


def _alike(first: Job, job: Job) -> bool:
    return first.priority == job.priority and first.__dict__ == job.__dict__


def together(jobs: Sequence[Job]) -> list[Sequence[Job]]:
    """Cut jobs into what one document has: a whole pack, or a job.

    Of a pack that is not all there, or not under one reservation, each job is stored alone.
    """
    found: list[Sequence[Job]] = []
    start = 0
    while start < len(jobs):
        pack = jobs[start].pack
        if pack is None:
            found.append(jobs[start : start + 1])
            start += 1
            continue
        end = start
        while end < len(jobs) and jobs[end].pack is pack:
            end += 1
        run = jobs[start:end]
        start = end
        if len(run) == pack.count and len({job.reservation for job in run}) == 1:
            found.append(run)
            continue
        for job in run:
            job.pack_into(None)
        found += [[job] for job in run]
    return found


def stored_together(jobs: Sequence[Job], now: datetime, defaults: QueueDefaults) -> Document:
    """Return the document of a job, or of all jobs of a pack."""
    pack = jobs[0].pack
    stored = document(jobs[0], now, defaults)
    if pack is None:
        return stored
    del stored["payload"]
    stored["_id"] = pack.id
    content = msgpack_values.pack([(job.id, job.payload) for job in jobs])
    ids = [job.id for job in jobs]
    sizes = {"count": len(jobs), "left": len(jobs), "first": min(ids), "last": max(ids)}
    return {**stored, **sizes, "jobs": content}


# --------------------------------------------------------------------------------------- read


def is_pack(stored: Mapping[str, Any]) -> bool:
    """Return True for the document of a pack."""
    return "left" in stored


def done_bits(stored: Mapping[str, Any]) -> int:
    """Return the bits of jobs that are no longer in a stored pack."""
    return sum((int(stored.get(word, 0)) & _WORD) << 64 * n for n, word in enumerate(_WORDS))


def left_in(stored: Mapping[str, Any]) -> int:
    """Return the bits of the jobs that are left in a stored pack."""
    count: int = stored["count"]
    return (1 << count) - 1 & ~done_bits(stored)


def entries(stored: Mapping[str, Any]) -> list[Any]:
    """Return what lies in a stored pack, ended jobs too; raises Unreadable."""
    try:
        found = msgpack_values.unpack(stored["jobs"], BadFramesError, "its jobs")
    except (BadFramesError, TypeError) as error:
        raise Unreadable(str(error)) from error
    if not isinstance(found, list) or len(found) != stored["count"] or len(found) > MOST:
        raise Unreadable("its jobs are not as many as it says")
    return found


def common(stored: Mapping[str, Any]) -> Document:
    """Return the fields that each job of a pack has."""
    return {key: value for key, value in stored.items() if key not in PACK_FIELDS}


def is_job(entry: Any) -> bool:
    """Return True if this entry of a pack is a job."""
    match entry:
        case [str(), bytes()]:
            return True
    return False


def unpacked(stored: Document, defaults: QueueDefaults) -> tuple[list[Job], int]:
    """Return the jobs that are left in a pack, and the bits of entries that are no jobs.

    Raises :class:`Unreadable`, or any error of reading.
    """
    found, shared = entries(stored), common(stored)
    pack = Pack(stored["_id"], int(stored["seq"]), len(found), done_bits(stored))
    template = read_job({**shared, "payload": b""}, defaults)
    plain = not template.__dict__
    jobs: list[Job] = []
    strange = 0
    for at, entry in enumerate(found):
        if pack.done >> at & 1:
            continue
        if not is_job(entry):
            strange |= 1 << at
            continue
        if plain:
            job = Job(
                *entry,
                max_attempts=template.max_attempts,
                visibility_timeout=template.visibility_timeout,
                keep_done=template.keep_done,
            )
        else:
            job = read_job({**shared, "_id": entry[0], "payload": entry[1]}, defaults)
        job.restore(template.priority, pack.seq + at, template.attempts)
        job.pack_into(pack)
        jobs.append(job)
    pack.done |= strange
    return jobs, strange


def alone(stored: Document, bits: int, now: float) -> Iterator[Document]:
    """Yield documents of their own for these entries of a pack; what is no job is a dead letter."""
    shared, seq = common(stored), int(stored["seq"])
    for at, entry in enumerate(entries(stored)):
        if not bits >> at & 1:
            continue
        if is_job(entry):
            yield {**shared, "_id": entry[0], "seq": Int64(seq + at), "payload": entry[1]}
            continue
        reason = "it is no job, but lay in a pack of jobs"
        history = [{"at": dead(now)["ended_at"], "attempt": 0, "reason": reason, "worker": ""}]
        text = repr(entry).encode(errors="replace")
        lost = {"payload": text, "unreadable": reason, "errors": history, **dead(now)}
        unreserved = {key: value for key, value in shared.items() if key not in RESERVATION}
        yield {**unreserved, "_id": f"{stored['_id']}/{at}", "seq": Int64(seq + at), **lost}


def opened(stored: Document, now: float) -> list[Document]:
    """Return what people see of a document: itself, or the jobs that are left in a pack."""
    if not is_pack(stored):
        return [stored]
    try:
        return list(alone(stored, left_in(stored), now))
    except (Unreadable, TypeError, ValueError, KeyError):
        return [stored]


# ----------------------------------------------------------------------------------- find by id


class Packed(NamedTuple):
    """A job that lies in a pack: the document of the pack, and the job's bit."""

    stored: Document
    bit: int


def find_packed(jobs: Jobs, ids: Iterable[str], *, ended: bool = False) -> dict[str, Packed]:
    """Return the jobs of these ids that lie in packs; with ``ended`` also those that are done or lifted out.

    An id names its pack by range, so this reads the packs around it alone. Raises the driver's errors.
    """
    wanted: dict[str, list[_Place]] = defaultdict(list)
    names = set(ids)
    for name in names:
        if (place := _place(name)) is not None:
            wanted[place.mark].append(place)
    ranges = [_range(sorted(places)) for places in wanted.values()]
    found: dict[str, Packed] = {}
    for at in range(0, len(ranges), _MARKS_AT_ONCE):
        these = {"$or": ranges[at : at + _MARKS_AT_ONCE]}
        for stored in jobs.find({**these, **PACKS}, hint=BY_ID):
            found |= _among(stored, names, ended=ended)
    return found


def packs_around(job_id: str) -> Document | None:
    """Return the filter for the packs in which a job of this id may lie; None: it can lie in none."""
    place = _place(job_id)
    return None if place is None else {**_range([place]), **PACKS}


def _range(places: Sequence[_Place]) -> Document:
    """Return the ids of the packs that may have jobs of these ids, of one maker and in order."""
    first = places[0]._replace(number=max(0, places[0].number - MOST + 1))
    return {"_id": {"$gte": first.pack, "$lte": places[-1].pack}}


def packs_with(jobs: Jobs, beginning: str) -> list[str]:
    """Return the first ids of packs in which an id may begin so, in order; 1,000 at most.

    MongoDB finds them in their index, and reads none. Raises the driver's errors.
    """
    if not _BEGINNING.fullmatch(beginning) or not has_packs(jobs):
        return []
    these = {"left": {"$gte": 1}, "first": {"$lt": beginning + "g"}, "last": {"$gte": beginning}}
    found = jobs.find(these, {"_id": 0, "first": 1}, hint=PACK_INDEX).sort("first", 1)
    return [pack["first"] for pack in found.limit(1000)]


#: Beginnings of ids that jobs in packs may have.
_BEGINNING: Final = re.compile(r"[0-9a-f-]{0,34}")

#: Makers of ids that one statement looks for.
_MARKS_AT_ONCE: Final = 100


def _among(stored: Document, names: set[str], *, ended: bool) -> dict[str, Packed]:
    done = 0 if ended else done_bits(stored)
    try:
        there = entries(stored)
    except Unreadable:
        return {}
    return {
        entry[0]: Packed(stored, 1 << at)
        for at, entry in enumerate(there)
        if is_job(entry) and entry[0] in names and not done >> at & 1
    }


# -------------------------------------------------------------------------------------- marks


def _clear(bits: int) -> Document:
    """Return the filter for packs in which none of these bits is set."""
    return {word: {"$not": {"$bitsAnySet": at}} for word, at in _positions(bits).items()}


def _marking(bits: int) -> Document:
    """Return the update that sets these bits."""
    counted: Document = {"$inc": {"left": -bits.bit_count()}}
    words = {word: {"or": _word(at)} for word, at in _positions(bits).items()}
    return {"$bit": words, **counted} if words else counted


def _positions(bits: int) -> dict[str, list[int]]:
    words = {word: bits >> 64 * n & _WORD for n, word in enumerate(_WORDS)}
    return {word: [at for at in range(64) if value >> at & 1] for word, value in words.items() if value}


def _word(positions: Iterable[int]) -> Int64:
    value = sum(1 << at for at in positions)
    return Int64(value - 2**64 if value >> 63 else value)


def _held(pack: Pack, reservation: Reservation) -> Document:
    return {"_id": pack.id, "owner": reservation.owner, "hold": reservation.number}


def _by_pack(jobs: Iterable[Job]) -> dict[Pack, list[Job]]:
    packs: dict[Pack, list[Job]] = defaultdict(list)
    for job in jobs:
        if job.pack is not None:
            packs[job.pack].append(job)
    return packs


def _bits(jobs: Iterable[Job]) -> int:
    bits = 0
    for job in jobs:
        if job.pack is not None:
            bits |= 1 << job.seq - job.pack.seq
    return bits


# ------------------------------------------------------------------------------------- commit


def end_packed(jobs: Jobs, ended: Sequence[Job]) -> dict[str, SluiceError]:
    """Commit jobs that lie in packs; return the ids of those that were not ended, and why.

    Lost reply: a repetition finds the marks, or the pack removed. It says :class:`Uncertain` of marks that it
    has not set: an order may have removed the job. Raises the driver's errors.
    """
    packs = _by_pack(ended)
    writes: list[DeleteOne | UpdateOne] = []
    for pack, these in packs.items():
        bits, which = _bits(these), _held(pack, these[0].reservation)
        if bits == pack.left:
            writes.append(DeleteOne({**which, "left": len(these)}))
        else:
            writes.append(UpdateOne({**which, **_clear(bits)}, _marking(bits)))
    # failpoint packs.commit
    answer = jobs.bulk_write(writes, ordered=False)
    problems: dict[str, SluiceError] = {}
    if answer.deleted_count + answer.modified_count < len(writes):
        with applied():
            problems = _not_all(jobs, packs, answer.deleted_count, answer.modified_count)
    for pack, these in packs.items():
        pack.done |= _bits(job for job in these if job.id not in problems)
    if answer.deleted_count < len(writes):
        with applied():
            remove_empty(jobs, [pack.id for pack in packs if not pack.left])
    return problems


def remove_empty(jobs: Jobs, packs: Sequence[str]) -> None:
    """Remove those of these packs in which no job is left.

    Of two statements that empty a pack together, the one whose answer comes last sees that.
    """
    if packs:
        # failpoint packs.remove
        jobs.delete_many({"_id": {"$in": packs}, "left": 0}, hint=BY_ID)


def _not_all(
    jobs: Jobs, packs: Mapping[Pack, list[Job]], removed: int, marked: int
) -> dict[str, SluiceError]:
    """Look into packs of which not all were written; mark what is not marked, and end what was lifted.

    Lifted jobs come last: a job whose bit was found set by a lift is stored alone by then.
    """
    wanted = {"owner": 1, "hold": 1, **dict.fromkeys(_WORDS, 1)}
    problems: dict[str, SluiceError] = {}
    asked = {pack: _bits(these) for pack, these in packs.items()}
    all_set: list[tuple[dict[Pack, int], int]] = []  # and of how many packs each statement has set them
    while asked:
        found = jobs.find({"_id": {"$in": [pack.id for pack in asked]}}, wanted, hint=BY_ID)
        there = {document["_id"]: document for document in found}
        missing = len(asked) - len(there)
        set_ = {pack: bits & done_bits(there.get(pack.id, {})) for pack, bits in asked.items()}
        all_set.append(({}, marked))
        left: dict[Pack, int] = {}
        for pack, bits in asked.items():
            stored, these = there.get(pack.id), packs[pack]
            if stored is None:
                if missing > removed:
                    problems |= _each(uncertain, these, bits)
            elif (stored.get("owner"), stored.get("hold")) != these[0].reservation:
                problems |= _each(taken_over, these, bits)
            else:
                pack.done |= set_[pack]
                if set_[pack] == bits:
                    all_set[-1][0][pack] = bits
                else:
                    left[pack] = bits & ~set_[pack]
                    problems |= _each(uncertain, these, set_[pack])
        marks = [
            UpdateOne({**_held(pack, packs[pack][0].reservation), **_clear(bits)}, _marking(bits))
            for pack, bits in left.items()
        ]
        # failpoint packs.mark
        marked = jobs.bulk_write(marks, ordered=False).modified_count if marks else 0
        if marked == len(marks):
            break  # else a lift has set a bit meanwhile, so fewer are left the next time
        asked, removed = left, 0
    ended = _end_lifted(jobs, packs)
    for found_set, ours in all_set:
        doubtful = [_each(uncertain, packs[pack], bits) for pack, bits in found_set.items()]
        doubtful = [these for these in doubtful if not these.keys() & ended]
        if len(doubtful) > ours:  # an order has set those of one of them, and nobody knows which
            problems.update(chain.from_iterable(these.items() for these in doubtful))
    return {job_id: problem for job_id, problem in problems.items() if job_id not in ended}


def _each(problem: Callable[[str], SluiceError], jobs: Iterable[Job], bits: int) -> dict[str, SluiceError]:
    """Return the problem of each of these jobs whose bit is among these."""
    return {job.id: problem(job.id) for job in jobs if _bits([job]) & bits}


def _end_lifted(jobs: Jobs, packs: Mapping[Pack, list[Job]]) -> set[str]:
    """End those jobs that a lift without an answer has stored alone; return their ids."""
    alone = {
        "$or": [
            {**_held(pack, these[0].reservation), "_id": {"$in": [job.id for job in these]}}
            for pack, these in packs.items()
        ]
    }
    ended = {document["_id"] for document in jobs.find(alone, {"_id": 1})}
    if not ended:
        return ended
    # failpoint packs.end_lifted
    removed = jobs.delete_many(alone).deleted_count
    return ended if removed == len(ended) else set()  # an order may have removed one of them meanwhile


# ------------------------------------------------------------------------------------ release


def release_packed(jobs: Jobs, released: Sequence[Job]) -> set[Job]:
    """Give back packs of which all that is left is among these jobs; return the jobs that were given back so.

    The others still lie in their packs: lift them. Raises the driver's errors.
    """
    whole = {pack: these for pack, these in _by_pack(released).items() if _bits(these) == pack.left}
    if not whole:
        return set()
    writes = [
        UpdateOne({**_held(pack, these[0].reservation), "left": len(these), "state": State.RESERVED}, RELEASE)
        for pack, these in whole.items()
    ]
    # failpoint packs.release
    freed = jobs.bulk_write(writes, ordered=False).modified_count
    return {job for these in whole.values() for job in these} if freed == len(writes) else set()


# --------------------------------------------------------------------------------------- lift


class Lift(NamedTuple):
    """Jobs to be stored alone: the pack as it must be found, and their bits; ``ours``: jobs that we hold."""

    which: Document
    bits: int
    ours: Sequence[Job] = ()


def lift(jobs: Jobs, lifted: Sequence[Job]) -> None:
    """Store jobs of ours alone, under the reservation of their packs. Raises as :func:`transact`.

    Jobs that are not in their packs any more, or not ours, are left to the statement that comes next.
    """
    packs = _by_pack(lifted)
    lifts = [Lift(_held(pack, these[0].reservation), _bits(these), these) for pack, these in packs.items()]
    lift_out(jobs, lifts, 0.0)  # each of ours is a job
    with translated():
        remove_empty(jobs, [pack.id for pack in packs if not pack.left])


def lift_by_id(jobs: Jobs, job_id: str, state: State, now: float) -> None:
    """Store a job of this id alone, if it is in this state and in a pack. Raises as :func:`transact`.

    The broker that holds its pack finds its bit set, and statements about the job find it alone.
    """
    with translated():
        found = find_packed(jobs, [job_id]).get(job_id)
    if found is not None and found.stored["state"] == state:
        names = ("_id", "state", "owner", "hold")
        as_found: Document = {key: found.stored[key] for key in names if key in found.stored}
        lift_out(jobs, [Lift(as_found, found.bit)], now)


def lift_out(jobs: Jobs, lifts: Sequence[Lift], now: float) -> None:
    """Take jobs out of their packs, and insert each alone: many packs in one transaction.

    Commits of other jobs of a pack conflict with it, so after some conflicts it has half as many packs. Lost
    reply: a repetition finds the bits set, and does nothing. A job whose id another one has by now is not
    inserted: two can't lie under one id. Raises as :func:`transact`.
    """
    parts = in_halves(
        lifts, partial(_lift_some, jobs, now=now), refused=(Aborted,), most=lambda: _LIFTS_AT_ONCE
    )
    for part, answer in parts:
        if isinstance(answer, Exception):
            raise answer
        for job in chain.from_iterable(lifted.ours for lifted in part):
            job.leave_pack()


#: Packs of one such transaction: up to 32 MiB of them are read.
_LIFTS_AT_ONCE: Final = 32


def _lift_some(jobs: Jobs, lifts: Sequence[Lift], now: float) -> None:
    taken: set[str] = set()
    tries = 0

    def read() -> Sequence[Lift]:
        nonlocal tries
        tries += 1
        if tries > 1:
            ids: list[str] = []
            for stored in jobs.find({"_id": {"$in": [lift.which["_id"] for lift in lifts]}}, hint=BY_ID):
                ids += [entry[0] for entry in entries(stored) if is_job(entry)]
            found = jobs.find({"_id": {"$in": ids}}, {"_id": 1}, hint=BY_ID)
            taken.update(document["_id"] for document in found)
        return lifts

    def apply(some: Sequence[Lift], session: ClientSession) -> None:
        documents: list[Document] = []
        marks: list[UpdateOne] = []
        ids = [wanted.which["_id"] for wanted in some]
        there = {
            stored["_id"]: stored for stored in jobs.find({"_id": {"$in": ids}}, session=session, hint=BY_ID)
        }
        for wanted in some:
            stored = there.get(wanted.which["_id"], {})
            if not stored or any(stored.get(name) != value for name, value in wanted.which.items()):
                continue
            bits = wanted.bits & left_in(stored)  # an order may have lifted one of them
            marks.append(UpdateOne({"_id": stored["_id"]}, _marking(bits), hint=BY_ID))
            try:
                documents += alone(stored, bits, now)
            except Unreadable as error:
                marks.append(UpdateOne({"_id": stored["_id"]}, aside(str(error), now), hint=BY_ID))
        if marks:
            # failpoint packs.lift
            jobs.bulk_write(marks, session=session)
        if documents := [document for document in documents if document["_id"] not in taken]:
            # failpoint packs.insert_lifted
            jobs.insert_many(documents, ordered=False, session=session)
        # failpoint packs.remove_lifted
        jobs.delete_many({"_id": {"$in": ids}, "left": 0}, session=session, hint=BY_ID)

    # failpoint lifts
    transact(jobs.database.client, read, apply, "lifted jobs")
