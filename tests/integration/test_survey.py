"""The survey of many queues: what it sees of each, at what price, and what it leaves out."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from sluicemq_broker.store import Surveyed, survey_queues
from sluicemq_broker.store.jobs.index_models import INDEXES

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def documents(mongo: MongoClient[dict[str, Any]], database: str) -> Database[dict[str, Any]]:
    """A database in which queues come and go."""
    return mongo[database]


def fill(documents: Database[dict[str, Any]], queue: str, *jobs: dict[str, Any]) -> None:
    """Make a queue with its indexes and these documents."""
    collection = documents[f"queue.{queue}"]
    collection.create_indexes(INDEXES)
    if jobs:
        collection.insert_many([{"priority": 0, "eligible_at": NOW, "seq": 1, **job} for job in jobs])


def test_a_survey_shows_owners_and_first_expiry_of_each_queue(documents: Database[dict[str, Any]]) -> None:
    later = NOW.replace(year=2027)
    fill(documents, "held", *({"state": "reserved", "owner": owner} for owner in ("a", "b", "b")))
    fill(documents, "expires", *({"state": "ready", "expires_at": when} for when in (later, NOW, later)))
    fill(documents, "ended", {"state": "dead", "owner": "c", "expires_at": NOW})
    fill(documents, "strange", {"state": "reserved", "owner": 5}, {"state": "ready", "expires_at": "soon"})
    found = survey_queues(documents, ["held", "expires", "ended", "strange", "absent"])
    assert found == {
        "held": Surveyed(frozenset({"a", "b"})),
        "expires": Surveyed(expires=NOW.timestamp()),
        "ended": Surveyed(),
        "strange": Surveyed(),
        "absent": Surveyed(),
    }


def test_more_queues_than_one_statement_asks_for_are_surveyed(documents: Database[dict[str, Any]]) -> None:
    names = [f"queue-{number}" for number in range(120)]
    fill(documents, names[7], {"state": "reserved", "owner": "a"})
    fill(documents, names[119], {"state": "reserved", "owner": "b"})
    found = survey_queues(documents, names)
    assert found == dict.fromkeys(names, Surveyed()) | {
        names[7]: Surveyed(frozenset("a")),
        names[119]: Surveyed(frozenset("b")),
    }


def test_a_queue_that_can_not_be_surveyed_is_left_out_alone(documents: Database[dict[str, Any]]) -> None:
    # Given a view that MongoDB can't read
    fill(documents, "good", {"state": "reserved", "owner": "a"})
    fill(documents, "other")
    documents.create_collection(
        "queue.broken", viewOn="queue.good", pipeline=[{"$set": {"state": {"$divide": [1, 0]}}}]
    )
    found = survey_queues(documents, ["good", "broken", "other"])
    assert found == {"good": Surveyed(frozenset("a"), math.inf), "other": Surveyed()}
    assert survey_queues(documents, []) == {}
