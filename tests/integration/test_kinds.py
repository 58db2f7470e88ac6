"""Kinds of jobs: what is counted of each, where it is shown, and its bounds."""

from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import pytest

from sluicemq import Client, FanOut, Forward, Job, Producer, Reject, Worker
from sluicemq_broker.runtime import OTHERS, Count
from sluicemq_broker.runtime.kinds import MOST_OF_QUEUE, Kinds
from support.broker_process import BrokerProcess
from support.broker_under_test import serving
from support.http_reader import Web
from support.waiting import TIMEOUT, wait_until


@pytest.fixture
def broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    shared: dict[str, Any] = {
        "queues": {"mail": {}, "sent": {}},
        "poll": 0.2,
        "history": True,
        "http": "127.0.0.1:0",
    }
    with serving(mongo_uri, [], **shared) as broker:
        yield broker.process


def work(job: Job) -> bytes | None:
    if job.payload == b"bad":
        raise Reject("no such address")
    return b"done"


def test_jobs_are_counted_by_their_kind_at_the_broker_that_has_them(broker: BrokerProcess) -> None:
    # Given jobs of two kinds, one named as tasks name theirs, and one without
    endpoint = broker.doors["smq"]
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        waiting = [
            producer.submit("mail", payload, **options)
            for payload, options in (
                (b"a", {"kind": "receipt"}),
                (b"bad", {"kind": "receipt"}),
                (b"b", {"headers": {"kind": "news"}}),
                (b"c", {}),
            )
        ]
        # When they are worked on
        with Worker("mail", work, endpoint=endpoint):
            for future in waiting:
                future.exception(TIMEOUT)
        # Then each kind has its figures
        wait_until(lambda: sum(kind.committed for kind in client.kinds.list()) == 2)
        rows = {kind.kind: kind for kind in client.kinds.list("mail")}
        assert rows.keys() == {"receipt", "news"}
        receipt, news = rows["receipt"], rows["news"]
        assert (receipt.pushed, receipt.committed, receipt.rejected, receipt.dead) == (2, 1, 1, 1)
        assert (news.pushed, news.committed, news.rejected, news.dead) == (1, 1, 0, 0)
        assert news.worked is not None
        assert news.p95 is not None
        # And the job itself says its kind
        dead = client.jobs.list("mail", "dead")
        assert [letter.kind for letter in dead] == ["receipt"]
        # And the metrics have both
        text = Web(broker.http).get("/metrics").body.decode()
        assert 'sluicemq_kind_pushed_total{kind="receipt",queue="mail"} 2.0' in text
        assert 'sluicemq_kind_dead_total{kind="receipt",queue="mail"} 1.0' in text


def test_a_forwarded_job_keeps_its_kind_unless_it_gets_another(broker: BrokerProcess) -> None:
    endpoint = broker.doors["smq"]
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        producer.push("mail", b"kept", kind="receipt")
        producer.push("mail", b"new", kind="receipt")
        with Worker("mail", onward, endpoint=endpoint):
            wait_until(lambda: len(client.jobs.list("sent")) == 2)
        assert {job.payload: job.kind for job in client.jobs.list("sent")} == {
            b"kept": "receipt",
            b"new": "archive",
        }


def test_a_job_that_is_joined_counts_once_though_it_is_delivered_twice(broker: BrokerProcess) -> None:
    def join(job: Job) -> FanOut | None:
        return FanOut(Forward("leaves"), join=True) if job.children is None else None

    endpoint = broker.doors["smq"]
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        reply = producer.submit("trees", b"x", kind="tree")
        with Worker("trees", join, endpoint=endpoint), Worker("leaves", onward_not, endpoint=endpoint):
            reply.result(TIMEOUT)
        (row,) = client.kinds.list("trees")
        assert (row.pushed, row.committed) == (1, 1)


def onward_not(_job: Job) -> None:
    """End the job."""


@pytest.mark.full  # a history is written every ten seconds
def test_the_history_of_a_kind_is_written(broker: BrokerProcess) -> None:
    endpoint = broker.doors["smq"]
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        producer.push("mail", b"a", kind="a/b").wait(TIMEOUT)
        wait_until(lambda: client.history.kind("mail", "a/b").total.get("pushed") == 1)
        answer = Web(broker.http).get("/api/v1/series/kind/mail:a_b?span=hour").json
        assert sum(answer["curves"]["pushed"]) == 1


def onward(job: Job) -> Forward:
    return Forward("sent", kind="archive") if job.payload == b"new" else Forward("sent")


def test_a_flood_of_kinds_shares_one_row() -> None:
    kinds = Kinds(WeakSet())
    for number in range(MOST_OF_QUEUE + 100):
        kinds.add(Count.PUSHED, [f"kind-{number}"])
    found = dict(kinds.items())
    assert len(found) == MOST_OF_QUEUE + 1
    assert found[OTHERS].values[Count.PUSHED] == 100
