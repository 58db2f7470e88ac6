"""The errors of the latest dead letters of many queues, by one statement for each database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sluicemq_broker.store.admin.dead_letters import LAST, DeadLetters, chosen
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.documents import collection
from sluicemq_broker.store.jobs.index_models import ENDED_INDEX
from sluicemq_broker.store.values import Document, seconds


class LatestError(NamedTuple):
    """The last error of one dead letter; texts are empty where its worker has not said them."""

    queue: str
    job: str
    kind: str
    at: float
    type: str
    place: str
    reason: str
    worker: str = ""
    host: str = ""


def latest_errors(
    database: Documents, queues: Sequence[str], most: int, now: float, most_ms: int
) -> list[LatestError]:
    """Return the errors of the latest dead letters, at most ``most`` of a queue, the latest first.

    Raises Unavailable where MongoDB takes longer than ``most_ms``.
    """
    if not queues:
        return []
    first, *others = (_steps(queue, most, now) for queue in queues)
    unions = [
        {"$unionWith": {"coll": collection(queue), "pipeline": steps}}
        for queue, steps in zip(queues[1:], others, strict=True)
    ]
    jobs = durable(database)[collection(queues[0])]
    with translated():
        found = jobs.aggregate([*first, *unions], hint=ENDED_INDEX, maxTimeMS=most_ms)
        read = [_read(document) for document in found]
    return sorted((error for error in read if error), key=lambda error: error.at, reverse=True)


def _steps(queue: str, most: int, now: float) -> list[Document]:
    return [
        {"$match": chosen(DeadLetters(), now)},
        {"$sort": {"ended_at": -1}},
        {"$limit": most},
        {"$project": {"ended_at": 1, "kind": 1, "queue": {"$literal": queue}, "last": LAST}},
    ]


def _read(stored: Document) -> LatestError | None:
    last, at = stored.get("last"), stored.get("ended_at")
    error: dict[str, Any] = last if isinstance(last, dict) else {}
    if not isinstance(at, datetime):
        return None
    reason = str(error.get("reason", ""))[:200]
    about = (str(error.get(name) or "") for name in ("worker", "host"))
    kind, place = str(error.get("type", "")), str(error.get("place", ""))
    job, of = str(stored["_id"]), str(stored.get("kind", ""))
    return LatestError(stored["queue"], job, of, seconds(at), kind, place, reason, *about)
