"""Marks of packs: the commits of jobs that lie in them, and what is given back as a whole.

A mark sets bits that are not set, under the reservation that it names; the last one removes the pack.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from bson.int64 import Int64
from pymongo import DeleteOne, UpdateOne

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.job import Job, Pack, Reservation, State
from sluicemq_broker.store.errors import applied
from sluicemq_broker.store.jobs.outcomes import RELEASE, taken_over, uncertain
from sluicemq_broker.store.jobs.pack_contents import WORD, WORDS, done_bits
from sluicemq_broker.store.values import BY_ID, Document, Jobs


def end_packed(jobs: Jobs, ended: Sequence[Job]) -> dict[str, SluiceError]:
    """Commit jobs that lie in packs; return the ids of those that were not ended, and why.

    Lost reply: a repetition finds the marks, or the pack removed. It says :class:`Uncertain` of marks that it
    has not set: an order may have removed the job. Raises the driver's errors.
    """
    packs = by_pack(ended)
    writes: list[DeleteOne | UpdateOne] = []
    for pack, these in packs.items():
        bits, which = bits_of(these), held_under(pack, these[0].reservation)
        if bits == pack.left:
            writes.append(DeleteOne({**which, "left": len(these)}))
        else:
            writes.append(UpdateOne({**which, **clear(bits)}, marking(bits)))
    # failpoint packs.commit
    answer = jobs.bulk_write(writes, ordered=False)
    written = answer.deleted_count + answer.modified_count
    problems: dict[str, SluiceError] = {}
    if written < len(writes):
        with applied():
            problems = _not_all(jobs, packs, written)
    for pack, these in packs.items():
        pack.done |= bits_of(job for job in these if job.id not in problems)
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


def _not_all(jobs: Jobs, packs: Mapping[Pack, list[Job]], written: int) -> dict[str, SluiceError]:
    """Look into packs, of which a statement has ``written`` a number: mark the rest, end what was lifted.

    A pack that is gone, or has all these bits, was written, or an order has lifted its jobs and removed them:
    of too many such nobody knows which. Lifted jobs come last: each is stored alone once its bit is seen.
    """
    problems: dict[str, SluiceError] = {}
    perhaps: list[list[Job]] = []
    there = _marks_of(jobs, packs)
    for pack, these in packs.items():
        stored, bits = there.get(pack.id), bits_of(these)
        if stored is None or (_holds(stored, these) and not bits & ~done_bits(stored)):
            pack.done |= bits
            perhaps.append(these)
        else:
            problems |= _mark(jobs, pack, these, stored)
    ended = _end_lifted(jobs, packs)
    not_written = [these for these in perhaps if any(job.id in ended for job in these)]
    if len(perhaps) - len(not_written) > written:
        not_written = perhaps
    problems |= {job.id: uncertain(job.id) for these in not_written for job in these}
    return {job_id: problem for job_id, problem in problems.items() if job_id not in ended}


def _mark(jobs: Jobs, pack: Pack, these: Sequence[Job], stored: Document) -> dict[str, SluiceError]:
    """Mark jobs of a pack that is stored so; return those that others marked or took over, and why."""
    problems: dict[str, SluiceError] = {}
    left = bits_of(these)
    while left:
        if not _holds(stored, these):
            return problems | _each(taken_over if stored else uncertain, these, left)
        lifted = left & done_bits(stored)
        problems |= _each(uncertain, these, lifted)
        pack.done |= lifted
        left &= ~lifted
        which = {**held_under(pack, these[0].reservation), **clear(left)}
        # failpoint packs.mark
        if left and jobs.update_one(which, marking(left)).modified_count:
            break
        # A lift has set one of them meanwhile.
        stored = _marks_of(jobs, [pack]).get(pack.id, {})
    return problems


def _marks_of(jobs: Jobs, packs: Iterable[Pack]) -> dict[str, Document]:
    """Read the marks of these packs, and whose they are."""
    wanted = {"owner": 1, "hold": 1, **dict.fromkeys(WORDS, 1)}
    found = jobs.find({"_id": {"$in": [pack.id for pack in packs]}}, wanted, hint=BY_ID)
    return {document["_id"]: document for document in found}


def _holds(stored: Document, these: Sequence[Job]) -> bool:
    """Return True if a stored pack is under the reservation of these jobs."""
    return (stored.get("owner"), stored.get("hold")) == these[0].reservation


def _each(problem: Callable[[str], SluiceError], jobs: Iterable[Job], bits: int) -> dict[str, SluiceError]:
    """Return the problem of each of these jobs whose bit is among these."""
    return {job.id: problem(job.id) for job in jobs if bits_of([job]) & bits}


def _end_lifted(jobs: Jobs, packs: Mapping[Pack, list[Job]]) -> set[str]:
    """End those jobs that a lift without an answer has stored alone; return their ids."""
    alone = {
        "$or": [
            {**held_under(pack, these[0].reservation), "_id": {"$in": [job.id for job in these]}}
            for pack, these in packs.items()
        ]
    }
    ended = {document["_id"] for document in jobs.find(alone, {"_id": 1})}
    if not ended:
        return ended
    # failpoint packs.end_lifted
    removed = jobs.delete_many(alone).deleted_count
    return ended if removed == len(ended) else set()  # an order may have removed one of them meanwhile


def release_packed(jobs: Jobs, released: Sequence[Job]) -> set[Job]:
    """Give back packs of which all that is left is among these jobs; return the jobs that were given back so.

    The others still lie in their packs: lift them. Raises the driver's errors.
    """
    whole = {pack: these for pack, these in by_pack(released).items() if bits_of(these) == pack.left}
    if not whole:
        return set()
    writes = [
        UpdateOne(
            {**held_under(pack, these[0].reservation), "left": len(these), "state": State.RESERVED}, RELEASE
        )
        for pack, these in whole.items()
    ]
    # failpoint packs.release
    freed = jobs.bulk_write(writes, ordered=False).modified_count
    return {job for these in whole.values() for job in these} if freed == len(writes) else set()


# ----------------------------------------------------------------------------------- marks


def clear(bits: int) -> Document:
    """Return the filter for packs in which none of these bits is set."""
    return {word: {"$not": {"$bitsAnySet": at}} for word, at in _positions(bits).items()}


def marking(bits: int) -> Document:
    """Return the update that sets these bits."""
    counted: Document = {"$inc": {"left": -bits.bit_count()}}
    words = {word: {"or": _word(at)} for word, at in _positions(bits).items()}
    return {"$bit": words, **counted} if words else counted


def _positions(bits: int) -> dict[str, list[int]]:
    words = {word: bits >> 64 * n & WORD for n, word in enumerate(WORDS)}
    return {word: [at for at in range(64) if value >> at & 1] for word, value in words.items() if value}


def _word(positions: Iterable[int]) -> Int64:
    value = sum(1 << at for at in positions)
    return Int64(value - 2**64 if value >> 63 else value)


def held_under(pack: Pack, reservation: Reservation) -> Document:
    """Return the filter for a pack under a reservation."""
    return {"_id": pack.id, "owner": reservation.owner, "hold": reservation.number}


def by_pack(jobs: Iterable[Job]) -> dict[Pack, list[Job]]:
    """Return those of these jobs that lie in packs, of each pack."""
    packs: dict[Pack, list[Job]] = defaultdict(list)
    for job in jobs:
        if job.pack is not None:
            packs[job.pack].append(job)
    return packs


def bits_of(jobs: Iterable[Job]) -> int:
    """Return the bits of these jobs in their pack."""
    bits = 0
    for job in jobs:
        if job.pack is not None:
            bits |= 1 << job.seq - job.pack.seq
    return bits
