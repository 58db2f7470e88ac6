"""Results over SMQ/1: kept if wanted, asked for by id, waited for; whatever became of the job."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager

import pytest
import zmq

from sluicemq import (
    BadHeadersError,
    Client,
    DeadError,
    ExpiredError,
    Job,
    NotFoundError,
    Producer,
    Reject,
    Retry,
    TimeoutError,
)
from sluicemq.protocol import wire
from support.broker_process import BrokerProcess
from support.broker_under_test import BrokerUnderTest, serving, spare
from support.own_queue import SECONDS, working
from support.raw_sockets import receive
from support.waiting import wait_until

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    # Expired jobs are swept once a lease.
    with serving(mongo_uri, spare(ask=2), poll=0.5, lease=2) as broker:
        yield broker


def double(job: Job) -> bytes:
    return job.payload * 2


def test_a_call_returns_what_the_handler_returned(endpoint: str, queue: str) -> None:
    with working(endpoint, {queue: double}), Producer(endpoint=endpoint) as producer:
        assert producer.call(queue, b"ab", SECONDS) == b"abab"


def test_many_futures_have_each_its_own_result(endpoint: str, queue: str) -> None:
    with working(endpoint, {queue: double}), Producer(endpoint=endpoint) as producer:
        replies = [producer.submit(queue, b"%d," % number) for number in range(1000)]
        assert not wait(replies, SECONDS).not_done
    assert [reply.result() for reply in replies] == [b"%d,%d," % (n, n) for n in range(1000)]


def test_a_known_id_has_the_stored_result_and_is_not_worked_on_again(endpoint: str, queue: str) -> None:
    ran: list[str] = []

    def handler(job: Job) -> bytes:
        ran.append(job.id)
        return b"once"

    with working(endpoint, {queue: handler}), Producer(endpoint=endpoint) as producer:
        assert producer.call(queue, b"x", SECONDS, id="mine") == b"once"
        assert producer.call(queue, b"x", SECONDS, id="mine") == b"once"
    with Client(endpoint=endpoint) as client:
        assert client.jobs.result(queue, "mine") == b"once"
    assert ran == ["mine"]


@pytest.mark.parametrize("size", [16_000, 17_000, 11 << 20])
def test_a_stored_result_is_whole(broker: BrokerUnderTest, endpoint: str, queue: str, size: int) -> None:
    with working(endpoint, {queue: lambda job: bytes(size)}), Producer(endpoint=endpoint) as producer:
        assert len(producer.call(queue, b"work", SECONDS, id="one")) == size
        assert len(producer.call(queue, b"work", SECONDS, id="one")) == size
    smq = broker.smq()
    assert [len(smq.ask(wire.RESULT, queue, "one", 0).fields[0]) for _ in range(3)] == [size] * 3


def test_a_known_id_of_a_running_job_waits_for_its_result(endpoint: str, queue: str) -> None:
    # Given a job that runs
    running, go_on = threading.Event(), threading.Event()

    def handler(_job: Job) -> bytes:
        running.set()
        assert go_on.wait(SECONDS)
        return b"at last"

    with (
        working(endpoint, {queue: handler}),
        Producer(endpoint=endpoint) as first,
        Producer(endpoint=endpoint) as second,
    ):
        replies = [first.submit(queue, b"x", id="mine")]
        assert running.wait(SECONDS)
        # When it is submitted again, and asked for without a wait
        replies.append(second.submit(queue, b"x", id="mine"))
        replies[1].receipt.wait(SECONDS)
        with Client(endpoint=endpoint) as client, pytest.raises(TimeoutError, match="mine has not ended"):
            client.jobs.result(queue, "mine")
        # Then both have its result when it ends
        go_on.set()
        assert [reply.result(SECONDS) for reply in replies] == [b"at last"] * 2
    assert [reply.receipt.existed for reply in replies] == [False, True]


def test_the_result_of_a_job_pushed_without_wanting_it_is_not_remembered(endpoint: str, queue: str) -> None:
    done = threading.Event()
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        producer.push(queue, b"x", id="mine").wait(SECONDS)
        with working(endpoint, {queue: lambda _job: done.set()}):
            assert done.wait(SECONDS)
        with pytest.raises(NotFoundError, match="never pushed, or ended and not remembered"):
            client.jobs.result(queue, "mine")


def test_a_result_not_wanted_before_is_heard(broker: BrokerUnderTest, endpoint: str, queue: str) -> None:
    library = broker.smq()
    with Producer(endpoint=endpoint) as producer:
        producer.push(queue, b"x", id="mine").wait(SECONDS)
    library.plain.send_multipart(wire.encode(wire.RESULT, 77, queue, "mine", 1000))
    assert library.ask(wire.RESULT, queue, "mine", 0).fields[0] == "TIMEOUT"  # so it waits by now
    with working(endpoint, {queue: double}):
        assert library.answer(77).fields == [b"xx"]


def test_a_result_of_an_unknown_queue_is_refused_and_makes_none(endpoint: str, queue: str) -> None:
    with Client(endpoint=endpoint) as client:
        with pytest.raises(NotFoundError, match=f"no queue '{queue}'"):
            client.jobs.result(queue, "any")
        assert queue not in {listed.name for listed in client.queues.list()}


def test_an_unknown_id_is_not_found_at_once_however_long_one_would_wait(endpoint: str, queue: str) -> None:
    with Producer(endpoint=endpoint) as producer:
        producer.push(queue, b"")
    with Client(timeout=60, endpoint=endpoint) as client, pytest.raises(NotFoundError, match="no job nobody"):
        client.jobs.result(queue, "nobody", wait=3600)


def test_a_question_times_out_when_its_time_is_over_and_the_later_ones_wait_on(
    broker: BrokerUnderTest, endpoint: str, queue: str
) -> None:
    library = broker.smq()
    with Producer(endpoint=endpoint) as producer:
        producer.push(queue, b"x", id="mine").wait(SECONDS)
    for number, seconds in ((901, 1000), (902, 1.5), (903, 0.1)):
        library.plain.send_multipart(wire.encode(wire.RESULT, number, queue, "mine", seconds))
    answers = [library.next(lambda message: message.number > 900) for _ in range(2)]
    assert [(answer.number, answer.fields[0]) for answer in answers] == [(903, "TIMEOUT"), (902, "TIMEOUT")]
    with working(endpoint, {queue: double}):
        assert library.answer(901).fields == [b"xx"]


def test_a_dead_job_answers_dead_to_who_waits_and_to_who_comes_later(endpoint: str, queue: str) -> None:
    def handler(_job: Job) -> None:
        raise Reject("no such cat")

    with (
        working(endpoint, {queue: handler}),
        Producer(endpoint=endpoint) as producer,
        Client(endpoint=endpoint) as client,
    ):
        with pytest.raises(DeadError, match="no such cat"):
            producer.call(queue, b"x", SECONDS, id="mine")
        with pytest.raises(DeadError, match="no such cat"):
            client.jobs.result(queue, "mine")


def test_a_job_that_is_rolled_back_keeps_its_asker_waiting(endpoint: str, queue: str) -> None:
    def handler(job: Job) -> bytes:
        if job.attempt == 1:
            raise Retry("once more", delay=0.05)
        return b"the second time"

    with working(endpoint, {queue: handler}), Producer(endpoint=endpoint) as producer:
        assert producer.call(queue, b"x", SECONDS) == b"the second time"


def test_an_expired_job_answers_expired(endpoint: str, queue: str) -> None:
    with Producer(endpoint=endpoint) as producer, pytest.raises(ExpiredError):
        producer.call(queue, b"x", SECONDS, ttl=1)


def test_a_refused_push_is_the_error_of_its_future_and_of_nobody_else(endpoint: str, queue: str) -> None:
    with Producer(endpoint=endpoint) as producer:
        reply = producer.submit(queue, b"x", headers={"$no": "key"})
        with pytest.raises(BadHeadersError, match="headers"):
            reply.result(SECONDS)


def test_who_gets_a_job_is_told_its_priority_its_age_and_its_attempts(endpoint: str, queue: str) -> None:
    told: list[Job] = []
    with Producer(endpoint=endpoint) as producer:
        for _ in range(3):
            producer.push(queue, b"x", priority=7, max_attempts=2)
    # When: it is claimed, popped and delivered
    with Client(endpoint=endpoint) as client, client.jobs.reserve(queue, 1, SECONDS) as claim:
        told += [*claim, *client.jobs.pop(queue, 1, SECONDS)]
        with working(endpoint, {queue: told.append}):
            wait_until(lambda: len(told) == 3)
    # Then: all were accepted a moment ago, by the server's clock
    assert {(job.priority, job.max_attempts) for job in told} == {(7, 2)}
    assert all(0 < job.age < 3600 for job in told)


def test_a_plain_asker_and_the_library_hear_of_the_same_job(broker: BrokerUnderTest, endpoint: str) -> None:
    doors = broker.take("ask")
    asker, worker = broker.socket(zmq.REQ, doors.front), broker.socket(zmq.REP, doors.back)
    asker.send_multipart([b"", b'{"id": "known"}', b"work"])
    assert receive(worker) == [b"work"]
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        reply = producer.submit(doors.queue, b"work", id="known")
        reply.receipt.wait(SECONDS)
        worker.send(b"42")
        assert receive(asker) == [b"42"]
        assert reply.result(SECONDS) == b"42"
        assert client.jobs.result(doors.queue, "known") == b"42"


def test_a_plain_asker_hears_that_the_job_of_its_id_is_a_dead_letter(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    asker, worker = broker.socket(zmq.REQ, doors.front), broker.socket(zmq.REP, doors.back)
    question = [b"", b'{"id": "known", "reply": "accepted"}', b"work"]
    asker.send_multipart(question)
    assert receive(asker) == [b"known"]
    assert receive(worker) == [b"work"]
    worker.send_multipart([b"REJECT", b"no use"])
    broker.await_count(doors.queue, "dead", 1)
    asker.send_multipart(question)
    job_id, more = receive(asker)
    assert (job_id, json.loads(more)) == (b"known", {"existed": True, "state": "dead"})


def test_a_session_that_goes_forgets_questions(broker: BrokerUnderTest, endpoint: str, queue: str) -> None:
    # Given a client that waits, and one that leaves
    with Producer(endpoint=endpoint) as producer:
        producer.push(queue, b"x", id="mine").wait(SECONDS)
    leaving, staying = broker.smq(), broker.smq()
    leaving.plain.send_multipart(wire.encode(wire.RESULT, 1, queue, "mine", 1000))
    staying.plain.send_multipart(wire.encode(wire.RESULT, 901, queue, "mine", 1000))
    assert leaving.ask(wire.PING).verb == wire.OK
    leaving.plain.close()
    # When the job ends, then who stayed hears of it, and nothing fails
    with working(endpoint, {queue: double}):
        assert staying.answer(901).fields == [b"xx"]


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_questions_that_wait_are_answered_by_the_next_broker(mongo_uri: str, queue: str, end: str) -> None:
    with serving(mongo_uri, [], lease=1) as own:
        endpoint = own.doors["smq"]
        with Producer(endpoint=endpoint) as producer:
            # Given a job whose result somebody waits for, at a broker that is ended
            reply = producer.submit(queue, b"ab", id="mine")
            reply.receipt.wait(SECONDS)
            getattr(own.process, end)()
            own.process.restart()
            # When its worker comes, then it is told
            with working(endpoint, {queue: double}):
                assert reply.result(SECONDS) == b"abab"


def test_a_job_done_at_another_broker_is_heard_of_here(mongo_uri: str, queue: str) -> None:
    with serving(mongo_uri, [], poll=0.5) as here:
        config = here.process.config["broker"]
        with (
            serving_beside(mongo_uri, config["database"]) as there,
            Producer(endpoint=here.doors["smq"]) as producer,
        ):
            reply = producer.submit(queue, b"ab")
            reply.receipt.wait(SECONDS)
            with working(there, {queue: double}):
                assert reply.result(SECONDS) == b"abab"


@contextmanager
def serving_beside(mongo_uri: str, database: str) -> Iterator[str]:
    with BrokerProcess(mongo_uri, database, config={"broker": {"poll": 0.5}, "devices": []}) as broker:
        yield broker.doors["smq"]


def test_the_broker_counts_what_was_there_before_by_position(broker: BrokerUnderTest, queue: str) -> None:
    library = broker.smq()
    library.ask(wire.PUSH, queue, [["b", b"", None]])
    entries = [["a", b"", None], ["bad", b"", {"priority": -1}], ["b", b"", None], ["a", b"", None]]
    refused, existing, states = library.ask(wire.PUSH, queue, entries).fields
    assert [at for at, _, _ in refused] == [1]
    assert (existing, states) == ([2, 3], ["ready", "ready"])
    wait_until(lambda: broker.counts(queue)["ready"] == 2)
