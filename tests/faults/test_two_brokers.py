"""Two brokers on one queue: each does its part, and neither keeps, frees or misjudges the other's jobs."""

from __future__ import annotations

import socket as sockets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from pymongo import MongoClient

from faults.proxied import RawClient, shared_queue
from faults.replica_set import ReplicaSet
from sluicemq import Client, Producer
from support.broker_process import BrokerProcess
from support.broker_under_test import ANY_PORT
from support.long_forms import long
from support.raw_sockets import shake_hands
from support.waiting import wait_until

#: By default test_every_failpoint kills brokers at statements, and test_chaos_short everything at once.
pytestmark = pytest.mark.full

full = pytest.mark.full
LARGE, JOBS, DEAF = 48 * 2**10, 600, 2


# ------------------------------------------------------------------ PULL workers that do not read


@pytest.mark.parametrize(("ack", "prefetch"), [long("received", 64), long("auto", 64), ("explicit", 4)])
def test_workers_that_do_not_read_keep_no_more_than_their_prefetch_from_another_broker(
    mongo_uri: str, ack: str, prefetch: int
) -> None:
    streamer = {"kind": "streamer", "frontend": ANY_PORT, "backend": ANY_PORT, "commit": ANY_PORT}
    config = {"devices": [{**streamer, "ack": ack, "prefetch": prefetch}]}
    with shared_queue(mongo_uri, queue="default", config=config) as shared, ExitStack() as stack:
        # Given workers that have shaken hands and read nothing more
        for _ in range(DEAF):
            stack.enter_context(deaf(shared.a.process.doors["pull"]))
        with Client(endpoint=shared.a.endpoint) as client:
            wait_until(lambda: client.queues.list()[0].workers == DEAF, what="the workers that don't read")
        with Producer(endpoint=shared.a.endpoint) as producer:
            for number in range(JOBS):
                producer.push("default", b"%d " % number + bytes(LARGE))
        with shared.working(shared.b, prefetch=20) as handled:
            wait_until(lambda: shared.stored() <= DEAF * prefetch, what="all but what the deaf ones keep")
            assert set(handled.values()) == {1}
            if ack == "auto":  # what they were sent is not stored any more, and nothing else is held for them
                shared.wait_empty()
            else:
                wait_until(lambda: len(handled) == JOBS - shared.stored(), what="the others' last one")


@contextmanager
def deaf(address: str) -> Iterator[sockets.socket]:
    """A PULL socket that has shaken hands, with a small receive buffer."""
    with shake_hands(address, b"PULL") as worker:
        worker.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 2**17)
        yield worker


# ------------------------------------------------------------------ where leases lie, and are read


def test_brokers_of_other_databases_leave_each_others_jobs_alone(mongo_uri: str, database: str) -> None:
    shared = {"queues": {"shared": {"database": database}}}
    names = [f"{database}_{name}" for name in "ab"]
    with MongoClient[dict[str, Any]](mongo_uri) as mongo, ExitStack() as stack:
        for name in names:
            stack.callback(mongo.drop_database, name)
        settings = {"silence": 100.0, "heartbeat": 20.0, "poll": 0.5}
        brokers = [
            stack.enter_context(
                BrokerProcess(mongo_uri, name, config={**shared, "broker": {**settings, "lease": lease}})
            )
            for name, lease in zip(names, (30.0, 0.5), strict=True)
        ]
        holder, idle = (stack.enter_context(RawClient(broker.doors["smq"], "shared")) for broker in brokers)
        running_jobs_stay(holder, idle, seconds=3)


@full
@pytest.mark.timeout(300)
def test_a_secondary_that_lags_frees_no_jobs_whatever_the_uri_prefers(database: str) -> None:
    with ReplicaSet(3) as replica_set, ExitStack() as stack:
        primary = replica_set.primary()
        lagging = next(port for port in replica_set.ports if port != primary)
        preferring = f"{replica_set.uri}&readPreference=secondaryPreferred"
        settings = {"silence": 100.0, "heartbeat": 20.0, "poll": 0.5}
        lease = 1.0
        second = stack.enter_context(
            BrokerProcess(preferring, database, config={"broker": {**settings, "lease": lease}})
        )
        with RawClient(second.doors["smq"], "shared") as early:
            early.push(b"so that the queue is known")
            early.ready(1)
            early.commit(early.take()[0])
        replica_set.fail(lagging, "stopReplProducer", "alwaysOn")
        try:
            first = stack.enter_context(
                BrokerProcess(preferring, database, config={"broker": {**settings, "lease": 30.0}})
            )
            holder, idle = (
                stack.enter_context(RawClient(broker.doors["smq"], "shared")) for broker in (first, second)
            )
            running_jobs_stay(holder, idle, seconds=15)
        finally:
            replica_set.fail(lagging, "stopReplProducer", "off")


def running_jobs_stay(holder: RawClient, idle: RawClient, seconds: float) -> None:
    """Jobs at a live broker's worker are its own, for many sweeps of another broker with an idle worker."""
    holder.ready(3)
    for number in range(3):
        holder.push(b"%d" % number)
    jobs = holder.take(3)
    idle.ready(10)
    assert not idle.offered(seconds), "the jobs of a live broker were given to another"
    for job in jobs:
        holder.commit(job)
    assert not idle.offered(0.5)
    idle.ready(0)
    assert {job.attempt for job in jobs} == {1}


# ------------------------------------------------------------------ a broker that is stopped for two leases
