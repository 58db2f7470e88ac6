"""A primary is killed while jobs of a group are stored: the group keeps its order, and none is missing."""

from __future__ import annotations

from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient

from faults.replica_set import ReplicaSet
from sluicemq import Producer, Worker
from sluicemq_broker.store.jobs.groups import PLACES
from support.broker_process import BrokerProcess
from support.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.full

QUEUE = "lines"


def test_a_group_is_in_order_after_a_primary_has_gone_whose_last_writes_no_other_node_has() -> None:
    name = f"test_{token_hex(6)}"
    with (
        ReplicaSet(3) as nodes,
        BrokerProcess(nodes.uri, name) as broker,
        Producer(endpoint=broker.doors["smq"]) as producer,
    ):
        # Given a group, and a primary from which the other nodes read nothing any more
        producer.push(QUEUE, b"0", group="a").wait(TIMEOUT)
        primary, *others = nodes.primary(), *(each for each in nodes.ports if each != nodes.primary())
        for port in others:
            nodes.fail(port, "stopReplProducer", "alwaysOn")
        # When jobs of the group wait for the majority there, and another node takes its place
        before = producer.push_many(QUEUE, [b"1", b"2", b"3"], group="a")
        with nodes.direct(primary) as mongo:
            wait_until(lambda: _waits_for_majority(mongo), what="a statement of the push")
        nodes.kill(primary)
        for port in others:
            nodes.fail(port, "stopReplProducer", "off")
        after = producer.push_many(QUEUE, [b"4", b"5", b"6"], group="a")
        for receipt in (*before, *after):
            receipt.wait(TIMEOUT)
        # Then
        came: list[int] = []
        with Worker(QUEUE, lambda job: came.append(int(job.payload)), endpoint=broker.doors["smq"]):
            wait_until(lambda: len(set(came)) == 7, 120, "all jobs")
        assert sorted(set(came), key=came.index) == list(range(7))


def _waits_for_majority(mongo: MongoClient[dict[str, Any]]) -> bool:
    running = mongo.admin.aggregate([{"$currentOp": {}}])
    commands = [each.get("command", {}) for each in running if each.get("active")]
    written = {command.get("findAndModify") or command.get("insert") for command in commands}
    return bool(written & {PLACES, f"queue.{QUEUE}"})
