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
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from sluicemq.protocol import msgpack_values
from sluicemq_broker.job import Job, Pack
from sluicemq_broker.store.jobs.documents import QueueDefaults, document
from sluicemq_broker.store.values import Document

#: Jobs of a pack, at least: fewer cost as much one by one. At most, and their bytes: it counts whole in
#: memory, and half as many jobs cost MongoDB three times as much each.
LEAST: Final = 32
MOST: Final = 256
MOST_BYTES: Final = 2**20
#: Ids by the library and by brokers: milliseconds, the maker's mark, its count.
_IDS: Final = re.compile(
    r"[0-9a-f]{12}(?:([0-9a-f]{10})([0-9a-f]{8})|-([0-9a-f]{8})-([1-9a-f][0-9a-f]{0,11}))"
)
#: Rare attributes that jobs in packs may have, if all have equal ones.
_ALIKE: Final = frozenset({"story", "kind"})


def form_packs(jobs: Sequence[Job], defaults: QueueDefaults) -> None:
    """Put accepted jobs of one message into packs, where :data:`LEAST` in a row are plain and alike.

    Nothing else decides, so a repeated message makes packs of equal ids again.
    """
    if len(jobs) < LEAST:
        return
    run: list[Job] = []
    size, last = 0, None
    for job in jobs:
        place = place_of(job.id)
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
    if len(run) >= LEAST and (first := place_of(run[0].id)) is not None:
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


class Place(NamedTuple):
    """Maker and number of an id that was not given by a producer."""

    mark: str
    number: int

    @property
    def pack(self) -> str:
        """Id of the pack that begins with it."""
        return f"pack/{self.mark}/{self.number:012x}"


def place_of(job_id: str) -> Place | None:
    """Return the place of an id; None: a producer has given it."""
    match = _IDS.fullmatch(job_id)
    if match is None:
        return None
    mark, number = match.group(1) or match.group(3), match.group(2) or match.group(4)
    return Place(mark, int(number, 16))
