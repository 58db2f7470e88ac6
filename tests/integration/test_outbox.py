"""Outboxes: a job exists exactly if the transaction of the application has committed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.errors import WriteError

from sluicemq import Client, Producer, outbox
from sluicemq.protocol.outbox import OUTBOX
from support.broker_process import BrokerProcess
from support.waiting import wait_until

Shop = Database[dict[str, Any]]


@pytest.fixture
def shop(mongo_uri: str, database: str) -> Iterator[Shop]:
    """The database of an application, at the MongoDB of the brokers."""
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        outbox.prepare(mongo[f"{database}_shop"])
        yield mongo[f"{database}_shop"]
        mongo.drop_database(f"{database}_shop")


@pytest.fixture
def carrier(mongo_uri: str, database: str, shop: Shop) -> Iterator[BrokerProcess]:
    """A broker that follows the outbox of the shop."""
    config = {"broker": {"outboxes": [shop.name]}, "queues": {"narrow": {"max_ready": 1}}}
    with BrokerProcess(mongo_uri, database, config=config) as broker:
        yield broker


@contextmanager
def transaction(shop: Shop) -> Iterator[ClientSession]:
    with shop.client.start_session() as session, session.start_transaction():
        yield session


def test_a_job_is_there_once_the_transaction_has_committed(carrier: BrokerProcess, shop: Shop) -> None:
    with transaction(shop) as session:
        shop.orders.insert_one({"_id": 7}, session=session)
        first = outbox.push_json(
            session, "mail", {"order": 7}, database=shop.name, priority=9, headers={"trace": "t"}
        )
        later = outbox.push(session, "mail", b"later", database=shop.name, delay=timedelta(hours=1))

    with Client(endpoint=carrier.doors["smq"]) as client:
        job = client.jobs.reserve("mail", 1, wait=60).jobs[0]
        assert (job.id, job.payload, job.priority) == (first, b'{"order":7}', 9)
        assert job.headers == {"trace": "t"}
        assert [each.id for each in client.jobs.list("mail", "scheduled")] == [later]
        assert client.counters().counters["posted"] == 2
    assert shop[OUTBOX].count_documents({}) == 0


def test_a_transaction_that_is_aborted_leaves_no_job(carrier: BrokerProcess, shop: Shop) -> None:
    with pytest.raises(ZeroDivisionError), transaction(shop) as session:  # noqa: PT012 - it raises at its end
        outbox.push(session, "mail", b"never", database=shop.name)
        raise ZeroDivisionError
    with transaction(shop) as session:
        kept = outbox.push(session, "mail", b"kept", database=shop.name)

    with Client(endpoint=carrier.doors["smq"]) as client:
        assert [job.id for job in client.jobs.reserve("mail", 2, wait=60 if not kept else 5)] == [kept]


def test_jobs_of_one_program_keep_their_order(carrier: BrokerProcess, shop: Shop) -> None:
    pushed = []
    for number in range(20):
        with transaction(shop) as session:
            pushed += [
                outbox.push(session, "mail", b"%d" % (10 * number + n), database=shop.name) for n in range(5)
            ]

    with Client(endpoint=carrier.doors["smq"]) as client:
        assert [job.id for job in client.jobs.reserve("mail", 100, wait=60)] == pushed


def test_posts_are_found_that_were_written_while_no_broker_ran(
    mongo_uri: str, database: str, shop: Shop, carrier: BrokerProcess
) -> None:
    carrier.kill()
    with transaction(shop) as session:
        waited = outbox.push(session, "mail", b"waited", database=shop.name)
    carrier.restart()

    with Client(endpoint=carrier.doors["smq"]) as client:
        assert client.jobs.reserve("mail", 1, wait=60).jobs[0].id == waited


def test_a_post_by_hand_of_which_no_job_can_be_made_says_why_and_keeps_none_waiting(
    carrier: BrokerProcess, shop: Shop
) -> None:
    bad = [
        {"_id": ObjectId(), "queue": "no queue's name", "payload": b"x"},
        {"_id": ObjectId(), "queue": "mail", "payload": b"x", "headers": {"priority": 1000}},
    ]
    shop[OUTBOX].insert_many([*bad, {"_id": ObjectId(), "queue": "mail", "payload": "grüße"}])

    with Client(endpoint=carrier.doors["smq"]) as client:
        assert client.jobs.reserve("mail", 1, wait=60).jobs[0].payload == "grüße".encode()
        wait_until(lambda: client.counters().counters.get("unposted") == 2, what="the refusals")
    codes = {each["_id"]: each["refused"]["code"] for each in shop[OUTBOX].find()}
    assert codes == {bad[0]["_id"]: "BAD_QUEUE", bad[1]["_id"]: "BAD_HEADERS"}


def test_a_full_queue_gets_its_posts_when_it_has_room(carrier: BrokerProcess, shop: Shop) -> None:
    with transaction(shop) as session:
        pushed = [outbox.push(session, "narrow", b"x", database=shop.name) for _ in range(3)]

    with Client(endpoint=carrier.doors["smq"]) as client:
        for post in pushed:
            claim = client.jobs.reserve("narrow", 1, wait=60)
            assert claim.jobs[0].id == post
            claim.jobs[0].commit()


def test_a_post_that_commits_behind_later_ones_is_carried(carrier: BrokerProcess, shop: Shop) -> None:
    with Client(endpoint=carrier.doors["smq"]) as client:
        with transaction(shop) as slow:
            earlier = outbox.push(slow, "mail", b"earlier", database=shop.name)
            with transaction(shop) as quick:
                later = outbox.push(quick, "mail", b"later", database=shop.name)
            assert client.jobs.reserve("mail", 1, wait=60).jobs[0].id == later
        assert client.jobs.reserve("mail", 1, wait=60).jobs[0].id == earlier


def test_a_full_queue_keeps_no_other_waiting(carrier: BrokerProcess, shop: Shop) -> None:
    with Producer(endpoint=carrier.doors["smq"]) as producer, Client(endpoint=carrier.doors["smq"]) as client:
        producer.push("narrow", b"fills it").wait(60)
        with transaction(shop) as session:
            kept = [outbox.push(session, "narrow", b"x", database=shop.name) for _ in range(3)]
            free = outbox.push(session, "mail", b"x", database=shop.name)
        assert client.jobs.reserve("mail", 1, wait=60).jobs[0].id == free
        assert shop[OUTBOX].count_documents({"queue": "narrow"}) == len(kept)
        client.jobs.reserve("narrow", 1, wait=60).jobs[0].commit()
        assert client.jobs.reserve("narrow", 1, wait=60).jobs[0].id == kept[0]


def test_what_can_be_no_post_is_refused_where_it_is_written(shop: Shop) -> None:
    for wrong in (
        {"payload": b"x"},
        {"queue": "mail"},
        {"queue": 7, "payload": b""},
        {"_id": "a", "queue": "q", "payload": b""},
    ):
        with pytest.raises(WriteError):
            shop[OUTBOX].insert_one(dict(wrong))
    with shop.client.start_session() as session, pytest.raises(RuntimeError, match="within a transaction"):
        outbox.push(session, "mail", b"x", database=shop.name)
    with transaction(shop) as session:
        with pytest.raises(ValueError, match="queue is 'a b'"):
            outbox.push(session, "a b", b"x", database=shop.name)
        with pytest.raises(TypeError):
            outbox.push(session, "mail", "text", database=shop.name)  # type: ignore[arg-type]
