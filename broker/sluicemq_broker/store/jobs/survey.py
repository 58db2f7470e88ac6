"""Survey of many queues: which owners have jobs reserved in each, and when its first job expires.

A broker with a thousand queues at rest would send MongoDB seven statements for each, again and again. A
survey of all of them takes the broker 20 ms of CPU and MongoDB 170 ms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from sluicemq_broker.job import State
from sluicemq_broker.store.connection import Documents
from sluicemq_broker.store.jobs.many_queues import ask_together
from sluicemq_broker.store.values import Document, date, seconds

#: Queues that one statement asks for. 1,000 took 1.06 s with 10 a statement, 0.24 with 50, 0.70 with 300.
_AT_ONCE: Final = 50

#: MongoDB skips from one owner to the next in the index.
OWNERS: Final[list[Document]] = [{"$match": {"state": State.RESERVED}}, {"$group": {"_id": "$owner"}}]
FIRST_EXPIRY: Final[list[Document]] = [
    {"$match": {"state": State.READY, "expires_at": {"$gte": date(0)}}},
    {"$sort": {"expires_at": 1}},
    {"$limit": 1},
    {"$project": {"_id": 0, "expires": "$expires_at"}},
]

_FIRST_DEATH: Final[list[Document]] = [
    {"$match": {"state": State.DEAD, "ended_at": {"$gte": date(0)}}},
    {"$sort": {"ended_at": 1}},
    {"$limit": 1},
    {"$project": {"_id": 0, "died": "$ended_at"}},
]


class Surveyed(NamedTuple):
    """The owners of a queue's reserved jobs, and when (server time) its first ready job expires."""

    owners: frozenset[str] = frozenset()
    expires: float = math.inf


def survey_queues(database: Documents, queues: Sequence[str]) -> dict[str, Surveyed]:
    """Survey these queues of one database; a queue that MongoDB can't survey is left out.

    MongoDB reads one key for each owner and one for the first expiry. Jobs that wait in a group are not seen.
    Raises :class:`~sluicemq.Unavailable`.
    """
    found = ask_together(database, queues, (OWNERS, FIRST_EXPIRY), _AT_ONCE)
    return {queue: _surveyed(rows) for queue, rows in found.items()}


def oldest_deaths(database: Documents, queues: Sequence[str]) -> dict[str, float]:
    """Return when the oldest dead letter died, of each of these queues that has any.

    Ask it of queues with dead letters: it takes MongoDB as long as the rest of a survey. Raises
    :class:`~sluicemq.Unavailable`.
    """
    found = ask_together(database, queues, (_FIRST_DEATH,), _AT_ONCE)
    return {queue: seconds(row["died"]) for queue, rows in found.items() for row in rows}


def _surveyed(rows: Iterable[Document]) -> Surveyed:
    owners, expires = set[str](), math.inf
    for row in rows:
        if isinstance(row.get("_id"), str):
            owners.add(row["_id"])
        elif isinstance(row.get("expires"), datetime):
            expires = seconds(row["expires"])
    return Surveyed(frozenset(owners), expires)
