"""PULL workers of the default kind, and workers that a high-water mark turned away."""

import json
from collections.abc import Iterator
from functools import partial

import pytest
import zmq

from sluicemq import Client, Producer, Worker
from support.broker_process import BrokerProcess
from support.broker_under_test import AT_ONCE, BrokerUnderTest, serving, spare
from support.ports import tcp
from support.pull_peer import PullPeer, pull_peer
from support.raw_sockets import receive
from support.waiting import wait_until


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    devices = spare(received=16, received_full=1, ask=1)
    with serving(mongo_uri, devices, queues=AT_ONCE, poll=0.5) as broker:
        yield broker


def test_a_job_is_committed_when_the_worker_s_zeromq_has_it_and_not_before(broker: BrokerUnderTest) -> None:
    doors = broker.take("received")
    with pull_peer(doors.back) as worker:
        broker.push(doors.front, b"job")
        assert worker.wait_jobs(1) == [b"job"]
        assert broker.counts(doors.queue) == {"reserved": 1}
        worker.take()
        broker.await_count(doors.queue, "reserved", 0)
        assert not broker.counts(doors.queue)


def test_libzmq_says_so_by_itself(broker: BrokerUnderTest) -> None:
    doors = broker.take("received")
    worker = broker.socket(zmq.PULL, doors.back)
    producer = broker.socket(zmq.PUSH, doors.front)
    for number in range(50):
        producer.send(b"%d" % number)
        assert receive(worker) == [b"%d" % number]
    wait_until(lambda: not broker.counts(doors.queue), what="all commits")
    assert not worker.poll(0)


def test_with_the_full_envelope_it_gets_id_and_headers(broker: BrokerUnderTest) -> None:
    doors = broker.take("received_full")
    worker = broker.socket(zmq.PULL, doors.back)
    broker.push(doors.front, b"", b'{"id": "full", "priority": 9}', b"work")
    job_id, headers, payload = receive(worker)
    assert (job_id, payload) == (b"full", b"work")
    assert json.loads(headers) == {"attempt": 1, "priority": 9, "headers": {}}
    wait_until(lambda: not broker.counts(doors.queue), what="its commit")


def test_one_without_room_has_few_on_the_way_and_others_get_the_rest(broker: BrokerUnderTest) -> None:
    doors = broker.take("received")
    with pull_peer(doors.back) as full:
        broker.push(doors.front, b"first")
        full.wait_jobs(1)
        worker = broker.socket(zmq.PULL, doors.back)
        for number in range(50):
            broker.push(doors.front, b"%d" % number)
        assert {receive(worker)[0] for _ in range(50)} == {b"%d" % number for number in range(50)}
        wait_until(lambda: broker.counts(doors.queue) == {"reserved": 1}, what="commits of the rest")
        assert full.payloads == [b"first"]


def test_what_has_not_arrived_at_an_end_goes_to_others_uncharged(broker: BrokerUnderTest) -> None:
    doors = broker.take("received")
    with pull_peer(doors.back) as worker:
        broker.push(doors.front, b"", b'{"max_attempts": 1}', b"job")
        worker.wait_jobs(1)
    with pull_peer(doors.back) as other:
        assert other.wait_jobs(1) == [b"job"]
        (job,) = broker.admin.peek(doors.queue, "reserved")
        assert (job["attempts"], job["suspect"]) == (1, True)
        assert "before it had this job" in job["errors"][-1]["reason"]
        other.take()
        wait_until(lambda: not broker.counts(doors.queue), what="its commit")


def test_a_job_too_long_for_its_workers_ends_dead_and_others_go_on(broker: BrokerUnderTest) -> None:
    doors = broker.take("received")
    jobs = [b"%d" % number for number in range(20)]
    for job in [*jobs[:10], bytes(1000), *jobs[10:]]:
        broker.push(doors.front, job)
    broker.await_count(doors.queue, "ready", 21)

    def ended_or_done(worker: PullPeer) -> bool:
        return worker.ended or broker.counts(doors.queue) == {"dead": 1}

    came: list[bytes] = []
    connections = 0
    while broker.counts(doors.queue) != {"dead": 1}:
        connections += 1
        with pull_peer(doors.back, prompt=True) as worker:
            wait_until(partial(ended_or_done, worker))
        came += worker.payloads
    assert set(came) == set(jobs)  # those sent in one with it come again
    assert broker.dead_letter(doors.queue)["attempts"] == 5
    assert connections >= 6


def test_what_lies_on_the_way_too_long_goes_to_others_uncharged(broker: BrokerUnderTest) -> None:
    doors = broker.take("received")
    names = ("timed_out", "late_verdicts", "committed")
    before = [broker.counter(name) for name in names]
    with pull_peer(doors.back) as stuck:
        broker.push(doors.front, b"", b'{"id": "late", "visibility_timeout": 3, "keep_done": 60}', b"job")
        stuck.wait_jobs(1)
        with pull_peer(doors.back, prompt=True) as other:
            broker.await_count(doors.queue, "done", 1)
            stuck.take()  # a late PONG changes nothing
            # A commit is counted once MongoDB has answered, which is a little after the job is done.
            once_more = [count + 1 for count in before]
            wait_until(lambda: [broker.counter(name) for name in names] == once_more, what="each count, once")
            assert other.payloads == [b"job"]
    job = broker.admin.show(doors.queue, "late")
    assert (job["attempts"], "suspect" in job, "errors" in job) == (1, False, False)


def test_one_that_takes_nothing_for_two_visibility_timeouts_is_hung_up_on(broker: BrokerUnderTest) -> None:
    doors = broker.take("received")
    hung_up = broker.counter("workers_hung_up")
    with pull_peer(doors.back) as stuck:
        broker.push(doors.front, b"", b'{"visibility_timeout": 0.5}', b"job")
        wait_until(lambda: stuck.ended, what="the end of its connection")
        assert broker.counter("workers_hung_up") == hung_up + 1
        assert stuck.payloads == [b"job"]
    broker.await_count(doors.queue, "ready", 1)


def test_who_asked_hears_an_empty_result(broker: BrokerUnderTest) -> None:
    doors, asking = broker.take("received"), broker.take("ask")
    worker = broker.socket(zmq.PULL, doors.back)
    answer = broker.ask(asking.front, doors.queue.encode(), b"question")
    assert answer == [b""]
    assert receive(worker) == [b"question"]


def test_one_that_leaves_while_its_pong_is_on_the_way_has_what_it_said(broker: BrokerUnderTest) -> None:
    doors = broker.take("received")
    committed = broker.counter("committed")
    with pull_peer(doors.back) as worker:
        broker.push(doors.front, b"job")
        worker.wait_jobs(1)
        worker.take()
    wait_until(lambda: broker.counter("committed") == committed + 1, what="its commit")
    assert not broker.counts(doors.queue)


def test_a_job_that_is_kept_names_the_worker_that_has_it(broker: BrokerUnderTest) -> None:
    doors = broker.take("received")
    worker = broker.socket(zmq.PULL, doors.back)
    broker.push(doors.front, b"", b'{"id": "kept", "keep_done": 60}', b"job")
    assert receive(worker) == [b"job"]
    broker.await_count(doors.queue, "done", 1)
    job = broker.admin.show(doors.queue, "kept")
    assert job["worker"].startswith("tcp://127.0.0.1:")
    assert job["attempts"] == 1


DEVICE = {"kind": "streamer", "ack": "explicit", "hwm": 2}


@pytest.fixture
def marked_broker(mongo_uri: str, database: str) -> Iterator[BrokerProcess]:
    ends = {"frontend": tcp(), "backend": tcp(), "commit": tcp()}
    config = {"broker": {"poll": 0.5}, "devices": [DEVICE | ends]}
    with BrokerProcess(mongo_uri, database, config=config) as broker:
        yield broker


def test_when_workers_at_the_mark_die_another_gets_their_jobs(marked_broker: BrokerProcess) -> None:
    # Given a device that allows two unsettled jobs, two workers that have them, and a third
    contexts = [zmq.Context() for _ in range(3)]
    workers = []
    for context in contexts:
        worker = context.socket(zmq.PULL)
        worker.connect(marked_broker.doors["pull"])
        workers.append(worker)
    with (
        Client(endpoint=marked_broker.doors["smq"]) as client,
        Producer(endpoint=marked_broker.doors["smq"]) as producer,
    ):
        wait_until(lambda: client.queues.list()[0].workers == 3, what="three workers")
        for number in range(4):
            producer.push("default", b"%d" % number)
        producer.flush()
        wait_until(lambda: client.queues.list()[0].in_flight == 2, what="two jobs under way")
        wait_until(lambda: sum(bool(worker.poll(0)) for worker in workers) == 2, what="their arrival")
        [idle] = [worker for worker in workers if not worker.poll(0)]
        # When the two die
        for worker in workers:
            if worker is not idle:
                worker.close(0)
        # Then the third gets a job
        assert idle.poll(60_000)
    for context in contexts:
        context.destroy(linger=0)


def test_a_library_worker_s_leaving_leaves_nothing_reserved(marked_broker: BrokerProcess) -> None:
    # Given many jobs and a worker that takes some of them and leaves
    endpoint = marked_broker.doors["smq"]
    with Client(endpoint=endpoint) as client:
        with Producer(endpoint=endpoint) as producer:
            for _ in range(2000):
                producer.push("many", b"x")
        worker = Worker("many", lambda _job: None, prefetch=10, endpoint=endpoint)
        worker.start()
        wait_until(lambda: client.counters().counters.get("committed", 0) > 100, what="some work")
        worker.stop()

        def many() -> dict[str, int]:
            return next(queue for queue in client.queues() if queue["name"] == "many")

        # Then what it has not done is ready for others
        wait_until(lambda: many()["reserved"] == 0, what="nothing reserved")
        ready = many()["ready"]
        wait_until(
            lambda: client.counters().counters["committed"] == 2000 - ready, what="counting the commits"
        )
