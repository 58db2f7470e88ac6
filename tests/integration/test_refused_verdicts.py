"""Verdicts that the broker refuses: the job ends with that as its reason, its worker takes the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from secrets import token_hex
from typing import Any

import pytest

from sluicemq import Client, FanOut, Forward, Job, Producer, Retry, Worker
from support.broker_under_test import BrokerUnderTest, serving
from support.waiting import wait_until

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
