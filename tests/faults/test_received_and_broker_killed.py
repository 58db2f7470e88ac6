"""``kill -9`` of a broker around each statement on a job's way to a PULL worker, and to its commit there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.proxied import SharedQueue, shared_queue
from sluicemq import Producer
from support.pull_peer import pull_peer
from support.waiting import wait_until

#: By default test_every_failpoint kills brokers at statements, and test_chaos_short everything at once.
pytestmark = pytest.mark.full

GONE = None


@pytest.fixture(scope="module")
def running(mongo_uri: str) -> Iterator[SharedQueue]:
    with shared_queue(mongo_uri, 1, "default", lease=1.0) as running:
        yield running


@pytest.fixture
def shared(running: SharedQueue) -> Iterator[SharedQueue]:
    yield running
    running.a.proxy.pass_all()
    running.jobs.delete_many({})


@pytest.mark.parametrize(
    ("verb", "applied", "losses"),
    [
        ("claim", False, 0),
        ("claim", True, 1),
        ("send", True, 1),
        ("commit", False, 1),
        ("commit", True, GONE),
    ],
)
def test_a_job_that_is_not_committed_comes_again_uncharged_and_one_that_is_does_not(
    shared: SharedQueue, verb: str, losses: int | None, *, applied: bool
) -> None:
    # Given a job on its way to a worker
    proxy, broker = shared.a.proxy, shared.a.process
    chosen = {
        "claim": shared.on("update", "reserved"),
        "send": lambda _command: False,
        "commit": shared.on("delete"),
    }[verb]
    reached = proxy.hold(chosen) if applied else proxy.delay(chosen)
    with Producer(shared.a.endpoint) as producer:
        producer.push("default", b"job", id=verb).wait(60)
    with pull_peer(broker.doors["pull"]) as worker:
        # When the broker is killed where that statement is not carried out, or has no answer yet
        if verb != "claim":
            worker.wait_jobs(1)
        if verb == "commit":
            worker.take()
        if verb != "send":
            reached.wait()
        broker.kill()
    proxy.pass_all()
    broker.restart()
    # Then
    if losses is GONE:
        assert shared.stored() == 0
        return
    wait_until(lambda: shared.jobs.find_one({"state": "ready"}), what="its return")
    stored = shared.jobs.find_one({}) or {}
    assert (stored["attempts"], stored.get("losses", 0)) == (0, losses)
    with pull_peer(broker.doors["pull"], prompt=True) as other:
        shared.wait_empty()
        assert other.payloads == [b"job"]
