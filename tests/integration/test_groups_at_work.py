"""Jobs of one group go one after the other, in the order of their pushes, through every door."""

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator

import pytest
import zmq

from sluicemq import DeadError, ExpiredError, Job, NotFoundError, Producer, Retry, Worker
from sluicemq.protocol import wire
from support.broker_under_test import AT_ONCE, BrokerUnderTest, serving, spare
from support.own_queue import LONG, SECONDS, OwnQueue
from support.raw_sockets import receive
from support.waiting import wait_until

#: Jobs of a group in one test, and groups.
MANY, GROUPS = 30, 4


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, spare(ask=1, received=2, pop=1, ack=1), queues=AT_ONCE) as broker:
        yield broker


def test_a_group_goes_on_when_its_first_job_is_committed_while_others_go_on(jobs: OwnQueue) -> None:
    for payload in (b"a1", b"a2", b"b1", b"a3"):
        jobs.push(payload, group=payload[:1].decode())
    jobs.push(b"plain")
    # Each first one is ready a moment after its push is confirmed: so which of them comes first chance says.
    first = {job.payload: job for job in jobs.reserve(3).jobs}
    assert first.keys() == {b"a1", b"b1", b"plain"}
    assert not jobs.ready()
    first[b"b1"].commit()
    first[b"a1"].commit()
    assert jobs.take().payload == b"a2"


def test_a_cancelled_an_expired_and_a_dead_first_job_let_the_next_one_go(jobs: OwnQueue) -> None:
    cancelled = jobs.push(b"cancelled", group="g", delay=LONG)
    expired = jobs.producer.submit(jobs.queue, b"expired", group="g", ttl=0.3)
    spent = jobs.push(b"spent", group="g", max_attempts=1)
    jobs.push(b"last", group="g")
    with pytest.raises(ExpiredError):
        expired.result(SECONDS)
    jobs.client.jobs.cancel(jobs.queue, cancelled)
    jobs.take().rollback()
    assert jobs.take().payload == b"last"
    assert jobs.state(spent) == "dead"


def test_a_job_that_is_forwarded_lets_the_next_one_go_and_keeps_its_group(jobs: OwnQueue) -> None:
    there = f"{jobs.queue}-next"
    for payload in (b"1", b"2", b"3"):
        jobs.push(payload, group="g")
    for _ in range(2):
        jobs.take().forward(there)
    assert jobs.take().payload == b"3"
    with jobs.client.jobs.reserve(there, 1, SECONDS) as claim:
        assert [job.payload for job in claim.jobs] == [b"1"]
        (second,) = jobs.client.peek(there, "waiting")
        assert (second["payload"], second["group"]) == (b"2", "g")


def test_purging_what_is_ready_lets_the_groups_go_on(jobs: OwnQueue) -> None:
    # One push, so one look at the line: it has ended once the first job is ready. A look during the purge
    # could make the second job ready, and the purge would remove it, too.
    library = jobs.broker.smq()
    library.ask(wire.HELLO, {"client": "test"})
    library.ask(wire.PUSH, jobs.queue, [[name, name.encode(), {"group": "g"}] for name in ("1", "2")])
    jobs.await_ready("1")
    assert jobs.client.queues.purge(jobs.queue, "ready").result() == 1
    assert jobs.take().payload == b"2"


def test_a_question_in_a_group_is_answered_in_its_turn(jobs: OwnQueue) -> None:
    replies = [jobs.producer.submit(jobs.queue, b"%d" % number, group="g") for number in range(3)]
    jobs.take().commit(b"first")
    jobs.take().reject("no")
    jobs.take().commit(b"third")
    assert replies[0].result(SECONDS) == b"first"
    with pytest.raises(DeadError):
        replies[1].result(SECONDS)
    assert replies[2].result(SECONDS) == b"third"


def test_who_waits_for_a_cancelled_job_of_a_line_hears_of_it(jobs: OwnQueue) -> None:
    jobs.push(group="g")
    reply = jobs.producer.submit(jobs.queue, b"", id="second", group="g")
    wait_until(lambda: jobs.state("second") == "waiting", SECONDS)
    jobs.client.jobs.cancel(jobs.queue, "second")
    with pytest.raises(NotFoundError):
        reply.result(SECONDS)


def test_a_job_of_a_schedule_waits_in_its_group(jobs: OwnQueue) -> None:
    jobs.push(b"before", group="g")
    jobs.client.schedules.add(jobs.queue, jobs.queue, b"run", every=1.0, group="g", max_attempts=1)
    try:
        wait_until(lambda: jobs.counts()["waiting"], SECONDS, "a run")
        job = jobs.take()
        assert job.payload == b"before"
        job.commit()
        assert jobs.take().payload == b"run"
    finally:
        jobs.client.schedules.delete(jobs.queue)


class Witness:
    """A handler that sees who comes when; some jobs fail once, and some run beside others of their group."""

    def __init__(self) -> None:
        self.came: dict[str, list[int]] = defaultdict(list)
        self.beside: list[str] = []
        self._running: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, job: Job) -> None:
        group, number = job.payload.decode().split()
        with self._lock:
            if group in self._running:
                self.beside.append(f"{job.payload!r}")
            self._running.add(group)
        time.sleep(0)
        with self._lock:
            self._running.remove(group)
            if int(number) % 7 == 3 and job.attempt == 1:
                raise Retry(delay=0)
            self.came[group].append(int(number))

    def has_all(self, groups: int, jobs_of_one: int) -> bool:
        return sum(map(len, self.came.values())) >= groups * jobs_of_one


def test_workers_of_the_library_have_each_group_in_order_over_retries(jobs: OwnQueue) -> None:
    witness = Witness()
    workers = [
        Worker(jobs.queue, witness, prefetch=50, concurrency=4, endpoint=jobs.endpoint) for _ in range(2)
    ]
    with workers[0], workers[1], Producer(endpoint=jobs.endpoint) as producer:
        for number in range(MANY):
            for group in range(GROUPS):
                producer.push(jobs.queue, f"{group} {number}".encode(), group=str(group))
        wait_until(lambda: witness.has_all(GROUPS, MANY), SECONDS, "all jobs")
    assert witness.beside == []
    assert all(came == list(range(MANY)) for came in witness.came.values())


def test_jobs_are_popped_in_the_order_of_their_group(jobs: OwnQueue) -> None:
    for number in range(3):
        jobs.push(b"%d" % number, group="g")
    popped: list[bytes] = []
    while len(popped) < 3:
        popped += [job.payload for job in jobs.client.jobs.pop(jobs.queue, 3 - len(popped), wait=SECONDS)]
    assert popped == [b"0", b"1", b"2"]


def pushed_plainly(broker: BrokerUnderTest, queue: str, address: str) -> None:
    """Jobs of two groups in turn, from a plain PUSH socket."""
    plain = broker.socket(zmq.PUSH, address, linger=10_000)
    for number in range(MANY):
        for group in "gh":
            headers = json.dumps({"group": group}).encode()
            plain.send_multipart([queue.encode(), headers, f"{group} {number}".encode()])


def in_order(came: list[bytes]) -> bool:
    numbers: dict[bytes, list[int]] = defaultdict(list)
    for text in came:
        numbers[text[:1]].append(int(text[2:]))
    return len(numbers) == 2 and all(number == list(range(MANY)) for number in numbers.values())


def test_rep_workers_have_each_group_in_order(broker: BrokerUnderTest) -> None:
    doors, source = broker.take("ask"), broker.take("received")
    first, second = (broker.socket(zmq.REP, doors.back) for _ in range(2))
    pushed_plainly(broker, doors.queue, source.front)
    came = []
    for _ in range(MANY):
        pair = [receive(first)[-1], receive(second)[-1]]
        assert pair[0][:1] != pair[1][:1]
        came += pair
        first.send(b"done")
        second.send(b"done")
    assert in_order(came)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape", ["received", "pop", "ack"])
def test_pull_workers_have_each_group_in_order(broker: BrokerUnderTest, shape: str) -> None:
    doors = broker.take(shape)
    worker = broker.socket(zmq.PULL, doors.back)
    commits = broker.socket(zmq.PUSH, doors.commit) if shape == "ack" else None
    pushed_plainly(broker, doors.queue, doors.front)
    came = []
    for _ in range(2 * MANY):
        *receipt, payload = receive(worker)
        came.append(payload)
        if commits:
            commits.send_multipart([b"COMMIT", *receipt])
    assert in_order(came)
