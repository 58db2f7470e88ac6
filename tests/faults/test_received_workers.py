"""PULL workers of the default kind die or freeze: lost is what their own ZeroMQ held, RCVHWM at most."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

import pytest
import zmq

from faults.fleet import Fleet, Program
from support.broker_under_test import AT_ONCE, BrokerUnderTest, Doors, serving, spare
from support.raw_sockets import receive
from support.waiting import wait_until

TAKEN = 10
#: Jobs on the way to one worker, at most.
PREFETCH = 256

Start = Callable[[Fleet, str, int, int], Program]


def python(fleet: Fleet, address: str, hwm: int, count: int) -> Program:
    return fleet.start("taker.py", address, hwm, count)


def node(fleet: Fleet, address: str, hwm: int, count: int) -> Program:
    return fleet.node("take", address, hwm, count)


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, spare(received=12), queues=AT_ONCE, poll=0.5, lease=2.0) as broker:
        yield broker


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet() as fleet:
        yield fleet


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("start", "hwm", "count"),
    [
        (python, 1, 500),
        (python, 10, 500),
        (python, 1000, 2000),
        (node, 10, 500),
        pytest.param(python, 1000, 30_000, marks=pytest.mark.full),
        pytest.param(node, 1000, 30_000, marks=pytest.mark.full),
    ],
)
def test_a_killed_worker_loses_no_more_than_its_zeromq_held(
    broker: BrokerUnderTest, fleet: Fleet, start: Start, hwm: int, count: int
) -> None:
    # Given one that has taken a few of many, and has no room for more
    doors = broker.take("received")
    jobs = push(broker, doors, count)
    before = broker.counter("committed")
    worker = start(fleet, doors.back, hwm, TAKEN)
    worker.wait_said("full")
    wait_until(lambda: broker.counter("committed") - before > hwm - PREFETCH, what="a full worker")
    worker.end()
    # Then what had not arrived at it is there, and goes to another, once
    wait_until(lambda: not broker.workers(doors.queue), what="its end")
    wait_until(lambda: set(broker.counts(doors.queue)) == {"ready"}, what="the return of what it had not")
    left = broker.counts(doors.queue)["ready"]
    # A commit is counted once MongoDB has answered, which is a little after the job is gone.
    wait_until(lambda: broker.counter("committed") - before == count - left, what="the count of its commits")
    assert count - left <= TAKEN + hwm
    taken = [job.encode() for (job,) in worker.said("got")]
    rest = drain(broker, doors, left)
    assert len(set(rest)) == len(rest)
    assert len(set(jobs) - {*taken, *rest}) <= hwm
    assert len({*taken} & {*rest}) <= PREFETCH
    wait_until(lambda: broker.counter("committed") - before == count, what="each commit, once")


@pytest.mark.parametrize("hwm", [1, 1000])
def test_what_was_on_the_way_to_a_frozen_worker_goes_to_another_and_nothing_is_committed_twice(
    broker: BrokerUnderTest, fleet: Fleet, hwm: int
) -> None:
    doors = broker.take("received")
    before = broker.counter("committed")
    frozen = python(fleet, doors.back, hwm, 10_000)
    wait_until(lambda: broker.workers(doors.queue), what="the worker")
    frozen.freeze()
    jobs = push(broker, doors, 100, visibility_timeout=1)
    rest = drain(broker, doors, 100)
    assert sorted(rest) == sorted(jobs)
    frozen.thaw()
    push(broker, doors, 100, first=100)
    frozen.wait_said("got", 100)  # and it may have some of the others, which came to it too
    wait_until(lambda: not broker.counts(doors.queue), what="all commits")
    wait_until(lambda: broker.counter("committed") - before == 200, what="each commit, once")


def push(broker: BrokerUnderTest, doors: Doors, count: int, first: int = 0, **headers: float) -> list[bytes]:
    """So many jobs, which are stored when this returns."""
    before = broker.counter("pushed")
    producer = broker.socket(zmq.PUSH, doors.front)
    jobs = [b"%d" % number for number in range(first, first + count)]
    for job in jobs:
        producer.send_multipart([b"", json.dumps(headers).encode(), job])
    wait_until(lambda: broker.counter("pushed") - before == count, what="storing")
    return jobs


def drain(broker: BrokerUnderTest, doors: Doors, count: int) -> Sequence[bytes]:
    """What another worker gets, of so many jobs, until none is left."""
    worker = broker.socket(zmq.PULL, doors.back)
    jobs = [receive(worker)[0] for _ in range(count)]
    wait_until(lambda: not broker.counts(doors.queue), what="all commits")
    assert not worker.poll(0)
    worker.close()
    return jobs
