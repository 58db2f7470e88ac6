"""Indexes of collections with documents are made though one of three nodes of MongoDB is away."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import MongoClient

from faults.replica_set import ReplicaSet
from sluicemq_broker.store import collection
from sluicemq_broker.store.creation import by_majority
from sluicemq_broker.store.jobs.index_models import INDEXES, LINE_INDEX, LINE_INDEXES
from sluicemq_broker.store.jobs.indexes import ignore, make_indexes


@pytest.mark.full
def test_a_queue_with_jobs_gets_its_first_group_while_a_node_is_away() -> None:
    with ReplicaSet(3) as mongod, MongoClient[dict[str, Any]](mongod.uri) as mongo:
        jobs = mongo["indexed"][collection("mail")]
        make_indexes(jobs, ignore, INDEXES)
        jobs.insert_many([{"state": "ready", "seq": seq} for seq in range(10)])
        away = next(port for port in mongod.ports if port != mongod.primary())
        mongod.kill(away)
        make_indexes(jobs, ignore, LINE_INDEXES)
        assert LINE_INDEX in jobs.index_information()


def test_of_a_single_node_no_majority_is_asked(mongo_uri: str) -> None:
    with MongoClient[dict[str, Any]](mongo_uri, directConnection=True) as mongo:
        mongo.admin.command("ping")
        assert by_majority(mongo["any"]["collection"]) == {}
