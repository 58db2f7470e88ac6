"""The indexes of a queue's collection: which there are, of which fields, and why they are as they are."""

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
HEAD_INDEX: Final = "head"
LINE_INDEX: Final = "line"
LINE_EXPIRY_INDEX: Final = "line_expiry"
FAIR_INDEX: Final = "fair"
SLOT_INDEX: Final = "slot"
PARENT_INDEX: Final = "parent"

INDEXES: Final = [
    # Partial, so that half a million delayed, done or dead jobs cost the hot path nothing; and the
    # whole sort is in it: a sort that skips a field fell from 967 to 29 claims a second.
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
    # Sparse: without a field there is no key. Of a partial index MongoDB removes the key of every
    # document that it deletes, whether there is one or not.
    IndexModel([("remove_at", 1)], name=REMOVAL_INDEX, expireAfterSeconds=0, sparse=True),
    # Unique, so that of any number of pushes at any number of brokers one is first.
    IndexModel([("dedupe_id", 1)], name=DEDUPE_INDEX, unique=True, sparse=True),
]

#: The lines of groups, each in the order of its places.
IN_LINE: Final = [("wait.group", 1), ("wait.place", 1)]

#: Those of jobs that wait, in groups or for children: made with the first one. An index that no job is in
#: takes MongoDB a twentieth of the time of a claim and a commit all the same.
LINE_INDEXES: Final = [
    # Unique, so that of a group one job at a time is out of its line, at any number of brokers.
    IndexModel([("head", 1)], name=HEAD_INDEX, unique=True, sparse=True),
    IndexModel(IN_LINE, name=LINE_INDEX, sparse=True),
    IndexModel([("wait.expires_at", 1)], name=LINE_EXPIRY_INDEX, sparse=True),
]

#: That of children, made with the first one: whoever removes a queue finds by it who waits for its jobs.
CHILD_INDEXES: Final = [IndexModel([("parent.id", 1)], name=PARENT_INDEX, sparse=True)]

#: True of ready jobs, in words of which only the index of fair queues is known to have all: MongoDB would
#: try the other one as well, each time.
JUST_READY: Final = {"$gte": State.READY.value, "$lte": State.READY.value}
#: The tenants of a queue, and the jobs of each in the order in which they are handed out.
TURNS: Final = [("state", 1), ("tenant", 1), *ORDER]
#: Of fair queues only, so that others pay nothing; ``state`` is in it so that nothing but keys is read.
FAIR: Final = IndexModel(TURNS, name=FAIR_INDEX, partialFilterExpression={"state": JUST_READY})
#: Which of the jobs that a tenant may have running one is. Unique, so that at any number of brokers no more
#: are; sparse, and only where tenants are so limited.
SLOTS: Final = IndexModel([("slot.tenant", 1), ("slot.n", 1)], name=SLOT_INDEX, unique=True, sparse=True)
