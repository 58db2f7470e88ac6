"""Groups of one queue: each has a line of jobs that wait, and one job that is out of it, the head.

::

    push ──▶ waiting (wait: {group, place}) ── promote ──▶ head (head: its group): ready, reserved, ready, …
                                                             │
              the next of its group may be promoted ◀── done, dead, cancelled, expired

A push inserts, **then** promotes; the end of a head is durable, **then** promotes. The unique index on
``head`` refuses a second head: there is one already, and its end will promote. So of a push and an end at one
moment, at any two brokers, at least one promotes, and at most one promotion is carried out. A broker that is
killed between the two steps leaves a group without a head: :meth:`headless` finds it.

The indexes are made before the first job waits, so a queue without groups pays nothing for them; both reads
take two keys for each group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any, Final, NamedTuple

from pymongo import IndexModel, ReturnDocument, UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError

from sluicemq_broker.job import State
from sluicemq_broker.store.connection import durable
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.index_models import CHILD_INDEXES, IN_LINE, INDEXES, LINE_INDEXES
from sluicemq_broker.store.jobs.indexes import Notice, has_lines, ignore, make_indexes
from sluicemq_broker.store.values import BY_ID, Document, Jobs, date, seconds
from sluicemq_broker.store.write_results import refusals

#: One document for each queue that ever had a group, or a child of some job:
#: ``{_id: its collection, last?: the highest place, children?: true, removed_at?}``. It stays for a day when
#: the queue is removed.
PLACES: Final = "places"
#: Groups that are looked at together.
_PAGE: Final = 1000
#: ``waiting`` to ``ready``: its group has a head.
_HEAD: Final[list[Document]] = [
    {"$set": {"state": State.READY.value, "head": "$wait.group"}},
    {"$unset": "wait"},
]


class NewHead(NamedTuple):
    """A job that is ``ready`` now: its priority and number, and when it is due, as the server's time."""

    priority: int
    due: float
    seq: int


class Promoted(NamedTuple):
    """Jobs that are ``ready`` now.

    ``expired``: ids of first jobs whose time to live is over. They keep their groups waiting until they are
    ended.
    """

    ready: list[NewHead]
    expired: list[str]


class GroupStore:
    """The lines of one queue; ``notice`` is called with what keeps an index from being made."""

    def __init__(self, jobs: Jobs, notice: Notice = ignore) -> None:
        self._jobs = jobs
        self._notice = notice
        self._prepared = False
        self._prepared_for_children = False
        self.ever_waited = False
        """True if any job ever had to wait here, as far as is known."""
        # By majority: the insert at a place may go to the next primary, which would give it again.
        self._places = durable(jobs.database)[PLACES]

    def prepare(self) -> None:
        """Let jobs wait here from now on; only the first call asks MongoDB.

        Crash in between: the next :meth:`wanted` reports the indexes, and they are made.
        """
        if not self._prepared:
            with translated():
                none_yet = {"$setOnInsert": {"last": 0}}
                # failpoint groups.prepare
                self._places.update_one({"_id": self._jobs.name}, none_yet, upsert=True)
                # failpoint groups.index
                make_indexes(self._jobs, self._notice, LINE_INDEXES)
            self._prepared = self.ever_waited = True

    def prepare_for_children(self) -> None:
        """Let children be stored here from now on; only the first call asks MongoDB.

        A removal of the queue puts it aside first, and reads this mark then: so it sees the mark of each
        transaction that inserted children before. Crash in between: as :meth:`prepare`.
        """
        if not self._prepared_for_children:
            with translated():
                mark = {"$set": {"children": True}}
                # failpoint children.prepare
                self._places.update_one({"_id": self._jobs.name}, mark, upsert=True)
                # failpoint children.index
                make_indexes(self._jobs, self._notice, CHILD_INDEXES)
            self._prepared_for_children = True

    def wanted(self) -> list[IndexModel]:
        """Return the indexes that the queue needs, whatever it has; raises the driver's errors."""
        mark = self._places.find_one({"_id": self._jobs.name}) or {}
        self.ever_waited = self.ever_waited or "last" in mark
        lines = LINE_INDEXES if "last" in mark else ()
        return [*INDEXES, *lines, *(CHILD_INDEXES if mark.get("children") else ())]

    def may_have_children(self) -> bool:
        """Return True if any job here ever was a child; raises the driver's errors."""
        these = {"_id": self._jobs.name, "children": True}
        return self._places.find_one(these, {"_id": 1}) is not None

    def dropped(self) -> None:
        """Note that the collection was removed: the next :meth:`prepare` makes the indexes again."""
        self._prepared = self._prepared_for_children = False

    def places(self, count: int) -> int:
        """Return the first of ``count`` places that no other job has, behind all that were given before.

        Clocks would not do: those of two brokers differ. Lost reply: these places stay empty. The counter
        stays for a day when the queue is deleted, as another broker may be about to use the last places.
        """
        self.prepare()
        with translated():
            # failpoint groups.places
            found = self._places.find_one_and_update(
                {"_id": self._jobs.name},
                {"$inc": {"last": count}},
                upsert=True,
                return_document=ReturnDocument.AFTER,
            )
        last: int = (found or {})["last"]
        return last - count + 1

    def promote(self, groups: Collection[str], now: float) -> Promoted:
        """Make the first job of each line ``ready``, and the head of its group, where there is none.

        The update names each job and its place, as they were read. One update for all takes half the time of
        single ones, but stops at the first group that has a head by now: then single ones follow, which don't
        stop. Crash or lost reply: each is promoted or not; a repetition promotes the others.
        """
        promoted = Promoted([], [])
        left = set(groups)
        with translated():
            # How often the first jobs are looked for, as other brokers are faster.
            for _ in range(5):
                left -= self.with_heads(left)
                first = self.first(left) if left else []
                over = [head for head in first if _is_over(head, now)]
                promoted.expired.extend(document["_id"] for document in over)
                first = [head for head in first if head not in over]
                left = {document["wait"]["group"] for document in first}
                if not first or self.make_heads(first, promoted):
                    break
        return promoted

    def headless(self) -> Iterator[list[str]]:
        """Yield the groups that wait and have no head, in parts; one may be about to have one."""
        lines: list[Document] = [
            {"$match": {"wait.group": {"$gte": ""}}},
            {"$sort": dict(IN_LINE)},
            {"$group": {"_id": "$wait.group", "place": {"$first": "$wait.place"}}},
        ]
        with translated():
            if not has_lines(self._jobs):
                return
            found = self._jobs.aggregate(lines, batchSize=_PAGE)
            for page in _pages(document["_id"] for document in found):
                heads = self.with_heads(page)
                if left := [group for group in page if group not in heads]:
                    yield left

    def with_heads(self, groups: Collection[str]) -> set[str]:
        """Return those of these groups that have a head."""
        wanted = {"head": {"$in": list(groups)}}
        return {document["head"] for document in self._jobs.find(wanted, {"head": 1, "_id": 0})}

    def first(self, groups: Collection[str]) -> list[Document]:
        """Read the first job of each line: id, number, place, priority, when it is due and expires."""
        wanted = ("wait", "priority", "eligible_at", "seq")
        lines: list[Document] = [
            {"$match": {"wait.group": {"$in": list(groups)}}},
            {"$sort": dict(IN_LINE)},
            {
                "$group": {
                    "_id": "$wait.group",
                    "id": {"$first": "$_id"},
                    **{name: {"$first": f"${name}"} for name in wanted},
                }
            },
        ]
        found = self._jobs.aggregate(lines)
        # A document that somebody wrote by hand may have an array there.
        return [
            {**document, "_id": document["id"]}
            for document in found
            if isinstance(document["_id"], str) and isinstance(document["wait"], dict)
        ]

    def make_heads(self, first: list[Document], promoted: Promoted) -> bool:
        """Promote these jobs; False if one is no longer first, so that its group is read again."""
        # By their places too, as no other job will ever have one of them.
        these = {
            "_id": {"$in": [document["_id"] for document in first]},
            "state": State.WAITING,
            "wait.place": {"$in": [document["wait"].get("place") for document in first]},
        }
        try:
            # failpoint groups.make_heads
            matched = self._jobs.update_many(these, _HEAD, hint=BY_ID).matched_count
        except DuplicateKeyError:
            return self._make_heads_singly(first, promoted)
        promoted.ready.extend(map(_hint, first))
        return bool(matched == len(first))

    def _make_heads_singly(self, first: list[Document], promoted: Promoted) -> bool:
        writes = [
            UpdateOne(
                {"_id": document["_id"], "state": State.WAITING, "wait.place": document["wait"].get("place")},
                _HEAD,
            )
            for document in first
        ]
        refused: set[int] = set()
        try:
            # failpoint groups.make_heads_singly
            matched = self._jobs.bulk_write(writes, ordered=False).matched_count
        except BulkWriteError as error:
            refusals(error)  # durability first
            refused = {document["index"] for document in error.details["writeErrors"]}
            matched = error.details["nMatched"]
        promoted.ready.extend(_hint(head) for at, head in enumerate(first) if at not in refused)
        # Jobs that the first update promoted don't match; another look finds their heads.
        return bool(matched + len(refused) >= len(first))


def _is_over(waiting: Document, now: float) -> bool:
    expires_at = waiting["wait"].get("expires_at")
    return isinstance(expires_at, datetime) and expires_at <= date(now)


def _hint(promoted: Document) -> NewHead:
    """Return a promoted job; a document that is no job is claimed as well, and set aside."""
    priority, due, seq = promoted["priority"], promoted["eligible_at"], promoted.get("seq")
    return NewHead(
        priority if isinstance(priority, int) else 255,  # the highest
        seconds(due) if isinstance(due, datetime) else 0.0,
        seq if isinstance(seq, int) else 0,
    )


def _pages(groups: Iterable[Any]) -> Iterator[list[str]]:
    names = (group for group in groups if isinstance(group, str))
    while page := list(islice(names, _PAGE)):
        yield page
