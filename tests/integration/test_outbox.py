"""Outboxes: a job exists exactly if the transaction of the application has committed."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.errors import WriteError

from sluicemq import ClaimedJob, Client, Producer, outbox
from sluicemq.protocol.outbox import OUTBOX
from support.broker_process import BrokerProcess
from support.samples import block
from support.waiting import wait_until

Shop = Database[dict[str, Any]]

NODE_MODULES = Path(__file__).parents[2] / ".venv-test" / "node" / "node_modules"


@pytest.fixture(scope="module")
def shop(mongo: MongoClient[dict[str, Any]]) -> Iterator[Shop]:
    """The database of an application, at the MongoDB of the brokers."""
    shop = mongo[f"test_{token_hex(6)}_shop"]
    outbox.prepare(shop)
    yield shop
    mongo.drop_database(shop.name)


@pytest.fixture(scope="module")
def carrier(mongo_uri: str, own_database: Shop, shop: Shop) -> Iterator[BrokerProcess]:
    """A broker that follows the outbox of the shop."""
    config = {"broker": {"outboxes": [shop.name]}, "queues": {"mail": {}, "narrow": {"max_ready": 1}}}
    with BrokerProcess(mongo_uri, own_database.name, config=config) as broker:
        yield broker


@contextmanager
def transaction(shop: Shop) -> Iterator[ClientSession]:
    with shop.client.start_session() as session, session.start_transaction():
        yield session


def take(client: Client, queue: str, most: int = 1) -> list[ClaimedJob]:
    """Commit jobs of a queue, and return them; a claim that is left open keeps its broker from stopping."""
    with client.jobs.reserve(queue, most, wait=60) as claim:
        claim.commit()
        return claim.jobs


def test_a_job_is_there_once_the_transaction_has_committed(carrier: BrokerProcess, shop: Shop) -> None:
    with transaction(shop) as session:
        shop.orders.insert_one({"_id": 7}, session=session)
        first = outbox.push_json(
            session, "mail", {"order": 7}, database=shop.name, priority=9, headers={"trace": "t"}
        )
        later = outbox.push(session, "mail", b"later", database=shop.name, delay=timedelta(hours=1))
    with Client(endpoint=carrier.doors["smq"]) as client:
        (job,) = take(client, "mail")
        assert (job.id, job.payload, job.priority) == (first, b'{"order":7}', 9)
        assert job.headers == {"trace": "t"}
        assert [listed.id for listed in client.jobs.list("mail", "scheduled")] == [later]
        assert client.counters().counters["posted"] >= 2
    assert shop[OUTBOX].count_documents({"refused": None}) == 0


def test_a_transaction_that_is_aborted_leaves_no_job(carrier: BrokerProcess, shop: Shop) -> None:
    with pytest.raises(ZeroDivisionError), transaction(shop) as session:  # noqa: PT012 - it raises at its end
        outbox.push(session, "mail", b"never", database=shop.name)
        raise ZeroDivisionError
    with transaction(shop) as session:
        kept = outbox.push(session, "mail", b"kept", database=shop.name)
    with Client(endpoint=carrier.doors["smq"]) as client:
        assert [job.id for job in take(client, "mail")] == [kept]  # the other one would be before it
    assert shop[OUTBOX].count_documents({"refused": None}) == 0


def test_jobs_of_one_program_keep_their_order(carrier: BrokerProcess, shop: Shop) -> None:
    pushed = []
    for number in range(20):
        with transaction(shop) as session:
            pushed += [
                outbox.push(session, "mail", b"%d" % (10 * number + n), database=shop.name) for n in range(5)
            ]
    with Client(endpoint=carrier.doors["smq"]) as client:
        taken: list[str] = []
        while len(taken) < len(pushed):
            taken += [job.id for job in take(client, "mail", 100 - len(taken))]
        assert taken == pushed


def test_posts_are_found_that_were_written_while_no_broker_ran(carrier: BrokerProcess, shop: Shop) -> None:
    carrier.kill()
    with transaction(shop) as session:
        waited = outbox.push(session, "mail", b"waited", database=shop.name)
    carrier.restart()
    with Client(endpoint=carrier.doors["smq"]) as client:
        assert [job.id for job in take(client, "mail")] == [waited]


def test_a_post_of_which_no_job_can_be_made_keeps_none_waiting(carrier: BrokerProcess, shop: Shop) -> None:
    bad = [
        {"_id": ObjectId(), "queue": "no queue's name", "payload": b"x"},
        {"_id": ObjectId(), "queue": "mail", "payload": b"x", "headers": {"priority": 1000}},
    ]
    shop[OUTBOX].insert_many([*bad, {"_id": ObjectId(), "queue": "mail", "payload": "grüße"}])
    with Client(endpoint=carrier.doors["smq"]) as client:
        assert [job.payload for job in take(client, "mail")] == ["grüße".encode()]
        wait_until(lambda: client.counters().counters.get("unposted") == 2, what="the refusals")
    codes = {document["_id"]: document["refused"]["code"] for document in shop[OUTBOX].find()}
    assert codes == {bad[0]["_id"]: "BAD_QUEUE", bad[1]["_id"]: "BAD_HEADERS"}


def test_a_full_queue_gets_its_posts_when_it_has_room(carrier: BrokerProcess, shop: Shop) -> None:
    with transaction(shop) as session:
        pushed = [outbox.push(session, "narrow", b"x", database=shop.name) for _ in range(3)]
    with Client(endpoint=carrier.doors["smq"]) as client:
        for post in pushed:
            assert [job.id for job in take(client, "narrow")] == [post]


def test_a_post_that_commits_behind_later_ones_is_carried(carrier: BrokerProcess, shop: Shop) -> None:
    with Client(endpoint=carrier.doors["smq"]) as client:
        with transaction(shop) as slow:
            earlier = outbox.push(slow, "mail", b"earlier", database=shop.name)
            with transaction(shop) as quick:
                later = outbox.push(quick, "mail", b"later", database=shop.name)
            assert [job.id for job in take(client, "mail")] == [later]
        assert [job.id for job in take(client, "mail")] == [earlier]


def test_a_full_queue_keeps_no_other_waiting(carrier: BrokerProcess, shop: Shop) -> None:
    with Producer(endpoint=carrier.doors["smq"]) as producer, Client(endpoint=carrier.doors["smq"]) as client:
        producer.push("narrow", b"fills it").wait(60)
        with transaction(shop) as session:
            kept = [outbox.push(session, "narrow", b"x", database=shop.name) for _ in range(3)]
            free = outbox.push(session, "mail", b"x", database=shop.name)
        assert [job.id for job in take(client, "mail")] == [free]
        assert shop[OUTBOX].count_documents({"queue": "narrow"}) == len(kept)
        take(client, "narrow")
        assert [job.id for job in take(client, "narrow")] == [kept[0]]


@pytest.mark.full  # Node and its driver take two seconds to start
@pytest.mark.skipif(not (NODE_MODULES / "mongodb").is_dir(), reason="mongodb for Node is not there")
def test_a_program_in_javascript_posts(carrier: BrokerProcess, shop: Shop, mongo_uri: str) -> None:
    code = block("outbox: node").replace('"shop"', json.dumps(shop.name)).replace("_id: 7", "_id: 70")
    own = {"MONGODB_URI": mongo_uri, "NODE_PATH": str(NODE_MODULES)}
    subprocess.run(["node", "-e", code], env={**os.environ, **own}, check=True, timeout=60)
    with Client(endpoint=carrier.doors["smq"]) as client:
        (job,) = take(client, "mail")
    assert (job.json(), job.priority) == ({"order": 7}, 9)
    # A second order of this number is refused by MongoDB, and its post with it.
    again = subprocess.run(
        ["node", "-e", code], env={**os.environ, **own}, check=False, capture_output=True, timeout=60
    )
    assert again.returncode
    assert b"E11000" in again.stderr
    assert shop[OUTBOX].count_documents({"refused": None}) == 0


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
