"""Brokers are killed while jobs of groups run: each keeps its order, none stands still, none is missing."""

from __future__ import annotations

import threading
from collections import defaultdict
from functools import partial
from itertools import groupby, pairwise
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient

from faults.replica_set import ReplicaSet
from sluicemq import Job, Producer, Worker
from sluicemq_broker.store.jobs.groups import PLACES
from support.broker_process import BrokerProcess
from support.waiting import TIMEOUT, wait_until

GROUPS, QUEUE = 12, "lines"
#: ``keep_done``: an id that is pushed again, since nobody had confirmed it, is known however far its job is.
CONFIG = {
    "broker": {"poll": 0.2, "lease": 3.0, "silence": 30},
    "queues": {QUEUE: {"keep_done": 3600.0, "backoff": "none"}},
}


class Witness:
    """A handler that notes who comes, and which came while another job of their group was at work."""

    def __init__(self) -> None:
        self.came: dict[str, list[int]] = defaultdict(list)
        self.beside: list[tuple[str, int, int]] = []
        self._at_work: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, job: Job) -> None:
        group, number = job.payload.decode().split()
        with self._lock:
            other = self._at_work.get(group)
            if other is not None and other != int(number):  # of one that is delivered again, another broker
                self.beside.append((group, other, int(number)))  # may not know yet that it goes on here
            self._at_work[group] = int(number)
            self.came[group].append(int(number))
        with self._lock:
            self._at_work.pop(group, None)

    def await_handled(self, count: int) -> None:
        """However long it takes on a busy machine, but not two minutes without one more."""
        while (handled := self._handled()) < count:
            wait_until(partial(self._handled_more_than, handled), 120, f"{handled + 1} of {count} jobs")

    def _handled_more_than(self, count: int) -> bool:
        return self._handled() > count

    def _handled(self) -> int:
        return sum(len(set(each)) for each in list(self.came.values()))

    def in_order(self, each: int) -> bool:
        """What is delivered again comes again at once, before the next of its group."""
        return all(
            [number for number, _ in groupby(came)] == list(range(each)) for came in self.came.values()
        )


def push(broker: BrokerProcess, groups: range, each: int, failed: list[BaseException]) -> None:
    """So many jobs for each of these groups, sent without waiting; each has an id."""
    try:
        with Producer(broker.doors["smq"]) as producer:
            receipts = [
                producer.push(QUEUE, f"{group} {number}".encode(), id=f"{group}-{number}", group=f"g{group}")
                for number in range(each)
                for group in groups
            ]
            for receipt in receipts:
                receipt.wait(120)
    except BaseException as error:  # noqa: BLE001 - told by the test
        failed.append(error)


@pytest.mark.parametrize(
    ("each", "kills"), [(120, 2), pytest.param(2500, 8, marks=[pytest.mark.full, pytest.mark.timeout(1800)])]
)
def test_groups_keep_their_order_when_brokers_are_killed(
    mongo_uri: str, database: str, each: int, kills: int
) -> None:
    witness = Witness()
    failed: list[BaseException] = []
    with (
        BrokerProcess(mongo_uri, database, config=CONFIG) as first,
        BrokerProcess(mongo_uri, database, config=CONFIG) as second,
        Worker(first.doors["smq"], QUEUE, witness, prefetch=50, concurrency=2),
        Worker(second.doors["smq"], QUEUE, witness, prefetch=50, concurrency=2),
    ):
        halves = (range(GROUPS // 2), range(GROUPS // 2, GROUPS))
        pushing = [
            threading.Thread(target=push, args=(broker, half, each, failed))
            for broker, half in zip((first, second), halves, strict=True)
        ]
        for thread in pushing:
            thread.start()
        for kill in range(1, kills + 1):
            witness.await_handled(kill * GROUPS * each // (kills + 1))
            broker = (first, second)[kill % 2]
            broker.kill()
            broker.restart()
        for thread in pushing:
            thread.join(120)
        assert failed == []
        witness.await_handled(GROUPS * each)
        with MongoClient[dict[str, object]](mongo_uri) as client:
            stored = client[database][f"queue.{QUEUE}"]
            wait_until(lambda: not stored.count_documents({"state": {"$ne": "done"}}), 60, "all done")
    assert witness.in_order(each), {group: out_of_order(came) for group, came in witness.came.items()}
    assert witness.beside == []


def out_of_order(came: list[int]) -> list[tuple[int, int]]:
    return [(one, then) for one, then in pairwise(came) if then not in (one, one + 1)]


def test_a_group_is_in_order_after_a_primary_has_gone_whose_last_writes_no_other_node_has() -> None:
    name = f"test_{token_hex(6)}"
    with (
        ReplicaSet(3) as nodes,
        BrokerProcess(nodes.uri, name) as broker,
        Producer(broker.doors["smq"]) as producer,
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
        witness = Witness()
        with Worker(broker.doors["smq"], QUEUE, lambda job: witness.came["a"].append(int(job.payload))):
            witness.await_handled(7)
        assert witness.came["a"] == list(range(7))


def _waits_for_majority(mongo: MongoClient[dict[str, Any]]) -> bool:
    running = mongo.admin.aggregate([{"$currentOp": {}}])
    commands = [each.get("command", {}) for each in running if each.get("active")]
    written = {command.get("findAndModify") or command.get("insert") for command in commands}
    return bool(written & {PLACES, f"queue.{QUEUE}"})
