"""Floods of strangers at a broker with keys: honest clients get in and work, and nothing of a flood stays."""

import http.client
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from secrets import token_hex
from typing import Any

import psutil
import pytest
import zmq

from sluicemq import Client, Job, Producer, Worker
from sluicemq.protocol import wire
from support.broker_process import BrokerProcess
from support.floods import FLOODS, PASSWORD, PROCESSES, Target, serving
from support.raw_sockets import Smq
from support.waiting import TIMEOUT, wait_until

#: Takes many connections and seconds each: by default test_bounds and the unit tests of rates see the rule.
pytestmark = pytest.mark.full

MOST = 300  # unfinished handshakes
FEW = 40  # files that a broker may open beside connections
MIB = 1 << 20


class Flooded:
    """A broker, and an honest client that is there before every flood."""

    def __init__(self, process: BrokerProcess, target: Target, access: dict[str, Any], admin: Client) -> None:
        self.process = process
        self.target = target
        self.access = access
        self._admin = admin
        self._measured = psutil.Process(process.pid)
        self._queues = count()

    def counter(self, name: str) -> int:
        return int(self._admin.counters()["counters"].get(name, 0))

    def gauge(self, name: str) -> int:
        return int(self._admin.counters()["broker"][name])

    @property
    def files(self) -> int:
        return self._measured.num_fds()

    @property
    def memory(self) -> int:
        return int(self._measured.memory_info().rss)

    def works(self) -> bool:
        """A new client with a key gets in, and its jobs are worked on."""
        done: list[str] = []
        queue, door = f"honest{next(self._queues)}", self.process.doors["smq"]

        def work(job: Job) -> None:
            done.append(job.id)

        with (
            Worker(queue, work, **self.access, endpoint=door),
            Producer(**self.access, endpoint=door) as producer,
        ):
            pushed = [producer.push(queue, b"x") for _ in range(20)]
            for receipt in pushed:
                receipt.wait(TIMEOUT)
            wait_until(lambda: len(done) == 20, what="the end of all jobs")
        return True


@pytest.fixture(scope="module")
def flooded(mongo_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flooded]:
    folder = tmp_path_factory.mktemp("keys")
    database = f"flooded_{token_hex(4)}"
    with (
        serving(folder, mongo_uri, database, max_handshakes=MOST) as (process, target, access),
        Client(**access, endpoint=process.doors["smq"]) as admin,
    ):
        yield Flooded(process, target, access, admin)


@contextmanager
def flood(flooded: Flooded, name: str) -> Iterator[None]:
    """Flood the broker; afterwards nothing of it is left there."""
    before, files = flooded.gauge("connections"), flooded.files
    until = threading.Event()
    threads = [threading.Thread(target=FLOODS[name], args=(flooded.target, until)) for _ in range(PROCESSES)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        until.set()
        for thread in threads:
            thread.join()
    wait_until(lambda: flooded.gauge("connections") == before, what="the end of all connections of the flood")
    more = 64  # on a busy machine the driver has more connections to MongoDB than before
    wait_until(lambda: flooded.files <= files + more, what="the end of all files of the flood")
    assert flooded.gauge("handshakes") == 0
    assert flooded.works()
    assert "Traceback" not in flooded.process.log_text()


@pytest.mark.parametrize("name", [flood_name for flood_name in FLOODS if flood_name.startswith("2000")])
def test_two_thousand_half_handshakes_make_room_for_honest_clients(flooded: Flooded, name: str) -> None:
    ended, files, memory = flooded.counter("handshakes_ended"), flooded.files, flooded.memory
    with flood(flooded, name):
        wait_until(lambda: flooded.counter("handshakes_ended") - ended > 2000 - MOST, what="too many")
        # Then the broker has a part of them, and an honest client of their address gets in
        assert flooded.gauge("handshakes") <= MOST
        assert flooded.files <= files + MOST + FEW
        assert flooded.works()
        assert flooded.memory - memory < 64 * MIB


def test_a_flood_of_bad_keys_is_counted_and_keeps_nobody_out(flooded: Flooded) -> None:
    refused, memory, lines = flooded.counter("handshakes_refused"), flooded.memory, _lines(flooded)
    with flood(flooded, "bad keys"):
        wait_until(lambda: flooded.counter("handshakes_refused") - refused > 200, what="bad keys")
        assert flooded.works()
        assert flooded.memory - memory < 64 * MIB
    # And the log has not a line for each
    assert 4 * (_lines(flooded) - lines) < flooded.counter("handshakes_refused") - refused


def test_a_flood_of_bad_passwords_delays_no_key_and_ends_with_the_right_one(flooded: Flooded) -> None:
    refused, memory = flooded.counter("handshakes_refused"), flooded.memory
    with flood(flooded, "bad passwords"):
        wait_until(lambda: flooded.counter("handshakes_refused") - refused > 100, what="bad passwords")
        assert flooded.works()
        # Two are checked at once, each in 64 MiB
        assert flooded.memory - memory < (2 * 64 + 64) * MIB
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.linger = 0
        plain.plain_username, plain.plain_password = b"admin", PASSWORD.encode()
        plain.connect(flooded.process.doors["smq"])
        assert Smq(plain).ask(wire.PING).verb == wire.OK


def test_slow_tls_makes_room_for_honest_requests(flooded: Flooded) -> None:
    cut, memory = flooded.counter("http_connections_cut"), flooded.memory
    with flood(flooded, "slow TLS"):
        wait_until(lambda: flooded.counter("http_connections_cut") - cut > 500, what="too many")
        for _ in range(5):
            assert _health(flooded.process.http) == 200
        assert flooded.works()
        assert flooded.memory - memory < 64 * MIB


def test_those_who_connect_and_leave_keep_nobody_out(flooded: Flooded) -> None:
    failed = flooded.counter("handshakes_failed")
    with flood(flooded, "connect and leave"):
        wait_until(lambda: flooded.counter("handshakes_failed") - failed > 1000, what="many that leave")
        assert flooded.works()


def _lines(flooded: Flooded) -> int:
    return flooded.process.log_text().count("WARNING broker: handshakes_refused: ")


def _health(address: str) -> int:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(address, timeout=TIMEOUT, context=context)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    finally:
        connection.close()
