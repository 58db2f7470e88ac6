"""Signs of life of the library's workers: one without a voice lives, a stopped one looks first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from time import monotonic
from types import MappingProxyType
from typing import Any

import psutil
import pytest

from clients.scripted_broker import ScriptedBroker
from sluicemq import Client, Producer
from sluicemq.protocol import wire
from support.broker_under_test import serving
from support.keyed_broker import keyed_broker
from support.waiting import wait_until

#: By default test_every_failpoint kills brokers at statements, and test_chaos_short everything at once.
pytestmark = pytest.mark.full

SILENCE = 1.0

WORKER = """
import ctypes, os, sys
from sluicemq import Worker

def handle(job):
    print(job.payload.decode(), job.attempt, flush=True)
    if job.payload == b"holds":  # Python's lock, as a regular expression or a library of images may
        ctypes.PyDLL(None).usleep({microseconds})
    elif job.payload == b"waits":
        os.read(0, 1)

Worker(sys.argv[1], sys.argv[2], handle, prefetch=5).run()
"""


@contextmanager
def working(
    endpoint: str, queue: str, variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[subprocess.Popen[str]]:
    program = WORKER.format(microseconds=int(3 * SILENCE * 1e6))
    command = [sys.executable, "-c", program, endpoint, queue]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **variables}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


BEATS: dict[str, Any] = {"poll": 0.5, "heartbeat": 0.2, "silence": SILENCE}


@contextmanager
def reached(mongo_uri: str, database: str, folder: Path, *, keyed: bool) -> Iterator[tuple[str, Any, Any]]:
    """A broker with short signs of life: its endpoint, and keywords and variables that let in there."""
    if not keyed:
        with serving(mongo_uri, [], database=database, **BEATS) as open_to_all:
            yield open_to_all.doors["smq"], {}, {}
        return
    with keyed_broker(mongo_uri, database, folder, {"broker": BEATS}) as broker:
        yield broker.endpoint, broker.access(), broker.variables()


@pytest.mark.parametrize("keyed", [False, True], ids=["open", "keyed"])
def test_a_handler_that_holds_pythons_lock_for_longer_than_the_silence_keeps_its_job(
    mongo_uri: str, database: str, tmp_path: Path, *, keyed: bool
) -> None:
    with (
        reached(mongo_uri, database, tmp_path, keyed=keyed) as (endpoint, access, variables),
        Producer(**access, endpoint=endpoint) as producer,
        Client(**access, endpoint=endpoint) as client,
    ):
        # When: two such jobs, and one behind them
        producer.push_many("q", [b"holds", b"holds", b"ends"])
        with working(endpoint, "q", variables) as worker:
            assert worker.stdout
            # Then: each is done at its first attempt
            assert worker.stdout.readline() == "holds 1\n"
            wait_until(
                lambda: not any(client.queue("q")[state] for state in ("ready", "scheduled", "reserved"))
            )
            worker.send_signal(signal.SIGTERM)
            assert worker.stdout.read() == "holds 1\nends 1\n"


def test_a_worker_that_is_stopped_is_taken_for_dead_and_the_job_says_why(mongo_uri: str) -> None:
    queue = token_hex(6)
    with (
        serving(mongo_uri, [], **BEATS) as broker,
        Producer(endpoint=broker.doors["smq"]) as producer,
        Client(endpoint=broker.doors["smq"]) as client,
    ):
        pushed = producer.push(queue, b"waits", max_attempts=1)
        with working(broker.doors["smq"], queue) as worker:
            assert worker.stdout
            assert worker.stdout.readline() == "waits 1\n"
            wait_until(lambda: client.queues.get(queue).reserved == 1)
            worker.send_signal(signal.SIGSTOP)
            wait_until(lambda: client.queues.get(queue).dead == 1)
        assert client.show(queue, pushed.id)["errors"][-1]["reason"] == (
            "the worker is taken for dead: nothing heard for 1 s"
        )


def test_a_worker_that_was_stopped_begins_no_job_of_a_connection_that_has_ended_meanwhile() -> None:
    # Given: a worker with one job at work, and one behind it
    broker = ScriptedBroker(silence=0.5).start()
    with working(broker.endpoint, "q") as worker:
        assert worker.stdout
        assert worker.stdin
        peer = broker.wait_for(wire.READY)[0].peer
        broker.deliver(peer, "q", [b"waits", b"behind"])
        assert worker.stdout.readline() == "waits 1\n"
        # When: it is stopped for longer than a broker waits, which has closed the connection by then
        worker.send_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED)
        stopped_at = monotonic()
        wait_until(lambda: monotonic() > stopped_at + 0.5, what="the end of the silence")
        broker.stop()
        worker.stdin.write("\n")
        worker.stdin.flush()
        worker.send_signal(signal.SIGCONT)
        # Then: the next job that it begins is one of the new connection
        broker.start()
        ready = broker.wait_for(wire.READY, 2)[-1]
        broker.deliver(ready.peer, "q", [b"new"])
        assert worker.stdout.readline() == "new 1\n"
    broker.stop()
