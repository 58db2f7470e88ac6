"""A replica set without majority, primary or one node."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

from faults.replica_set import ReplicaSet
from sluicemq import Client, Producer, TimeoutError
from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.job import State
from sluicemq_broker.store import EventRing, Pushed, QueueStore, collection, connect, server_facts
from sluicemq_broker.store.creation import by_majority
from sluicemq_broker.store.jobs.index_models import INDEXES, LINE_INDEX, LINE_INDEXES
from sluicemq_broker.store.jobs.indexes import ignore, make_indexes
from support.broker_process import BrokerProcess
from support.http_reader import Web
from support.jobs import NOW, a_job
from support.waiting import TIMEOUT, wait_until

SAYS = "MongoDB answers, but no majority of its members has confirmed a write for"


@pytest.fixture(scope="module")
def mongo() -> Iterator[ReplicaSet]:
    with ReplicaSet(3) as nodes:
        yield nodes


def let_secondaries_copy(mongo: ReplicaSet, *, copy: bool) -> None:
    """Let them take what the primary writes, or not; they are up, and answer, all the time."""
    for port in mongo.ports:
        if port != mongo.primary():
            with mongo.direct(port) as client:
                mode = "off" if copy else "alwaysOn"
                client.admin.command("configureFailPoint", "stopReplProducer", mode=mode)


@pytest.mark.full
def test_ping_readiness_a_push_and_the_next_start_say_what_is_missing(mongo: ReplicaSet) -> None:
    config = {"broker": {"http": "127.0.0.1:0"}}
    with BrokerProcess(mongo.uri, "majority", config=config) as broker:
        endpoint, web = broker.doors["smq"], Web(broker.http)
        with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
            producer.push("mail", b"before").wait(60)
            let_secondaries_copy(mongo, copy=False)
            try:
                waiting = producer.push("mail", b"meanwhile")
                unready = wait_until(lambda: (got := web.get("/readyz")).status == 503 and got, 60)
                assert unready.json["store"].startswith(SAYS)
                assert "another broker" not in unready.json["lease"]
                assert client.health()["store"].startswith(SAYS)
                with pytest.raises(TimeoutError):
                    waiting.wait(0.1)
                with connect(mongo.uri) as direct:
                    facts = server_facts(direct, "majority")
                assert facts.unconfirmed.startswith(SAYS)
                starts = BrokerProcess(mongo.uri, "majority")
                starts.launch()
                assert starts.process.wait(60)
                assert SAYS in starts.log_text()
                starts.close()
            finally:
                let_secondaries_copy(mongo, copy=True)
            wait_until(lambda: web.get("/readyz").status == 200, 60, "readiness")
            assert client.health()["store"] == "ok"
            waiting.wait(60)


_A_WHILE = 0.5  # seconds in which an answer that waits for nothing would have come


@pytest.mark.full
def test_it_is_neither_told_as_a_jobs_end_nor_as_one_that_exists_until_a_majority_has_it() -> None:
    with ReplicaSet(3) as replica_set, connect(replica_set.uri) as client:
        # Given a job that is ready for all, done for the primary alone, and another that only this one has
        store = QueueStore(client["brokers"], "queue.mail")
        store.prepare()
        store.push([a_job("a")], NOW)
        with secondaries_behind(replica_set):
            alone: MongoClient[dict[str, Any]] = client
            jobs = alone["brokers"].get_collection("queue.mail", write_concern=WriteConcern(w=1))
            there = jobs.find_one_and_update({"_id": "a"}, {"$set": {"state": "done", "result": b"early"}})
            assert there is not None
            jobs.insert_one({**there, "_id": "b"})
            # When somebody asks for them, or pushes the second one again
            ends = {job_id: found.state for job_id, found in store.find(["a", "b"]).items()}
            exist = store.which_exist(["a", "b"])
            answers: list[Pushed] = []
            pushing = threading.Thread(target=lambda: answers.append(store.push([a_job("b")], NOW)))
            pushing.start()
            pushing.join(_A_WHILE)
            early = list(answers)
        pushing.join(TIMEOUT)

        # Then what only the primary has counts for nobody
        assert ends == {"a": State.READY}
        assert exist == {"a"}
        assert early == []
        assert [answer.existing for answer in answers] == [[0]]
        assert store.find(["a"])["a"].result == b"early"


@contextmanager
def secondaries_behind(replica_set: ReplicaSet) -> Iterator[None]:
    """Let the secondaries of a set of three take nothing from the primary."""
    others = [port for port in replica_set.ports if port != replica_set.primary()]
    for port in others:
        replica_set.fail(port, "stopReplProducer", "alwaysOn")
    try:
        yield
    finally:
        for port in others:
            replica_set.fail(port, "stopReplProducer", "off")


full = pytest.mark.full


@full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("goes", ["killed", "steps down"])
def test_who_listens_is_told_and_hears_the_next_primary(database: str, goes: str) -> None:
    with ReplicaSet(3) as replica_set, connect(replica_set.uri) as client:
        one, other = EventRing(client[database]), EventRing(client[database])
        gone = replica_set.primary()
        with one.listen([]) as feed:
            other.send(["ready mail 1"])
            assert wait_until(feed.next) == ["ready mail 1"]
            if goes == "killed":
                replica_set.kill(gone)
            else:
                with replica_set.direct(gone) as direct:
                    direct.admin.command("replSetStepDown", 60, force=True)
            with pytest.raises(UnavailableError):
                wait_until(lambda: feed.next() and False, what="an end")
        wait_until(lambda: listens(one, other), what="another primary")


def listens(one: EventRing, other: EventRing) -> bool:
    """Whether one hears the other, over whatever primary there is."""
    try:
        with one.listen([]) as feed:
            other.send(["ready mail 2"])
            return list(feed.next()) == ["ready mail 2"]
    except (UnavailableError, PyMongoError):
        return False


@pytest.mark.full
def test_a_queue_with_jobs_gets_its_first_group_while_a_node_is_away() -> None:
    with ReplicaSet(3) as mongod, MongoClient[dict[str, Any]](mongod.uri) as mongo:
        jobs = mongo["indexed"][collection("mail")]
        make_indexes(jobs, ignore, INDEXES)
        jobs.insert_many([{"state": "ready", "seq": seq} for seq in range(10)])
        away = next(port for port in mongod.ports if port != mongod.primary())
        mongod.kill(away)
        make_indexes(jobs, ignore, LINE_INDEXES)
        assert LINE_INDEX in jobs.index_information()


def test_of_a_single_node_no_majority_is_asked(mongo_uri: str) -> None:
    with MongoClient[dict[str, Any]](mongo_uri, directConnection=True) as mongo:
        mongo.admin.command("ping")
        assert by_majority(mongo["any"]["collection"]) == {}
