"""What one node has stored and no majority: nobody hears that it is there, or has ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from faults.replica_set import ReplicaSet
from sluicemq_broker.job import State
from sluicemq_broker.store import Pushed, QueueStore, connect
from support.jobs import NOW, a_job
from support.waiting import TIMEOUT

_A_WHILE = 0.5  # seconds in which an answer that waits for nothing would have come


@pytest.mark.full
def test_it_is_neither_told_as_a_jobs_end_nor_as_one_that_exists_until_a_majority_has_it() -> None:
    with ReplicaSet(3) as replica_set, connect(replica_set.uri) as client:
        # Given a job that is ready for all, done for the primary alone, and another that only this one has
        store = QueueStore(client["brokers"], "queue.mail")
        store.prepare()
        store.push([a_job("a")], NOW)
        with secondaries_behind(replica_set):
            alone: MongoClient[dict[str, Any]] = client
            jobs = alone["brokers"].get_collection("queue.mail", write_concern=WriteConcern(w=1))
            there = jobs.find_one_and_update({"_id": "a"}, {"$set": {"state": "done", "result": b"early"}})
            assert there is not None
            jobs.insert_one({**there, "_id": "b"})
            # When somebody asks for them, or pushes the second one again
            ends = {job_id: found.state for job_id, found in store.find(["a", "b"]).items()}
            exist = store.which_exist(["a", "b"])
            answers: list[Pushed] = []
            pushing = threading.Thread(target=lambda: answers.append(store.push([a_job("b")], NOW)))
            pushing.start()
            pushing.join(_A_WHILE)
            early = list(answers)
        pushing.join(TIMEOUT)

        # Then what only the primary has counts for nobody
        assert ends == {"a": State.READY}
        assert exist == {"a"}
        assert early == []
        assert [answer.existing for answer in answers] == [[0]]
        assert store.find(["a"])["a"].result == b"early"


@contextmanager
def secondaries_behind(replica_set: ReplicaSet) -> Iterator[None]:
    """Let the secondaries of a set of three take nothing from the primary."""
    others = [port for port in replica_set.ports if port != replica_set.primary()]
    for port in others:
        replica_set.fail(port, "stopReplProducer", "alwaysOn")
    try:
        yield
    finally:
        for port in others:
            replica_set.fail(port, "stopReplProducer", "off")
