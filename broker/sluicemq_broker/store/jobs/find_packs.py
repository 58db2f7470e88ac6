"""Packs are found by the ids of their jobs: an id names its pack by range."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from sluicemq_broker.store.jobs.index_models import PACK_INDEX
from sluicemq_broker.store.jobs.indexes import has_packs
from sluicemq_broker.store.jobs.pack_contents import PACKS, done_bits, entries, is_job
from sluicemq_broker.store.jobs.packs import MOST, Place, place_of
from sluicemq_broker.store.set_aside import Unreadable
from sluicemq_broker.store.values import BY_ID, Document, Jobs
from sluicemq_devices.hub import in_parts


class Packed(NamedTuple):
    """A job that lies in a pack: the document of the pack, and the job's bit."""

    stored: Document
    bit: int


def find_packed(jobs: Jobs, ids: Iterable[str], *, ended: bool = False) -> dict[str, Packed]:
    """Return the jobs of these ids that lie in packs; with ``ended`` also those that are done or lifted out.

    An id names its pack by range, so this reads the packs around it alone. Raises the driver's errors.
    """
    wanted: dict[str, list[Place]] = defaultdict(list)
    names = set(ids)
    for name in names:
        if (place := place_of(name)) is not None:
            wanted[place.mark].append(place)
    ranges = [_range(sorted(places)) for places in wanted.values()]
    found: dict[str, Packed] = {}
    for some in in_parts(ranges, 100):  # makers of ids
        for stored in jobs.find({"$or": some, **PACKS}, hint=BY_ID):
            found |= _among(stored, names, ended=ended)
    return found


def packs_around(job_id: str) -> Document | None:
    """Return the filter for the packs in which a job of this id may lie; None: it can lie in none."""
    place = place_of(job_id)
    return None if place is None else {**_range([place]), **PACKS}


def _range(places: Sequence[Place]) -> Document:
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
