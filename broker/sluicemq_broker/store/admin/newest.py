"""Bound in number of a collection whose documents go with time: a flood of them must not fill the disk."""

from __future__ import annotations

from sluicemq_broker.store.values import BY_ID, Jobs, date


def keep_newest(documents: Jobs, by: str, most: int) -> int:
    """Remove the oldest documents of more than about ``most``, by an indexed date; return how many.

    Some ten thousand at most: the next call goes on. Raises the driver's errors. Crash in between, or a lost
    reply: a part is removed; several brokers may do it at once.
    """
    gone = 0
    for _ in range(100):
        excess = documents.estimated_document_count() - most
        if excess <= 0:
            break
        oldest = documents.find({by: {"$gte": date(0)}}, {"_id": 1}).sort(by, 1).limit(min(excess, 500))
        ids = [document["_id"] for document in oldest]
        # failpoint *
        gone += documents.delete_many({"_id": {"$in": ids}}, hint=BY_ID).deleted_count
    return gone
