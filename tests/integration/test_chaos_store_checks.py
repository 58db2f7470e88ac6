"""The checker of a chaos run finds what is left in MongoDB."""

from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from chaos import features
from chaos.store_checks import left

Store = Database[dict[str, Any]]


@pytest.fixture
def store(mongo_uri: str) -> Iterator[Store]:
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        database = mongo[f"test_{token_hex(6)}"]
        yield database
        mongo.drop_database(database.name)


def test_a_store_at_rest_has_nothing_left(store: Store) -> None:
    store[f"queue.{features.SHORT}"].insert_one({"state": "done"})
    store["owners"].insert_one({"_id": "o", "state": "dead", "beat": 3, "lease": 0.1, "name": "b"})
    store["limits"].insert_one({"_id": features.NARROW, "running": {"o": {"permits": 0}}})
    store["tasks"].insert_one({"state": "done"})
    assert [*left(store)] == []


@pytest.mark.parametrize("state", ["ready", "reserved", "waiting", "dead"])
def test_a_job_that_is_left_is_found(store: Store, state: str) -> None:
    store[f"queue.{features.SHORT}"].insert_one({"_id": "job-1", "state": state})
    assert ["job-1" in breach.evidence[0] for breach in left(store)] == [True]


@pytest.mark.parametrize(
    ("collection", "document"),
    [
        ("removed.short", {"state": "ready"}),
        ("deleted.short", {"state": "ready"}),
        ("owners", {"_id": "o", "state": "live", "beat": 3, "lease": 0.1, "name": "b"}),
        ("limits", {"_id": features.NARROW, "running": {"o": {"permits": 2}}}),
        ("tasks", {"state": "running"}),
        ("queues", {"_id": features.SCRATCH, "removing": {"by": "vm:1"}}),
    ],
)
def test_what_else_is_left_is_found(store: Store, collection: str, document: dict[str, Any]) -> None:
    store[collection].insert_one(document)
    assert [breach.kind for breach in left(store)] == ["stuck"]
