"""Making indexes of a queue's collection: together or each by itself, and again if missing.

Where something keeps an index from being made, it is put right if possible, and reported. Without an index
jobs come slowly, or a ``dedupe_id`` is not kept; without this care they would not come at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from pymongo import IndexModel
from pymongo.errors import OperationFailure

from sluicemq_broker.job import State
from sluicemq_broker.runtime import Count
from sluicemq_broker.store.creation import by_majority
from sluicemq_broker.store.errors import ServerCode, brief, in_trouble
from sluicemq_broker.store.halving import READ_AT_ONCE
from sluicemq_broker.store.jobs.index_models import INDEXES, LINE_INDEX, PACK_INDEX, SLOT_INDEX
from sluicemq_broker.store.values import Document, Jobs
from sluicemq_devices.hub import in_parts

#: Called with what was found: its kind, and a text for the log.
Notice = Callable[[str, str], None]


def ignore(_kind: str, _text: str) -> None:
    """A :data:`Notice` that nobody reads."""


def make_indexes(jobs: Jobs, notice: Notice, wanted: Sequence[IndexModel] = INDEXES) -> None:
    """Make missing indexes, and make those again that have other options.

    Crash in between: the next call makes what is missing then.
    """
    try:
        # failpoint *
        jobs.create_indexes(wanted, **by_majority(jobs))
    except OperationFailure as error:
        if in_trouble(error):
            raise
        for index in wanted:
            _make(jobs, index, notice)


def mend_indexes(
    jobs: Jobs,
    notice: Notice,
    wanted: Sequence[IndexModel],
    unwanted: Iterable[IndexModel],
    *,
    gives_slots: bool,
) -> None:
    """Make missing indexes of a collection that exists.

    Remove ``unwanted`` ones, and that of slots where none are given and no job has one.
    """
    there = jobs.index_information()
    if there and not {index_name(index) for index in wanted} <= there.keys():
        # failpoint indexes.mend
        make_indexes(jobs, notice, wanted)
    for name in {index_name(index) for index in unwanted} & there.keys():
        # failpoint indexes.drop_unwanted
        jobs.drop_index(name)
    if SLOT_INDEX in there and not gives_slots:
        with_slot = jobs.find_one({"slot.tenant": {"$gte": ""}}, {"_id": 1}, hint=SLOT_INDEX)
        if with_slot is None:
            # failpoint indexes.drop_slots
            jobs.drop_index(SLOT_INDEX)


class IndexOnDemand:
    """An index that is made when the first statement needs it, which takes a while in a full queue."""

    def __init__(self, jobs: Jobs, index: IndexModel, notice: Notice) -> None:
        self.name = index_name(index)
        self._jobs = jobs
        self._index = index
        self._notice = notice
        self._made = False

    def forget(self) -> None:
        """Make it again when it is needed: the collection was removed, with all of its indexes."""
        self._made = False

    @contextmanager
    def used(self) -> Iterator[str]:
        """Make the index if need be, and return its name for a statement."""
        if not self._made:
            _make(self._jobs, self._index, self._notice)
            self._made = True
        try:
            yield self.name
        except OperationFailure:  # another broker, or somebody, may have removed the index
            self._made = False
            raise


def has_lines(jobs: Jobs) -> bool:
    """Return True if a job may wait there, for its turn or its children; none ever did without this index."""
    return LINE_INDEX in jobs.index_information()


def has_packs(jobs: Jobs) -> bool:
    """Return True if packs may lie there, which are counted by their index."""
    return PACK_INDEX in jobs.index_information()


def may_have(jobs: Jobs, state: str) -> bool:
    """Return False if no job can be in this state: then nobody should look, as there is no index."""
    return state != State.WAITING or has_lines(jobs)


def _make(jobs: Jobs, index: IndexModel, notice: Notice) -> None:
    problem = ""
    # How often obstacles are removed before the next sweep tries again
    for _ in range(3):
        try:
            # failpoint indexes.make_one
            jobs.create_indexes([index], **by_majority(jobs))
        except OperationFailure as error:
            if in_trouble(error):
                raise
            problem = brief(error)
            if error.code in {ServerCode.INDEX_OPTIONS_CONFLICT, ServerCode.INDEX_KEYS_CONFLICT}:
                _drop_the_other(jobs, index, notice)
            elif error.code == ServerCode.DUPLICATE_KEY and index_name(index) == SLOT_INDEX:
                # failpoint indexes.free_slots
                jobs.update_many({"slot": {"$exists": True}}, {"$unset": {"slot": ""}})
            elif error.code == ServerCode.DUPLICATE_KEY:
                _free_dedupe_ids(jobs, notice)
            else:
                break
        else:
            return
    notice(Count.UNINDEXED, f"{jobs.name}: index {index_name(index)} can't be made: {problem}")


def _drop_the_other(jobs: Jobs, index: IndexModel, notice: Notice) -> None:
    keys = list(index.document["key"].items())
    for name, other in jobs.index_information().items():
        if name == index_name(index) or other["key"] == keys:
            notice(Count.INDEXES_REMADE, f"{jobs.name}: index {name} was made otherwise")
            # failpoint indexes.drop_other
            jobs.drop_index(name)


def _free_dedupe_ids(jobs: Jobs, notice: Notice) -> None:
    """Leave each ``dedupe_id`` to its first job: the others came in while no index kept them out.

    They become jobs without one. An array would be many ids at once, and is removed.
    """
    free: Document = {"$unset": {"dedupe_id": "", "dedupe_until": ""}}
    # failpoint indexes.free_odd_dedupe_ids
    jobs.update_many({"dedupe_id": {"$type": "array"}}, free)
    shared: list[Document] = [
        {"$match": {"dedupe_id": {"$exists": True}}},
        {"$sort": {"seq": 1, "created_at": 1}},
        {"$group": {"_id": "$dedupe_id", "holders": {"$push": "$_id"}}},
        {"$match": {"holders.1": {"$exists": True}}},
    ]
    for document in jobs.aggregate(shared, allowDiskUse=True):
        first, *others = document["holders"]
        for some in in_parts(others, READ_AT_ONCE):
            these = {"_id": {"$in": some}, "dedupe_id": document["_id"]}
            # failpoint indexes.free_shared_dedupe_ids
            jobs.update_many(these, free)
        notice(
            Count.DEDUPE_IDS_SHARED,
            f"{jobs.name}: {len(others)} jobs beside {str(first)[:128]!r} had its dedupe_id "
            f"{str(document['_id'])[:128]!r}, first {str(others[0])[:128]!r}: they are kept without it",
        )


def index_name(index: IndexModel) -> str:
    """Return the name of an index."""
    return str(index.document["name"])
