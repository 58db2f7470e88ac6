"""Removal of a whole queue, with the parents of the children that lie in it.

It takes three steps: the collection is put aside under another name, the parents of what lies in it die, and
it is dropped. Killed before the first step, nothing is done; killed after it, any broker goes on
(:func:`all_put_aside`). Doing a step again is harmless.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from secrets import token_hex
from typing import Final

import gevent
from pymongo import IndexModel
from pymongo.errors import OperationFailure

from sluicemq_broker.store.cluster.limits import COLLECTION as LIMITS
from sluicemq_broker.store.connection import Documents
from sluicemq_broker.store.creation import by_majority
from sluicemq_broker.store.errors import ServerCode
from sluicemq_broker.store.jobs.documents import PUT_ASIDE, collection, parent_of, queue_of
from sluicemq_broker.store.jobs.failed_children import (
    AWAITED,
    ParentQueues,
    fail_all,
    reasons_of,
    remove_children,
)
from sluicemq_broker.store.jobs.groups import PLACES, GroupStore
from sluicemq_broker.store.jobs.index_models import CHILD_INDEXES, PARENT_INDEX
from sluicemq_broker.store.jobs.indexes import ignore, make_indexes
from sluicemq_broker.store.jobs.portions import Portions
from sluicemq_broker.store.values import BY_ID, Jobs, date

#: Prefix of the empty collections that take the place of removed ones.
EMPTY: Final = "deleted."
#: Children that are read at once.
CHILDREN: Final = 500


def aside_name(queue: str, token: str) -> str:
    """Return the name of the collection with the jobs of a queue that this removal has put aside."""
    return f"{PUT_ASIDE}{queue}.{token}"


def token_of(aside: Jobs) -> str:
    """Return the token of the removal that has put this collection aside."""
    return aside.name.rpartition(".")[2]


def put_aside(jobs: Jobs, now: float, token: str, *, leave_empty: bool) -> Jobs:
    """Rename the collection of a queue, in one step: from then on nobody changes what lies in it.

    This is where a removal and all that adds jobs meet: a job is in the collection before, and goes with it,
    or it makes another collection after.

    ``leave_empty``: an empty collection with the queue's indexes takes its place. An insert may be faster and
    make it without indexes: then these are made at once. Killed before: :func:`drop_left_over` removes the
    empty one.
    """
    database, name = jobs.database, jobs.name
    wanted = GroupStore(jobs).wanted()
    aside = database[aside_name(queue_of(name), token)]
    empty = database[f"{EMPTY}{queue_of(name)}.{int(now * 1000):x}-{token_hex(4)}"]
    if leave_empty:
        # failpoint queues.make_empty
        empty.create_indexes(wanted, **by_majority(empty))
    _mark_beside(jobs, now)
    _rename(jobs, aside.name, unless={ServerCode.NAMESPACE_NOT_FOUND})
    if leave_empty and not _rename(
        empty, name, unless={ServerCode.NAMESPACE_EXISTS, ServerCode.NAMESPACE_NOT_FOUND}
    ):
        # failpoint queues.drop_empty
        empty.drop()
        # failpoint queues.index_empty
        make_indexes(jobs, ignore, wanted)  # the next sweep reports what keeps one from being made
    return aside


def _mark_beside(jobs: Jobs, now: float) -> None:
    """Note in what lies beside a queue that the queue is being removed: see :func:`forget_removed`."""
    for name, key in ((PLACES, jobs.name), (LIMITS, queue_of(jobs.name))):
        beside = jobs.database[name]
        # failpoint queues.index_beside
        beside.create_indexes(
            [IndexModel([("removed_at", 1)], name="removed", sparse=True)], **by_majority(beside)
        )
        # failpoint queues.mark_beside
        beside.update_one({"_id": key}, {"$set": {"removed_at": date(now)}})


def forget_removed(database: Documents, now: float) -> None:
    """Remove what lies beside queues that were removed a day ago, unless they are there again.

    A document that is used at this moment has changed since it was read, and stays. Crash in between, or a
    lost reply: the next call goes on.
    """
    # Seconds for which they stay: another broker may be about to use them
    long_ago = {"removed_at": {"$lte": date(now - 24 * 3600.0)}}
    for name in (PLACES, LIMITS):
        beside = database[name]
        for document in list(beside.find(long_ago).limit(CHILDREN)):
            queue = document["_id"] if name == PLACES else collection(document["_id"])
            if database.list_collection_names(filter={"name": queue}):
                # failpoint queues.unmark_beside
                beside.update_one({"_id": document["_id"]}, {"$unset": {"removed_at": ""}})
            else:
                # failpoint queues.remove_beside
                beside.delete_one(document)


def _rename(jobs: Jobs, name: str, *, unless: set[int]) -> bool:
    """Rename a collection, after any index build; False where the server answers one of these codes."""
    for left in reversed(range(300)):
        try:
            # failpoint queues.put_aside
            jobs.rename(name)
        except OperationFailure as error:
            if error.code == ServerCode.BACKGROUND_OPERATION_IN_PROGRESS and left:
                gevent.sleep(0.1)
                continue
            if error.code not in unless:
                raise
            return False
        return True
    return False


def dropping_put_aside(aside: Jobs, now: float, parents: ParentQueues, size: int = CHILDREN) -> Iterator[int]:
    """Let the parents of the children in a put-aside collection die, page by page, then drop it.

    Yield the number of children of each page. Killed before the end: a repetition goes on with the children
    that are left.
    """
    queue = queue_of(aside.name).removeprefix(PUT_ASIDE).rpartition(".")[0]
    if GroupStore(aside.database[collection(queue)]).may_have_children():
        # failpoint queues.index_children
        aside.create_indexes(
            CHILD_INDEXES, **by_majority(aside)
        )  # missing only where an insert made it between two statements
        awaited = {"parent.id": {"$gte": ""}, **AWAITED}
        children = aside.find(awaited, {"parent": 1}, hint=PARENT_INDEX, batch_size=size)
        while page := list(islice(children, size)):
            why = "was removed with the queue"
            if may_fail := [
                document["_id"] for document in page if (of := parent_of(document)) and of.may_fail
            ]:
                remove_children(aside, may_fail, {}, why, now, parents, Portions(size), queue)
            reasons = reasons_of(page, queue, why)
            # failpoint queues.fail_parents
            parents.on_parents_failed(fail_all(reasons, now, parents))
            # failpoint queues.remove_children
            aside.delete_many({"_id": {"$in": [document["_id"] for document in page]}}, hint=BY_ID)
            yield len(page)
    # failpoint *
    aside.drop()


def all_put_aside(database: Documents) -> Iterator[Jobs]:
    """Yield collections that are put aside: perhaps their brokers were killed before they dropped them."""
    yield from _named(database, PUT_ASIDE)


def drop_left_over(database: Documents, now: float) -> None:
    """Remove empty collections that brokers made and, as they were killed, did not put to use.

    Those of the last minute may still take it. A collection into which somebody has put a document stays.
    """
    for reserve in _named(database, EMPTY):
        made = reserve.name.rpartition(".")[2].partition("-")[0]
        if now * 1000 - int(made, 16) > 60_000 and reserve.find_one({}, {"_id": 1}) is None:
            # failpoint queues.drop_left_over
            reserve.drop()


def _named(database: Documents, prefix: str) -> Iterator[Jobs]:
    begins = {"name": {"$regex": f"^{prefix.replace('.', '[.]')}.*[.][0-9a-f]+(-[0-9a-f]+)?$"}}
    for name in database.list_collection_names(filter=begins):
        yield database[name]
