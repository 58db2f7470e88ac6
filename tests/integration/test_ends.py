"""How jobs ended is remembered for a while, though nothing of them is stored."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluicemq import Client, Forward, Job, NotFoundError, Producer, Worker
from sluicemq_broker.queue.ends import Ends
from support.broker_process import BrokerProcess
from support.broker_under_test import serving
from support.http_reader import Web
from support.waiting import TIMEOUT, wait_until


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    with serving(mongo_uri, [], queues={"mail": {}}, http="127.0.0.1:0") as broker:
        yield broker.process


def test_the_end_of_a_job_is_known_when_the_job_is_gone(broker: BrokerProcess) -> None:
    endpoint = broker.doors["smq"]
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
        answer = Web(broker.http).get("/api/v1/queues/mail/ended?id=done").json
        assert [row["end"] for row in answer["ends"]] == ["committed"]
        with pytest.raises(NotFoundError):
            client.jobs.ended("no-queue")


def test_the_end_of_a_forwarded_job_says_where_it_went(broker: BrokerProcess) -> None:
    endpoint = broker.doors["smq"]
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
