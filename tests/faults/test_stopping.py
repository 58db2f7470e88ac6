"""SIGTERM: nothing received is lost, running jobs may finish, askers hear, the rest goes back uncharged."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from pymongo import MongoClient
from pymongo.collection import Collection

from faults.fleet import Fleet
from faults.mongo_messages import Command
from faults.mongo_proxy import CuttingProxy
from sluicemq import Client, Job, Message, Producer, Reader, Worker
from sluicemq_broker.store.jobs.pack_contents import opened
from support.broker_process import BrokerProcess
from support.ports import tcp
from support.raw_sockets import shake_hands
from support.waiting import TIMEOUT, wait_until

CONFIG = {"broker": {"stop_timeout": 4.0}}
PATIENT = {"broker": {"stop_timeout": 1000.0}}

Jobs = Collection[dict[str, Any]]


@pytest.fixture
def broker(mongo_uri: str, database: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(mongo_uri, database, config=CONFIG) as broker:
        yield broker


@pytest.fixture
def patient(mongo_uri: str, database: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(mongo_uri, database, config=PATIENT) as broker:
        yield broker


@pytest.fixture
def jobs(mongo_uri: str, database: str) -> Iterator[Jobs]:
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        yield client[database]["queue.default"]


@pytest.mark.full
def test_under_a_flood_everything_received_is_stored_or_counted_as_refused(
    mongo_uri: str, database: str, jobs: Jobs, fleet: Fleet
) -> None:
    # A fifth of it passes in any case: a flood is never quiet.
    with BrokerProcess(mongo_uri, database, config={"broker": {"stop_timeout": 30.0}}) as broker:
        fleet.start("flood.py", broker.doors["push"], 200)
        wait_until(lambda: counters(broker)["pushed"] > 5000, what="the flood")
        code = broker.terminate()
        counted = counted_at_the_end(broker)
    assert code == 0
    assert counted["received"] == counted["pushed"] + counted["refused"]
    assert counted["unclear"] == 0
    assert counted["pushed"] == len(stored(jobs))


@pytest.mark.full
def test_a_mongodb_that_is_away_is_not_waited_for(mongo_uri: str, database: str, fleet: Fleet) -> None:
    with CuttingProxy(mongo_uri) as proxy, BrokerProcess(proxy.uri, database, config=CONFIG) as broker:
        with_a_job(fleet, broker)
        fleet.start("flood.py", broker.doors["push"], 200)
        wait_until(lambda: counters(broker)["pushed"] > 5000, what="the flood")
        proxy.freeze()
        assert broker.terminate() == 0


@pytest.mark.full
def test_a_signal_after_a_second_stops_at_once(patient: BrokerProcess, fleet: Fleet, jobs: Jobs) -> None:
    with_a_job(fleet, patient)
    signal_until_it_hurries(patient)
    assert left(jobs) == [("ready", 0)]


@pytest.mark.full
def test_it_stops_at_once_too_where_mongodb_does_not_answer(mongo_uri: str, database: str) -> None:
    with (
        CuttingProxy(mongo_uri) as proxy,
        BrokerProcess(proxy.uri, database, config=PATIENT) as broker,
        zmq.Context() as context,
        context.socket(zmq.PUSH) as producer,
    ):
        producer.connect(broker.doors["push"])
        producer.send(b"first")
        wait_until(lambda: counters(broker)["pushed"] == 1, what="the first job")
        proxy.freeze()
        producer.send(b"second")
        signal_until_it_hurries(broker)


def signal_until_it_hurries(broker: BrokerProcess) -> None:
    """Like somebody who presses Ctrl-C again and again."""
    wait_until(
        lambda: "second signal" in broker.log_text() or broker.send_signal(signal.SIGINT), what="its hurry"
    )
    assert broker.process.wait(60) == 0


@pytest.mark.full
def test_two_signals_within_a_second_are_one(patient: BrokerProcess, fleet: Fleet, jobs: Jobs) -> None:
    worker = with_a_job(fleet, patient)
    patient.send_signal(signal.SIGTERM)
    patient.send_signal(signal.SIGINT)
    patient.wait_log("waiting for 1 running jobs")
    worker.go()
    assert patient.process.wait(60) == 0
    assert left(jobs) == []


@pytest.mark.full
def test_a_stopping_broker_lets_running_jobs_finish(patient: BrokerProcess, fleet: Fleet, jobs: Jobs) -> None:
    worker = with_a_job(fleet, patient)
    patient.process.terminate()
    patient.wait_log("waiting for 1 running jobs")
    worker.go()
    assert patient.process.wait(60) == 0
    assert left(jobs) == []


@pytest.mark.full
def test_a_stopping_broker_gives_back_what_does_not_finish_and_burns_no_attempt(
    broker: BrokerProcess, fleet: Fleet, jobs: Jobs
) -> None:
    worker = fleet.worker("library", broker.doors["smq"], "default", 10, 2)
    push(broker, [b"hold"] * 30)
    worker.wait_said("got", 2)
    code = broker.terminate()
    assert code == 0
    assert left(jobs) == [("ready", 0)] * 30


@pytest.mark.full
def test_a_stopping_library_worker_finishes_running_jobs_and_gives_back_the_others_uncharged(
    broker: BrokerProcess, fleet: Fleet, jobs: Jobs
) -> None:
    worker = fleet.worker("library", broker.doors["smq"], "default", 10, 2)
    push(broker, [b"hold"] * 10)
    worker.wait_said("got", 2)
    worker.process.terminate()
    wait_until(lambda: left(jobs).count(("ready", 0)) == 8, what="the staged jobs' return")
    worker.go(2)
    assert worker.process.wait(60) == 0
    assert left(jobs) == [("ready", 0)] * 8


@pytest.mark.full
def test_a_producer_that_pushes_during_a_restart_loses_nothing(broker: BrokerProcess, jobs: Jobs) -> None:
    numbers = [b"%d" % number for number in range(20_000)]
    pushing = threading.Thread(target=push, args=(broker, numbers))
    pushing.start()
    wait_until(lambda: counters(broker)["pushed"] > 1000, what="the first pushes")
    broker.terminate()
    broker.restart()
    pushing.join(60)
    assert not pushing.is_alive()
    assert sorted(job["payload"] for job in stored(jobs)) == sorted(numbers)


@pytest.mark.full
def test_a_worker_goes_on_after_a_restart(broker: BrokerProcess, jobs: Jobs) -> None:
    handled: list[tuple[bytes, int]] = []

    def handle(job: Job) -> None:
        handled.append((job.payload, job.attempt))

    with Worker("default", handle, prefetch=50, endpoint=broker.doors["smq"]):
        broker.terminate()
        broker.restart()
        push(broker, [b"after"])
        wait_until(lambda: not left(jobs) and handled, what="the job's commit")

    assert handled == [(b"after", 1)]


def with_a_job(fleet: Fleet, broker: BrokerProcess) -> Any:
    """A REP worker that holds a job."""
    worker = fleet.worker("rep", broker.doors["rep"])
    push(broker, [b"hold"])
    worker.wait_said("got")
    return worker


def push(broker: BrokerProcess, payloads: list[bytes]) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        for payload in payloads:
            producer.push("default", payload)


def counters(broker: BrokerProcess) -> Any:
    with Client(endpoint=broker.doors["smq"]) as client:
        return {"pushed": 0, **client.counters()["counters"]}


def counted_at_the_end(broker: BrokerProcess) -> dict[str, int]:
    line = re.search(r"counted: (.*)", broker.log_text())
    assert line, "no line with what was counted"
    return {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", line[1])}


def stored(jobs: Jobs) -> list[dict[str, Any]]:
    """Return the jobs that are stored, alone or in packs."""
    return [job for document in jobs.find() for job in opened(document, 0.0)]


def left(jobs: Jobs) -> list[tuple[str, int]]:
    return [(job["state"], job["attempts"]) for job in stored(jobs)]


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def asked_broker(mongo_uri: str, database: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(mongo_uri, database, config={"broker": {"stop_timeout": 30.0}}) as broker:
        yield broker


def connected(context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.rcvtimeo = int(TIMEOUT * 1000)
    socket.connect(address)
    return socket


def test_a_running_job_is_told(asked_broker: BrokerProcess, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    # Given an asker whose job a worker has
    worker = connected(context, zmq.REP, asked_broker.doors["rep"])
    asker = connected(context, zmq.REQ, asked_broker.doors["req"])
    asker.send(b"question")
    assert worker.recv() == b"question"
    # When the broker is told to stop, and the worker answers then
    asked_broker.send_signal(signal.SIGTERM)
    asked_broker.wait_log("waiting for 1 running jobs")
    worker.send(b"answer")
    # Then the asker gets it, and the broker ends well
    assert asker.recv() == b"answer"
    assert asked_broker.process.wait(60) == 0


def test_who_waits_for_a_job_that_nobody_has_is_told_to_ask_again(
    asked_broker: BrokerProcess, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    # Given an asker and no worker
    asker = connected(context, zmq.DEALER, asked_broker.doors["req"])
    asker.send_multipart([b"7", b"", b"", b'{"id": "again"}', b"question"])
    with Client(endpoint=asked_broker.doors["smq"]) as client:
        wait_until(lambda: client.counters().counters.get("pushed"), what="the job's being stored")
    # When the broker stops
    assert asked_broker.terminate() == 0
    # Then it is told so, in its own envelope
    number, empty, error, text = asker.recv_multipart()
    assert (number, empty, error) == (b"7", b"", b"ERROR")
    assert b"UNAVAILABLE" in text
    # And asking again after the restart waits for the same job
    asked_broker.restart()
    again = connected(context, zmq.REQ, asked_broker.doors["req"])
    again.send_multipart([b"", b'{"id": "again"}', b"question"])
    worker = connected(context, zmq.REP, asked_broker.doors["rep"])
    assert worker.recv() == b"question"
    worker.send(b"answer")
    assert again.recv() == b"answer"


STREAM = "orders"
_STORED = (f"stream.{STREAM}", "queue.mail")
SETTINGS = {"broker": {"poll": 0.5}}


@pytest.mark.full
def test_what_a_pub_socket_gave_the_kernel_is_stored_by_a_stop(mongo_uri: str, database: str) -> None:
    count = 20_000
    ends = {"frontend": tcp(), "backend": tcp()}
    device = {"kind": "forwarder", "stream": STREAM, "hwm": 200, **ends}  # read as it is stored
    with BrokerProcess(mongo_uri, database, config={**SETTINGS, "devices": [device]}) as broker:
        with shake_hands(broker.doors["pub"], b"PUB") as pub:
            pub.sendall(b"".join(b"\x01\x01a\x00\x08%08d" % number for number in range(count)))
            assert broker.terminate() == 0  # it is in the buffers of both ends by now, most of it unread
        broker.restart()
        found = all_of(broker)
    assert [job.payload for job in found] == [b"%08d" % number for number in range(count)]


def frames(device: str, number: int) -> bytes:
    """As PUB and PUSH sockets send them, 16 KiB of zeros behind the number."""
    body = b"%08d" % number + bytes(1 << 14)
    return (b"\x01\x01a" if device == "forwarder" else b"") + b"\x02" + len(body).to_bytes(8) + body


@pytest.mark.full
@pytest.mark.parametrize(
    ("device", "door", "kind"), [("forwarder", "pub", b"PUB"), ("streamer", "push", b"PUSH")]
)
def test_a_stopping_broker_reads_on_when_a_slow_mongodb_has_stored_what_held_its_doors_back(
    mongo_uri: str, database: str, device: str, door: str, kind: bytes
) -> None:
    # Given doors that take in a few messages, and a MongoDB that takes longer than a broker looks for more
    count = 40
    of_kind = {"stream": STREAM, "backend": tcp()} if device == "forwarder" else {"queue": "mail"}
    ends = {"kind": device, "hwm": 4, "frontend": tcp(), **of_kind}
    with CuttingProxy(mongo_uri) as proxy:
        slow = proxy.slow(lambda command: command.name == "insert" and command.collection in _STORED, 0.3)
        with BrokerProcess(proxy.uri, database, config={**SETTINGS, "devices": [ends]}) as broker:
            # When it stops while most lies in the buffers of the sockets
            with shake_hands(broker.doors[door], kind) as producer:
                producer.sendall(b"".join(frames(device, number) for number in range(count)))
                assert broker.terminate() == 0
            slow.stop()
            broker.restart()
            if device == "forwarder":
                found = [job.payload[:8] for job in all_of(broker)]
            else:
                with Client(endpoint=broker.doors["smq"]) as client:
                    found = [row["payload"][:8] for row in client.peek("mail", "ready", count)]
    assert found == [b"%08d" % number for number in range(count)]


@pytest.mark.full
def test_a_stopping_broker_reads_on_when_others_leave_memory(mongo_uri: str, database: str) -> None:
    # Given a job of the library that takes all memory for what is not stored, for longer than a look
    count, size, stored = 5, 200_000, threading.Event()
    ends = {"kind": "streamer", "queue": "mail", "frontend": tcp()}
    config = {"broker": {**SETTINGS["broker"], "hwm_bytes": 1 << 20}, "devices": [ends]}
    with CuttingProxy(mongo_uri) as proxy, BrokerProcess(proxy.uri, database, config=config) as broker:
        with (
            Producer(endpoint=broker.doors["smq"]) as library,
            Client(endpoint=broker.doors["smq"]) as client,
        ):
            library.push("large", b"first").wait(TIMEOUT)
            proxy.before(_is_large, lambda: stored.wait(TIMEOUT))
            library.push("large", bytes(2 << 20))
            wait_until(lambda: client.counters()["broker"]["storing"], what="the large job on its way")
            # When it stops while most of what a PUSH socket has sent lies in buffers
            with shake_hands(broker.doors["push"], b"PUSH") as producer:
                bodies = [b"%08d" % number + bytes(size) for number in range(count)]
                sent = b"".join(b"\x02" + len(body).to_bytes(8) + body for body in bodies)
                producer.sendall(sent[: size // 2])
                wait_until(lambda: client.counters().counters.get("large_messages_waited"), what="no room")
                producer.sendall(sent[size // 2 :])
                broker.send_signal(signal.SIGTERM)
                wait_until(lambda: "stopping" in broker.log_text(), what="its stop")
                threading.Event().wait(2)  # longer than it looks for more, and than a door takes to close
                stored.set()
                assert broker.terminate() == 0
        broker.restart()
        with Client(endpoint=broker.doors["smq"]) as client:
            found = [row["payload"][:8] for row in client.peek("mail", "ready", count)]
    assert found == [b"%08d" % number for number in range(count)]


def _is_large(command: Command) -> bool:
    return command.name == "insert" and command.collection == "queue.large"


def all_of(broker: BrokerProcess) -> list[Message]:
    with Reader(STREAM, endpoint=broker.doors["smq"]) as reader:
        return list(reader)
