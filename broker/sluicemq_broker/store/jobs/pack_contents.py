"""Contents of a stored pack: its jobs, those that are left in it, and entries that are no jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from bson.int64 import Int64

from sluicemq.protocol import msgpack_values
from sluicemq.protocol.errors import BadFramesError
from sluicemq_broker.job import Job, Pack
from sluicemq_broker.store.jobs.documents import PACK_FIELDS, QueueDefaults
from sluicemq_broker.store.jobs.documents import job as read_job
from sluicemq_broker.store.jobs.outcomes import RESERVATION, dead
from sluicemq_broker.store.jobs.packs import MOST
from sluicemq_broker.store.set_aside import Unreadable
from sluicemq_broker.store.values import Document

#: True of packs.
PACKS: Final[Document] = {"left": {"$gte": 0}}
#: Fields with the bits of jobs that are no longer in it, and the bits of one.
WORDS: Final = ("d0", "d1", "d2", "d3")
WORD: Final = 2**64 - 1


def is_pack(stored: Mapping[str, Any]) -> bool:
    """Return True for the document of a pack."""
    return "left" in stored


def done_bits(stored: Mapping[str, Any]) -> int:
    """Return the bits of jobs that are no longer in a stored pack."""
    return sum((int(stored.get(word, 0)) & WORD) << 64 * n for n, word in enumerate(WORDS))


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
