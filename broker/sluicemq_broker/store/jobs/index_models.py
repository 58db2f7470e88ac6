"""Indexes of a queue's collection: their names and fields, and the reasons for them."""

from __future__ import annotations

from typing import Final

from pymongo import IndexModel

from sluicemq_broker.job import State
from sluicemq_broker.store.jobs.documents import ORDER

READY_INDEX: Final = State.READY.value
RESERVED_INDEX: Final = State.RESERVED.value
ENDED_INDEX: Final = "ended"
EXPIRY_INDEX: Final = "expiry"
REMOVAL_INDEX: Final = "removal"
DEDUPE_INDEX: Final = "dedupe"
PACK_INDEX: Final = "pack"
LINE_INDEX: Final = "line"
LINE_EXPIRY_INDEX: Final = "line_expiry"
SLOT_INDEX: Final = "slot"
PARENT_INDEX: Final = "parent"

INDEXES: Final = [
    # Partial, so that half a million done or dead jobs cost claims nothing. It has all fields of the sort: a
    # sort that skips one fell from 967 to 29 claims a second.
    IndexModel(ORDER, name=READY_INDEX, partialFilterExpression={"state": State.READY.value}),
    IndexModel(
        [("state", 1), ("owner", 1)],
        name=RESERVED_INDEX,
        partialFilterExpression={"state": State.RESERVED.value},
    ),
    IndexModel(
        [("state", 1), ("ended_at", 1)],
        name=ENDED_INDEX,
        partialFilterExpression={"ended_at": {"$exists": True}},
    ),
    IndexModel(
        [("expires_at", 1)],
        name=EXPIRY_INDEX,
        partialFilterExpression={"state": State.READY.value, "expires_at": {"$exists": True}},
    ),
    # Sparse: a document without the field has no key. From a partial index MongoDB removes a key for each
    # document that it deletes, whether there is one or not.
    IndexModel([("remove_at", 1)], name=REMOVAL_INDEX, expireAfterSeconds=0, sparse=True),
    # Unique, so that of several pushes, at any broker, one is first.
    IndexModel([("dedupe_id", 1)], name=DEDUPE_INDEX, unique=True, sparse=True),
    # Packs are counted, and looked for by the ids in them, without being read: each may have a MiB.
    IndexModel([("left", 1), ("first", 1), ("last", 1)], name=PACK_INDEX, sparse=True),
]

#: The lines of groups, each in the order of its places.
IN_LINE: Final = [("wait.group", 1), ("wait.place", 1)]

#: Indexes of waiting jobs, in groups or for children: made with the first one. An empty index still takes
#: MongoDB a twentieth of the time of a claim and a commit.
LINE_INDEXES: Final = [
    # Unique, so that one job of a group at a time is out of its line, at any number of brokers.
    IndexModel([("head", 1)], name="head", unique=True, sparse=True),
    IndexModel(IN_LINE, name=LINE_INDEX, sparse=True),
    IndexModel([("wait.expires_at", 1)], name=LINE_EXPIRY_INDEX, sparse=True),
]

#: The index of children, made with the first one: a removal of the queue finds their parents by it.
CHILD_INDEXES: Final = [IndexModel([("parent.id", 1)], name=PARENT_INDEX, sparse=True)]

#: The slots of tenants. Unique, so that no more jobs run at any number of brokers; sparse, and only where
#: tenants have ``tenant_max_running``.
SLOTS: Final = IndexModel([("slot.tenant", 1), ("slot.n", 1)], name=SLOT_INDEX, unique=True, sparse=True)
