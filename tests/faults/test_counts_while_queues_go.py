"""One statement counts many queues while one of them is removed and made again: MongoDB survives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from faults.replica_set import ReplicaSet
from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.store import collection, survey_queues
from sluicemq_broker.store.admin.counting import small_counts
from sluicemq_broker.store.jobs.index_models import INDEXES

QUEUES = [f"q{number}" for number in range(12)]
#: mongod 6.0.5 ended at one of the first ten removals.
REMOVALS = 25


def survey(database: Any, queues: list[str], _now: float) -> object:
    return survey_queues(database, queues)


@pytest.mark.full
@pytest.mark.parametrize("ask", [small_counts, survey])
def test_mongodb_outlives_questions_to_queues_that_are_removed(ask: Callable[..., Any]) -> None:
    # A MongoDB of its own: others would go down with it.
    with ReplicaSet() as mongod, MongoClient[dict[str, Any]](mongod.uri) as mongo:
        database, over = mongo["counted"], threading.Event()
        for name in QUEUES:
            database[collection(name)].create_indexes(INDEXES)
            database[collection(name)].insert_many([{"state": "ready", "seq": seq} for seq in range(20)])
        began = mongo.admin.command("serverStatus")["pid"]
        asking = [threading.Thread(target=ask_again, args=(ask, database, over)) for _ in range(3)]
        for thread in asking:
            thread.start()
        try:
            for _ in range(REMOVALS):
                remove_and_make(database, collection(QUEUES[-1]))
        finally:
            over.set()
            for thread in asking:
                thread.join()
        assert mongo.admin.command("serverStatus")["pid"] == began


def ask_again(ask: Callable[..., Any], database: Any, over: threading.Event) -> None:
    while not over.is_set():
        try:
            ask(database, QUEUES, time.time())
        except (UnavailableError, OperationFailure):
            if over.wait(0.01):
                return


def remove_and_make(database: Any, name: str) -> None:
    """Put a new collection in the place of a queue's, as the removal of a queue does."""
    token = token_hex(4)
    database[f"deleted.{token}"].create_indexes(INDEXES)
    database[name].rename(f"removed.{token}")
    database[f"deleted.{token}"].rename(name)
    database[f"removed.{token}"].drop()
