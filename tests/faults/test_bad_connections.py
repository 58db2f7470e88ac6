"""Strangers, liars and crowds at the doors: cut or turned away, counted, while everybody else is served."""

from __future__ import annotations

import math
import os
import random
import re
import resource
import signal
import socket as sockets
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
import zmq

from sluicemq import Client
from support.broker_process import BrokerProcess
from support.broker_under_test import ANY_PORT, BrokerUnderTest, serving, spare
from support.raw_sockets import GREETING, dial, hung_up, receive, shake_hands
from support.waiting import wait_until

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

LIMIT = 64 * 1024

FORWARDER = {"kind": "forwarder", "frontend": ANY_PORT, "backend": ANY_PORT}
DOORS = ("smq", "push", "pull", "commit", "req", "rep", "pub", "sub")
#: What may connect there.
KINDS = {"smq": b"DEALER", "push": b"PUSH", "commit": b"PUSH", "req": b"REQ", "rep": b"REP", "pub": b"PUB"}


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, [*spare(pop=1, ack=1, ask=1), FORWARDER], max_job_bytes=LIMIT) as broker:
        yield broker


@pytest.fixture(scope="module", autouse=True)
def never_finished(shared: BrokerUnderTest) -> Iterator[list[sockets.socket]]:
    """Connections that stop within their greeting: opened first, for they have ten seconds."""
    strangers = [dial(shared.doors[door]) for door in DOORS for _ in range(3)]
    for stranger, greeted in zip(strangers, (0, 1, 10) * len(DOORS), strict=True):
        stranger.sendall(GREETING[:greeted])
    yield strangers
    for stranger in strangers:
        stranger.close()


@pytest.fixture
def broker(shared: BrokerUnderTest) -> Iterator[BrokerUnderTest]:
    """Whatever a stranger does, the broker serves afterwards and none of its code has failed."""
    yield shared
    shared.close_sockets()
    assert shared.serves()
    assert "Traceback" not in shared.process.log_text()


def lines(broker: BrokerUnderTest, kind: str) -> int:
    """How many lines of the broker's log are about this kind of mistake."""
    return len(re.findall(rf"WARNING broker: {kind}: ", broker.process.log_text()))


def noise(length: int) -> bytes:
    return random.Random(length).randbytes(length)


# -------------------------------------------------------------------- garbage


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise(200),  # TLS
        b"\x01\x00" + b"\x06\x00hello" * 20,  # ZMTP 1.0: no greeting, messages at once
        b"\xff" + bytes(8) + b"\x7f\x00\x04" + noise(100),  # ZMTP 1.0 as libzmq greets it
        GREETING[:12] + b"CURVE" + GREETING[17:],
        GREETING + noise(500),
        noise(5000),
    ],
    ids=["HTTP", "TLS", "ZMTP 1.0", "ZMTP 1.0 greeted", "CURVE", "noise after the greeting", "noise"],
)
def test_garbage_is_cut_and_counted_and_is_no_job(broker: BrokerUnderTest, door: str, garbage: bytes) -> None:
    cut, received = broker.counter("connections_cut"), broker.counter("received")
    with dial(broker.doors[door]) as stranger:
        stranger.sendall(garbage)
        assert hung_up(stranger)
    wait_until(lambda: broker.counter("connections_cut") > cut)
    assert broker.counter("received") == received


def test_much_garbage_from_many_is_one_line_a_second(broker: BrokerUnderTest) -> None:
    cut, logged, began = broker.counter("connections_cut"), lines(broker, "connections_cut"), time.monotonic()
    for number in range(200):
        with dial(broker.doors[DOORS[number % len(DOORS)]]) as stranger:
            stranger.sendall(b"\0" + noise(300 + number))
    wait_until(lambda: broker.counter("connections_cut") >= cut + 200)
    assert lines(broker, "connections_cut") - logged <= 2 + time.monotonic() - began
    assert re.search(
        r"connections_cut: tcp://127.0.0.1:\d+ at tcp://.*does not speak ZMTP", broker.process.log_text()
    )


@pytest.mark.parametrize(
    ("door", "kind"), [("push", b"PULL"), ("req", b"PUB"), ("rep", b"PUSH"), ("smq", b"SUB")]
)
def test_a_socket_of_a_wrong_kind_is_cut_and_counted(broker: BrokerUnderTest, door: str, kind: bytes) -> None:
    cut = broker.counter("connections_cut")
    with dial(broker.doors[door]) as stranger:
        body = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
        stranger.sendall(GREETING + b"\x04" + bytes([len(body)]) + body)
        assert hung_up(stranger)
    wait_until(lambda: broker.counter("connections_cut") > cut)


# --------------------------------------------------------------------- frames


@pytest.mark.parametrize("door", KINDS)
@pytest.mark.parametrize("length", [2**63 - 1, 2**64 - 1, 2**40, 64 * 2**20 + 1])
def test_a_huge_frame_length_is_cut_and_counted(broker: BrokerUnderTest, door: str, length: int) -> None:
    cut = broker.counter("connections_cut")
    with shake_hands(broker.doors[door], KINDS[door]) as stranger:
        stranger.sendall(b"\x02" + length.to_bytes(8, "big") + b"x" * 100)
        assert hung_up(stranger)
    wait_until(lambda: broker.counter("connections_cut") > cut)


def test_a_frame_over_twice_the_limit_cuts_only_its_own_connection(broker: BrokerUnderTest) -> None:
    cut = broker.counter("connections_cut")
    doors = broker.doors
    worker, honest = broker.socket(zmq.PULL, doors["pull"]), broker.socket(zmq.PUSH, doors["push"])
    honest.send(b"before")
    assert receive(worker) == [b"before"]
    with shake_hands(doors["push"], b"PUSH") as stranger:
        stranger.sendall(b"\x02" + (2 * LIMIT + 1).to_bytes(8, "big") + bytes(2 * LIMIT + 1))
        assert hung_up(stranger)
    honest.send(b"after")
    assert receive(worker) == [b"after"]
    wait_until(lambda: broker.counter("connections_cut") > cut)


def test_a_client_that_leaves_within_a_message_has_sent_none(broker: BrokerUnderTest) -> None:
    received = broker.counter("received")
    for door, kind in (("push", b"PUSH"), ("req", b"REQ")):
        with shake_hands(broker.doors[door], kind) as stranger:
            stranger.sendall(b"\x01\x05queue" + b"\x02" + (1000).to_bytes(8, "big") + b"half")
    assert broker.serves()
    assert broker.counter("received") == received + 1  # the job of the line above


def test_an_unknown_zmtp_command_does_no_harm(broker: BrokerUnderTest) -> None:
    for door, kind in KINDS.items():
        with shake_hands(broker.doors[door], kind) as stranger:
            stranger.sendall(b"\x04\x06\x05WHAT?")
            stranger.sendall(b"\x06" + (2**40).to_bytes(8, "big") + b"\x05WHAT?")
            assert hung_up(stranger)


# --------------------------------------------------------------------- crowds


@pytest.mark.full
def test_two_thousand_idle_connections_cost_nobody_the_service(broker: BrokerUnderTest) -> None:
    _allow_files(4096)
    doors = broker.doors
    crowd = []
    try:
        for number in range(2000):
            door = DOORS[number % len(DOORS)]
            finished = number % 4 == 0 and door in KINDS
            crowd.append(shake_hands(doors[door], KINDS[door]) if finished else dial(doors[door]))

        for _ in range(20):
            assert broker.serves()
        broker.admin.ping()
    finally:
        for peer in crowd:
            peer.close()
    assert broker.is_running


def test_at_its_limit_of_connections_the_broker_turns_others_away(mongo_uri: str) -> None:
    files = {resource.RLIMIT_NOFILE: 304}  # of which 256 are kept: for 48 connections
    with serving(mongo_uri, spare(ask=1), process={"rlimits": files}) as broker:
        address = broker.take("ask").front
        assert broker.serves()  # so these clients, and that of the counters, have their connections
        assert broker.counter("pushed") == 1
        began = time.monotonic()
        crowd = [dial(address) for _ in range(120)]
        wait_until(lambda: broker.counter("connections_refused") >= 120 - 48)

        assert lines(broker, "connections_refused") <= 2 + time.monotonic() - began
        assert re.search("connections_refused: .* connections are open of 48", broker.process.log_text())
        with Client(endpoint=broker.doors["smq"]) as administrator:  # for whom connections are kept
            administrator.ping()
        assert broker.serves()
        assert _files(broker) < 240

        for peer in crowd:
            peer.close()
        newcomer = broker.socket(zmq.REQ, address)
        newcomer.send_multipart([b"", b'{"reply": "accepted"}', b"work"])
        assert receive(newcomer)
        assert "Traceback" not in broker.process.log_text()


def _allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(count, hard)), hard))


# ---------------------------------------------------------------------- stall


@pytest.mark.full
def test_a_producer_with_fast_heartbeats_survives_a_stalled_store_and_so_does_the_broker() -> None:
    devices = [{"kind": "streamer", "frontend": ANY_PORT, "hwm": 500}]
    with BrokerProcess(config={"devices": devices}) as broker, Client(endpoint=broker.doors["smq"]) as admin:
        context = zmq.Context()
        producers = [_beating(context, broker.doors["push"]) for _ in range(3)]
        for producer in producers:
            producer.send(b"x" * 200)
        wait_until(lambda: admin.counters().counters.get("received") == 3)

        os.kill(broker.mongod_pid, signal.SIGSTOP)
        try:
            sent = _flood(producers, lambda: "gates_closed" in admin.counters().counters, blocked=3.0)
        finally:
            os.kill(broker.mongod_pid, signal.SIGCONT)

        assert sent > 500
        assert broker.process.poll() is None
        wait_until(lambda: admin.counters().counters.get("pushed", 0) > 500)
        assert admin.counters().counters["gates_closed"] >= 1
        before = admin.counters().counters["pushed"]
        for producer in producers:
            assert producer.poll(60_000, zmq.POLLOUT)
            producer.send(b"and on it goes")
        wait_until(lambda: admin.counters().counters["pushed"] > before)
        context.destroy(0)
        assert "Traceback" not in broker.log_text()


def _beating(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    producer = context.socket(zmq.PUSH)
    producer.heartbeat_ivl = 100
    producer.heartbeat_timeout = 1000
    producer.connect(address)
    return producer


def _flood(producers: list[zmq.Socket[bytes]], unread: Callable[[], bool], blocked: float) -> int:
    """Send until they are ``unread`` and take no more, and for so many seconds after: they only beat then."""
    poller = zmq.Poller()
    for producer in producers:
        poller.register(producer, zmq.POLLOUT)
    sent = 0
    until = math.inf
    while time.monotonic() < until:
        ready = poller.poll(500)
        for producer, _ in ready:
            producer.send(b"x" * 200)
            sent += 1
        if not ready and until == math.inf and unread():
            until = time.monotonic() + blocked
    return sent


# -------------------------------------------------------------- half greetings


def test_an_unfinished_greeting_is_cut(broker: BrokerUnderTest, never_finished: list[sockets.socket]) -> None:
    for stranger in never_finished:
        assert hung_up(stranger)
    wait_until(lambda: broker.counter("connections_cut") >= len(never_finished))


@pytest.mark.full
def test_two_thousand_who_never_greet_are_all_cut_and_logged_in_a_few_lines(mongo_uri: str) -> None:
    _allow_files(4096)
    with serving(mongo_uri, [*spare(pop=1, ack=1, ask=1), FORWARDER]) as broker:
        crowd = [dial(broker.doors[DOORS[number % len(DOORS)]]) for number in range(2000)]
        memory = _memory(broker)
        for peer in crowd:
            assert hung_up(peer)
            peer.close()
        wait_until(lambda: broker.counter("connections_cut") == 2000)
        assert lines(broker, "connections_cut") < len(crowd) / 10
        assert "it sent nothing in the time for a handshake" in broker.process.log_text()
        assert memory < 400 * 2**20
        wait_until(lambda: _files(broker) < 200)
        assert broker.serves()


def _files(broker: BrokerUnderTest) -> int:
    return int(psutil.Process(broker.process.pid).num_fds())


def _memory(broker: BrokerUnderTest) -> int:
    return int(psutil.Process(broker.process.pid).memory_info().rss)
