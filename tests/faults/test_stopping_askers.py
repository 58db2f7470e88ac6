"""A broker that stops still owes answers to those who have asked."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import zmq

from sluicemq import Client
from support.broker_process import BrokerProcess
from support.waiting import TIMEOUT, wait_until


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def broker(mongo_uri: str, database: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(mongo_uri, database, config={"broker": {"stop_timeout": 30.0}}) as broker:
        yield broker


def connected(context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.rcvtimeo = int(TIMEOUT * 1000)
    socket.connect(address)
    return socket


def test_a_job_that_is_running_at_sigterm_is_answered(
    broker: BrokerProcess, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    # Given an asker whose job a worker has
    worker = connected(context, zmq.REP, broker.doors["rep"])
    asker = connected(context, zmq.REQ, broker.doors["req"])
    asker.send(b"question")
    assert worker.recv() == b"question"
    # When the broker is told to stop, and the worker answers then
    broker.send_signal(signal.SIGTERM)
    broker.wait_log("waiting for 1 running jobs")
    worker.send(b"answer")
    # Then the asker gets it, and the broker ends well
    assert asker.recv() == b"answer"
    assert broker.process.wait(60) == 0


def test_who_waits_for_a_job_that_nobody_has_is_told_to_ask_again(
    broker: BrokerProcess, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    # Given an asker and no worker
    asker = connected(context, zmq.DEALER, broker.doors["req"])
    asker.send_multipart([b"7", b"", b"", b'{"id": "again"}', b"question"])
    with Client(endpoint=broker.doors["smq"]) as client:
        wait_until(lambda: client.counters().counters.get("pushed"), what="the job's being stored")
    # When the broker stops
    assert broker.terminate() == 0
    # Then it is told so, in its own envelope
    number, empty, error, text = asker.recv_multipart()
    assert (number, empty, error) == (b"7", b"", b"ERROR")
    assert b"UNAVAILABLE" in text
    # And asking again after the restart waits for the same job
    broker.restart()
    again = connected(context, zmq.REQ, broker.doors["req"])
    again.send_multipart([b"", b'{"id": "again"}', b"question"])
    worker = connected(context, zmq.REP, broker.doors["rep"])
    assert worker.recv() == b"question"
    worker.send(b"answer")
    assert again.recv() == b"answer"
