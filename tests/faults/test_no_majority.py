"""A primary that answers, and no majority that confirms: nothing can be stored, and everybody says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.replica_set import ReplicaSet
from sluicemq import Client, Producer, TimeoutError
from sluicemq_broker.store import connect, server_facts
from support.broker_process import BrokerProcess
from support.http_reader import Web
from support.waiting import wait_until

#: By default test_every_failpoint kills brokers at statements, and test_chaos_short everything at once.
pytestmark = pytest.mark.full

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
