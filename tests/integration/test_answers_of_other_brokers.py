"""Who asks at one broker for what is worked on at another, over the real MongoDB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from sluicemq import Client
from support.broker_process import BrokerProcess
from support.broker_under_test import ANY_PORT
from support.raw_sockets import receive
from support.waiting import wait_until

DEVICES = [
    {"kind": "queue", "queue": "ask", "frontend": ANY_PORT, "backend": ANY_PORT},
    {"kind": "streamer", "queue": "ask", "frontend": ANY_PORT, "backend": ANY_PORT},
]


@pytest.fixture
def plain() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


def connected(context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.connect(address)
    return socket


def two_brokers(mongo_uri: str, database: str) -> tuple[BrokerProcess, BrokerProcess]:
    config = {"devices": DEVICES, "broker": {"lease": 5.0}}
    first, second = (BrokerProcess(mongo_uri, database, config=config) for _ in range(2))
    return first, second


def test_a_question_without_an_id_is_answered_by_a_worker_at_another_broker(
    mongo_uri: str, database: str, plain: zmq.Context[zmq.Socket[bytes]]
) -> None:
    first, second = two_brokers(mongo_uri, database)
    with first, second:
        asker = connected(plain, zmq.REQ, first.doors["req"])
        worker = connected(plain, zmq.REP, second.doors["rep"])
        for number in range(3):
            asker.send(b"question %d" % number)
            assert receive(worker) == [b"question %d" % number]
            worker.send(b"answer %d" % number)
            assert receive(asker) == [b"answer %d" % number]


def test_so_it_is_when_the_other_broker_comes_after_the_question_was_asked(
    mongo_uri: str, database: str, plain: zmq.Context[zmq.Socket[bytes]]
) -> None:
    first, second = two_brokers(mongo_uri, database)
    with first:
        asker = connected(plain, zmq.REQ, first.doors["req"])
        asker.send(b"question")
        with Client(endpoint=first.doors["smq"]) as client:
            wait_until(lambda: client.queues() and client.queues.list()[0].ready == 1)
        with second:
            worker = connected(plain, zmq.REP, second.doors["rep"])
            assert receive(worker) == [b"question"]
            worker.send(b"answer")
            assert receive(asker) == [b"answer"]


def test_a_question_that_a_pull_worker_elsewhere_took_is_answered(
    mongo_uri: str, database: str, plain: zmq.Context[zmq.Socket[bytes]]
) -> None:
    first, second = two_brokers(mongo_uri, database)
    with first, second:
        asker = connected(plain, zmq.REQ, first.doors["req"])
        worker = connected(plain, zmq.PULL, second.doors["pull"])
        asker.send(b"question")
        assert receive(worker) == [b"question"]
        assert receive(asker) == [b""]
