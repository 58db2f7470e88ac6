"""What becomes of a job that is not done: it comes again, is refused, is dead at last; and how it ended."""

from collections.abc import Callable, Iterator
from secrets import token_hex
from time import monotonic
from typing import Any

import pytest

from sluicemq import Client, FanOut, Forward, Job, NotFoundError, Producer, Retry, Worker
from sluicemq_broker.queue.endings import Ends
from support.broker_process import BrokerProcess
from support.broker_under_test import BrokerUnderTest, serving
from support.http_reader import Web
from support.own_queue import LONG, SHORT, OwnQueue, passed, written
from support.waiting import TIMEOUT, wait_until


def test_a_job_that_is_rolled_back_comes_again_after_the_delay_that_was_asked_for(jobs: OwnQueue) -> None:
    # beanstalkd, release: it puts a reserved job back, to be run by any client; with a delay, when that is
    # over.
    put = jobs.push()
    jobs.take().rollback(delay=0)
    second = jobs.take()
    assert second.id == put
    began = monotonic()
    second.rollback("busy", delay=SHORT)
    assert jobs.state(put) == "scheduled"
    assert jobs.take().id == put
    assert passed(began) >= SHORT


def test_a_rejected_job_is_dead_with_its_reason_and_is_not_handed_out(jobs: OwnQueue) -> None:
    # beanstalkd, bury: a buried job is not touched again until it is kicked: our reject.
    put = jobs.push()
    jobs.take().reject("no such cat")
    assert jobs.state(put) == "dead"
    assert not jobs.ready()
    assert jobs.show(put)["errors"][-1]["reason"] == "no such cat"


def test_a_job_whose_time_ran_out_too_often_is_dead_with_its_history(jobs: OwnQueue) -> None:
    # Zaqar, queues: _max_claim_count: a message claimed so often in vain goes to the dead letter queue.
    posted = jobs.push(max_attempts=2, visibility_timeout=0.2)
    jobs.take()
    jobs.take()
    wait_until(lambda: jobs.state(posted) == "dead")
    assert [error["attempt"] for error in jobs.show(posted)["errors"]] == [1, 2]


def test_a_job_that_was_rolled_back_too_often_is_dead(jobs: OwnQueue) -> None:
    # keuss, factory, deadletter: a rollback more than max_ko moves the element away: max_attempts is one
    # more.
    max_ko = 2
    pushed = jobs.push(max_attempts=max_ko + 1)
    for _ in range(max_ko):
        jobs.take().rollback("ko", delay=0)
        assert jobs.state(pushed) == "ready"
    jobs.take().rollback("ko", delay=0)
    assert jobs.state(pushed) == "dead"


def test_an_extension_forgets_no_attempt(jobs: OwnQueue) -> None:
    # Not so in Zaqar (claims, PATCH): renewing a claim forgets how often the message was delivered.
    posted = jobs.push(max_attempts=2)
    for attempt in (1, 2):
        job = jobs.take()
        job.extend(LONG)
        assert (job.attempt, jobs.show(posted)["attempts"]) == (attempt, attempt)
        job.rollback("poison", delay=0)
    assert jobs.state(posted) == "dead"


def test_a_release_forgets_no_attempt_before_it(jobs: OwnQueue) -> None:
    # Not so in Zaqar (claims, DELETE): releasing a claim forgets how often the message was delivered before.
    posted = jobs.push(max_attempts=2)
    jobs.take().rollback("poison", delay=0)
    jobs.reserve().release()  # never started: this delivery does not count, the one before does
    wait_until(lambda: jobs.state(posted) == "ready")
    assert jobs.show(posted)["attempts"] == 1
    last = jobs.take()
    assert last.attempt == 2
    last.rollback("poison", delay=0)
    assert jobs.state(posted) == "dead"


def test_an_exception_that_leaves_a_claim_counts_as_an_attempt(jobs: OwnQueue) -> None:
    # Not so in Zaqar (claims, DELETE): a worker that fails and leaves its claim makes its poison immortal.
    posted = jobs.push(max_attempts=2)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), jobs.reserve() as claim:
            print(1 / len(claim.unsettled[1:]))
        wait_until(lambda: jobs.state(posted) in ("ready", "dead"))
    assert jobs.state(posted) == "dead"
    assert "ZeroDivisionError" in jobs.show(posted)["errors"][-1]["reason"]


def test_a_job_that_kills_its_workers_is_dead_at_last(jobs: OwnQueue) -> None:
    # Not so in keuss (factory, deadletter): an element that kills its consumer is never dead: only a ko
    # counts.
    pushed = jobs.push(max_attempts=2)
    for attempt in (1, 2):
        victim, job = jobs.stranger()
        assert job[4] == attempt
        victim.plain.close()  # without a word
    wait_until(lambda: jobs.state(pushed) == "dead")
    assert jobs.show(pushed)["errors"][-1]["reason"] == "the worker died"


def test_a_rejected_job_is_never_removed_on_its_way_to_the_dead_letters(jobs: OwnQueue) -> None:
    # Not so in keuss (factory, deadletter): committed here, then pushed there: a crash between the two loses
    # it.
    with jobs.collection.watch() as changes:
        jobs.push()
        jobs.take().reject()
        seen = written(changes)
        # It is never removed, and never put anew
        assert [next(seen)["operationType"] for _ in range(3)] == ["insert", "update", "update"]


@pytest.fixture(scope="module")
def ending_broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    with serving(mongo_uri, [], queues={"mail": {}}, http="127.0.0.1:0") as broker:
        yield broker.process


def test_the_end_of_a_job_is_known_when_the_job_is_gone(ending_broker: BrokerProcess) -> None:
    endpoint = ending_broker.doors["smq"]
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        # Given a job that is done, one that was cancelled, and one that expired
        receipt = producer.push("mail", b"c", delay="1h")
        receipt.wait(TIMEOUT)
        cancelled = receipt.id
        client.jobs.cancel("mail", cancelled)
        expired = producer.push("mail", b"e", ttl=0.01).id
        wait_until(lambda: client.jobs.ended("mail", expired))
        with Worker("mail", shout, endpoint=endpoint, name="shouter"):
            assert producer.call("mail", b"d", TIMEOUT, id="done", kind="shout") == b"D"
        # When their ends are asked for
        (done,) = client.jobs.ended("mail", "done")
        assert (done.end, done.attempt, done.kind) == ("committed", 1, "shout")
        assert str(done.worker).startswith("shouter")
        assert done.seconds is not None
        assert {job.id: job.end for job in client.jobs.ended("mail")} == {
            "done": "committed",
            cancelled: "cancelled",
            expired: "expired",
        }
        assert client.jobs.ended("mail")[0].id == "done"
        assert client.jobs.ended("mail", "nobody") == []
        answer = Web(ending_broker.http).get("/api/v1/queues/mail/ended?id=done").json
        assert [row["end"] for row in answer["ends"]] == ["committed"]
        with pytest.raises(NotFoundError):
            client.jobs.ended("no-queue")


def test_the_end_of_a_forwarded_job_says_where_it_went(ending_broker: BrokerProcess) -> None:
    endpoint = ending_broker.doors["smq"]
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        producer.push("mail", b"f", id="moved").wait(TIMEOUT)
        with Worker("mail", lambda _job: Forward("archive"), endpoint=endpoint):
            wait_until(lambda: client.jobs.ended("mail", "moved"))
        (end,) = client.jobs.ended("mail", "moved")
        assert (end.end, end.to) == ("forwarded", "archive")


def shout(job: Job) -> bytes:
    return job.payload.upper()


def test_only_the_latest_ends_are_remembered() -> None:
    ends = Ends()
    for number in range(5000):
        ends.note("committed", [str(number)], float(number))
    known = [int(end.id) for end in ends.find(None, 10_000)]
    assert 500 <= len(known) <= 1000
    assert known == sorted(known, reverse=True)
    assert known[0] == 4999


def test_many_queues_remember_fewer_ends_each() -> None:
    queues = [Ends() for _ in range(1100)]
    for ends in queues:
        for number in range(60):
            ends.note("committed", [str(number)], 0.0)
    assert all(len(queue.find(None, 1000)) < 60 for queue in queues[1000:])


MIB = 2**20


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, [], poll=0.5, max_job_bytes=MIB) as broker:
        yield broker


@pytest.fixture
def queue(broker: BrokerUnderTest) -> str:
    name = token_hex(6)
    broker.make(name)
    return name


def many(_job: Job) -> FanOut:
    """More values than a message may have."""
    headers = {f"key-{number}": number for number in range(30)}
    return FanOut(*[Forward("children", b"x", headers=headers) for _ in range(1000)])


def hand_made(**changed: Any) -> Callable[[Job], Any]:
    """A Forward whose parts the handler has changed, past all checks."""

    def handler(_job: Job) -> Forward:
        onward = Forward("next", b"x")
        for at, value in changed.items():
            onward.onward[["queue", "payload", "headers"].index(at)] = value
        return onward

    return handler


def with_delay(delay: Any) -> Callable[[Job], Any]:
    """A Rollback whose delay was changed after it was made."""

    def handler(_job: Job) -> None:
        error = Retry("later")
        error.delay = delay
        raise error

    return handler


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (lambda _job: Forward("no name"), "BAD_QUEUE"),
        (lambda _job: Forward(".x"), "BAD_QUEUE"),
        (lambda _job: Forward("next", bytes(MIB + 1)), "TOO_LARGE"),
        (lambda _job: Forward("next", bytes(8 * MIB)), "TOO_LARGE"),
        (lambda _job: Forward("next", headers={"$ref": 1}), "BAD_HEADERS"),
        (lambda _job: FanOut(Forward("no name")), "BAD_QUEUE"),
        (lambda _job: FanOut(Forward("next", bytes(MIB + 1))), "TOO_LARGE"),
        (lambda _job: FanOut(*[Forward("next", bytes(MIB)) for _ in range(20)]), "TOO_LARGE"),
        (many, "BAD_FRAMES"),
        (lambda _job: bytes(8 * MIB), "TOO_LARGE"),
        (hand_made(queue=7), "TypeError: queue is a str"),
        (hand_made(queue="a\udcff"), "ValueError: queue is"),
        (hand_made(headers=7), "bad verdict"),
        (hand_made(payload=object()), "TypeError: a payload is bytes"),
        (hand_made(headers={"headers": {"x": object()}}), "BAD_FRAMES"),
        (with_delay(float("nan")), "ValueError: delay is nan"),
        (with_delay("soon"), "ValueError: delay is 'soon'"),
    ],
)
def test_a_job_whose_verdict_is_refused_ends_with_that_reason_and_the_next_is_taken(
    broker: BrokerUnderTest, queue: str, handler: Callable[[Job], Any], reason: str
) -> None:
    # Given: a worker with one place
    def either(job: Job) -> Any:
        return handler(job) if job.payload == b"bad" else b"good"

    endpoint = broker.doors["smq"]
    with Worker(queue, either, endpoint=endpoint), Producer(endpoint=endpoint) as producer:
        producer.push(queue, b"bad", max_attempts=1)
        producer.push(queue, b"next").wait()
        wait_until(lambda: broker.counts(queue) == {"dead": 1}, what="the end of both")
    with Client(endpoint=endpoint) as client:
        (dead,) = client.peek(queue, "dead")
    assert reason in dead["errors"][-1]["reason"]
    assert dead["attempts"] == 1
