"""Limits of a queue in MongoDB and at every door: never more at once, and all get done."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo.database import Database

from sluicemq import Client, Producer, Worker
from sluicemq.protocol import wire
from sluicemq_broker.store import LimitStore
from sluicemq_broker.store.cluster.limits import Tokens
from support.broker_under_test import BrokerUnderTest, Doors, serving, spare
from support.jobs import NOW
from support.raw_sockets import receive
from support.waiting import TIMEOUT, wait_until

MOST, JOBS = 2, 7
RATE = 50.0


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    devices = [{**device, "prefetch": 10} if "prefetch" in device else device for device in spare(ack=1)]
    devices += spare(ask=1, received=1, pop=1)
    queues: dict[str, Any] = {
        f"{shape}-0": {"max_running": MOST} for shape in ("ack", "ask", "received", "pop")
    }
    queues |= {f"library-{number}": {"max_running": MOST} for number in range(4)}
    queues["slow"] = {"rate": RATE, "burst": 5}
    queues["tenants"] = {"fair": True, "tenant_max_running": MOST}
    queues["slow-tenants"] = {"fair": True, "tenant_rate": RATE, "tenant_burst": 5}
    with serving(mongo_uri, devices, queues=queues, poll=0.5) as broker:
        yield broker
        assert "Traceback" not in broker.process.log_text()


def push(broker: BrokerUnderTest, queue: str, jobs: int = JOBS) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        for number in range(jobs):
            producer.push(queue, b"%d" % number)


def await_running(broker: BrokerUnderTest, queue: str, left: int) -> None:
    """Of so many jobs that are left, as many run as may."""
    wait_until(lambda: sum(broker.counts(queue).values()) == left, what=f"{left} jobs")
    broker.await_count(queue, "reserved", min(MOST, left))


def next_of(workers: list[zmq.Socket[bytes]]) -> tuple[zmq.Socket[bytes], list[bytes]]:
    """The next job that comes to any of these workers."""
    poller = zmq.Poller()
    for worker in workers:
        poller.register(worker, zmq.POLLIN)
    ((worker, _), *_) = poller.poll(int(TIMEOUT * 1000)) or pytest.fail("no job came")
    return worker, receive(worker)


@pytest.mark.parametrize("first", ["workers", "jobs"])
def test_rep_workers_have_so_many_jobs_together(broker: BrokerUnderTest, first: str) -> None:
    """Jobs are inserted reserved where the workers are there first, and claimed where they are not."""
    doors = broker.process.devices
    door = next(row["backend"][0] for row in doors if row["queue"] == "ask-0")
    if first == "jobs":
        push(broker, "ask-0")
    workers = [broker.socket(zmq.REP, door) for _ in range(5)]
    if first == "workers":
        wait_until(lambda: broker.workers("ask-0") == 5, what="the workers")
        push(broker, "ask-0")
    for left in range(JOBS, 0, -1):
        await_running(broker, "ask-0", left)
        worker, _ = next_of(workers)
        assert broker.counts("ask-0")["reserved"] <= MOST
        worker.send(b"done")
    broker.close_sockets()


def test_acknowledging_pull_workers_have_so_many_jobs_together(broker: BrokerUnderTest) -> None:
    doors = broker.take("ack")
    workers = [broker.socket(zmq.PULL, doors.back) for _ in range(3)]
    commits = broker.socket(zmq.PUSH, doors.commit)
    push(broker, doors.queue)
    held = [next_of(workers)[1][0] for _ in range(MOST)]
    for left in range(JOBS, 0, -1):
        await_running(broker, doors.queue, left)
        commits.send_multipart([b"COMMIT", held.pop(0)])
        if left > MOST:
            held.append(next_of(workers)[1][0])
    wait_until(lambda: not broker.counts(doors.queue), what="the last commit")


def test_a_library_worker_has_so_many_jobs_whatever_its_prefetch(broker: BrokerUnderTest) -> None:
    worker, queue = broker.smq(), "library-0"
    worker.ask(wire.READY, queue, 100)
    push(broker, queue)
    held: list[bytes] = []
    for left in range(JOBS, 0, -1):
        while len(held) < min(MOST, left):
            held += [job[0] for job in worker.delivery()]
        assert len(held) == min(MOST, left)
        await_running(broker, queue, left)
        worker.ask(wire.SETTLE, [[held.pop(0), wire.COMMIT, b"", None]])
    wait_until(lambda: not broker.counts(queue), what="the last commit")


def test_a_claim_of_many_jobs_gets_so_many(broker: BrokerUnderTest) -> None:
    queue = "library-1"
    push(broker, queue)
    with Client(endpoint=broker.doors["smq"]) as client, client.jobs.reserve(queue, JOBS, 0.5) as claim:
        assert len(claim) == MOST
        with client.jobs.reserve(queue, JOBS, wait=0.5) as another:
            assert len(another) == 0


@pytest.mark.parametrize("shape", ["received", "pop"])
def test_plain_pull_workers_get_all_jobs_though_few_at_a_time(broker: BrokerUnderTest, shape: str) -> None:
    doors: Doors = broker.take(shape)
    worker = broker.socket(zmq.PULL, doors.back)
    push(broker, doors.queue, 20)
    assert {receive(worker)[-1] for _ in range(20)} == {b"%d" % number for number in range(20)}
    wait_until(lambda: not broker.counts(doors.queue), what="the last commit")


def test_popping_workers_of_the_library_get_all_jobs(broker: BrokerUnderTest) -> None:
    push(broker, "library-2", 20)
    seen: set[bytes] = set()
    with Worker(
        "library-2", lambda job: seen.add(job.payload), pop=True, prefetch=10, endpoint=broker.doors["smq"]
    ):
        wait_until(lambda: len(seen) == 20, what="all jobs")


def test_permits_are_shown_where_a_queue_is(broker: BrokerUnderTest) -> None:
    push(broker, "library-3")
    with Client(endpoint=broker.doors["smq"]) as client, client.jobs.reserve("library-3", JOBS, 0.5):
        assert client.queues.get("library-3").permits == MOST


def test_no_more_jobs_begin_in_a_second_than_the_rate_says(broker: BrokerUnderTest) -> None:
    """Late a job may be on a busy machine, early it is not."""
    began: list[float] = []
    before = monotonic()
    with Worker("slow", lambda _job: began.append(monotonic()), prefetch=100, endpoint=broker.doors["smq"]):
        push(broker, "slow", 40)
        wait_until(lambda: len(began) == 40, what="all jobs")
    assert all(number <= 5 + RATE * (at - before) for number, at in enumerate(began, 1))


def test_each_tenant_has_so_many_and_it_is_told_how_many_are_held_back(broker: BrokerUnderTest) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        for number in range(JOBS):
            producer.push("tenants", b"%d" % number, tenant="flood")
        producer.push("tenants", b"single", tenant="acme")
    worker = broker.smq()
    worker.ask(wire.READY, "tenants", 100)
    got: list[bytes] = []
    while len(got) < MOST + 1:
        got += [job[2] for job in worker.delivery()]
    assert sorted(got) == [b"0", b"1", b"single"]
    assert broker.counts("tenants") == {"reserved": MOST + 1, "ready": JOBS - MOST}
    wait_until(lambda: broker.admin.queues.get("tenants").held_back == 1, what="the flood is held back")


def test_no_more_jobs_of_a_tenant_begin_in_a_second_than_its_rate_says(broker: BrokerUnderTest) -> None:
    began: dict[bytes, list[float]] = {b"acme": [], b"bolt": []}
    before = monotonic()
    with Worker(
        "slow-tenants",
        lambda job: began[job.payload].append(monotonic()),
        prefetch=100,
        endpoint=broker.doors["smq"],
    ):
        with Producer(endpoint=broker.doors["smq"]) as producer:
            for number in range(50):
                tenant = "acme" if number % 5 else "bolt"
                producer.push("slow-tenants", tenant.encode(), tenant=tenant)
        wait_until(lambda: len(began[b"acme"]) == 40, what="all jobs")
    for times in began.values():
        assert all(number <= 5 + RATE * (at - before) for number, at in enumerate(times, 1))


MOST_PERMITS = 10


@pytest.fixture
def limits(documents: Database[dict[str, Any]]) -> LimitStore:
    return LimitStore(documents, "mail")


def test_one_gets_what_it_wants_and_the_next_what_is_left(limits: LimitStore) -> None:
    assert limits.permit("a", 7, MOST_PERMITS, number=1) == 7
    assert limits.permit("b", 7, MOST_PERMITS, number=1) == 3
    assert limits.permit("c", 7, MOST_PERMITS, number=1) == 0
    assert limits.holders() == {"a": 7, "b": 3, "c": 0}


def test_what_one_gives_back_another_gets(limits: LimitStore) -> None:
    limits.permit("a", MOST_PERMITS, MOST_PERMITS, number=1)
    assert limits.permit("a", 4, 4, number=2) == 4
    assert limits.permit("b", MOST_PERMITS, MOST_PERMITS, number=1) == 6


def test_a_lower_limit_takes_nothing_from_who_has_permits(limits: LimitStore) -> None:
    limits.permit("a", 8, MOST_PERMITS, number=1)
    assert limits.permit("a", 9, 5, number=2) == 8
    assert limits.permit("b", 1, 5, number=1) == 0


def test_a_repetition_changes_nothing_and_tells_the_same(limits: LimitStore) -> None:
    assert limits.permit("a", 4, MOST_PERMITS, number=5) == 4
    assert limits.permit("a", 9, MOST_PERMITS, number=5) == 4


def test_what_was_said_before_changes_nothing_when_it_lands_late(limits: LimitStore) -> None:
    limits.permit("a", 6, MOST_PERMITS, number=8)
    assert limits.permit("a", 2, MOST_PERMITS, number=7) == 6
    assert limits.holders() == {"a": 6}


def test_who_is_forgotten_leaves_its_permits_to_others(limits: LimitStore) -> None:
    limits.permit("a", MOST_PERMITS, MOST_PERMITS, number=1)
    limits.forget("a")
    limits.forget("a")
    assert limits.permit("b", MOST_PERMITS, MOST_PERMITS, number=1) == MOST_PERMITS


def test_leaving_gives_back_all_permits(documents: Database[dict[str, Any]], limits: LimitStore) -> None:
    other = LimitStore(documents, "other")
    for queue in (limits, other):
        queue.permit("a", 2, MOST_PERMITS, number=1)
        queue.permit("b", 2, MOST_PERMITS, number=1)
    LimitStore.leave(documents, "a")
    assert (limits.holders(), other.holders()) == ({"b": 2}, {"b": 2})


def test_nobody_holds_permits_of_a_queue_that_was_never_limited(limits: LimitStore) -> None:
    assert limits.holders() == {}
    limits.forget("a")


words = st.tuples(st.sampled_from("abc"), st.integers(0, 12), st.integers(1, 12), st.integers(0, 3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(words, max_size=12))
def test_all_permits_together_are_never_more_than_the_highest_limit_was(
    documents: Database[dict[str, Any]], said: list[tuple[str, int, int, int]]
) -> None:
    """Whatever is said, late or again: ``back`` orders ago."""
    documents["limits"].delete_many({})
    limits = LimitStore(documents, "mail")
    model: dict[str, tuple[int, int]] = {}
    for now, (owner, wanted, most, back) in enumerate(said, 10):
        (mine, latest), order = model.get(owner, (0, 0)), now - back
        others = sum(permits for permits, _ in model.values()) - mine
        if order > latest:
            model[owner] = (min(wanted, max(mine, most - others)), order)
        assert limits.permit(owner, wanted, most, order) == model[owner][0]
    assert limits.holders() == {owner: permits for owner, (permits, _) in model.items()}
    assert sum(limits.holders().values()) <= max((most for _, _, most, _ in said), default=0)


def test_a_burst_begins_at_once_and_then_as_many_as_time_brings(limits: LimitStore) -> None:
    assert limits.take(9, rate=2.0, burst=5, now=NOW) == Tokens(5, 0.5)
    assert limits.take(9, rate=2.0, burst=5, now=NOW + 0.25) == Tokens(0, 0.25)
    assert limits.take(9, rate=2.0, burst=5, now=NOW + 1.0) == Tokens(2, 0.5)
    assert limits.take(9, rate=2.0, burst=5, now=NOW + 60.0) == Tokens(5, 0.5)


def test_tokens_that_are_left_are_the_next_ones(limits: LimitStore) -> None:
    assert limits.take(2, rate=1.0, burst=5, now=NOW) == Tokens(2, 0.0)
    assert limits.take(9, rate=1.0, burst=5, now=NOW) == Tokens(3, 1.0)


def test_a_broker_whose_clock_is_behind_brings_no_tokens_and_takes_none(limits: LimitStore) -> None:
    limits.take(1, rate=1.0, burst=1, now=NOW)
    assert limits.take(1, rate=1.0, burst=1, now=NOW - 30.0) == Tokens(0, 1.0)
    assert limits.take(1, rate=1.0, burst=1, now=NOW + 1.0) == Tokens(1, 1.0)


def test_a_lower_burst_holds_at_once(limits: LimitStore) -> None:
    limits.take(1, rate=1.0, burst=100, now=NOW)
    assert limits.take(50, rate=1.0, burst=3, now=NOW).taken == 3
