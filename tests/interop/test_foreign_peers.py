"""Real peers of other makes and ages at every door, idle and at work for longer than the silence time."""

import os
import platform
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from devices.keyed_sockets import CLIENT, SERVER
from sluicemq import Client
from sluicemq.protocol.keys import encode, write_key_file
from support.broker_process import BrokerProcess
from support.broker_under_test import ANY_PORT
from support.ports import free_port
from support.raw_sockets import GREETING, dial, hung_up, shake_hands
from support.waiting import wait_until

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full

HERE = Path(__file__).parent
VENV = HERE.parents[1] / ".venv-test"
ENVIRONMENT = {"NODE_PATH": str(VENV / "node" / "node_modules"), **os.environ}
#: libzmq 4.1 speaks ZMTP 3.0: a PING is a message to it. `deploy/test` takes it from an old wheel of pyzmq.
OLD_LIBZMQ = VENV / "libzmq-4.1"
JEROMQ = "/usr/share/java/jeromq.jar"

BEATS = 14  # the silence and two fifths more
LANGUAGES = [
    "C",
    "Node",
    pytest.param(
        "C, libzmq 4.1",
        marks=pytest.mark.skipif(platform.machine() != "x86_64", reason="its wheels are for x86-64 only"),
    ),
]

Start = Callable[..., "subprocess.Popen[str]"]


class AnsweringPeer:
    """A peer of ZMTP 3.1 at a door of its own: it answers the broker's PINGs and counts them."""

    def __init__(self, address: str) -> None:
        self._socket = shake_hands(address, b"REP")
        self._socket.settimeout(None)
        self._pings = 0
        threading.Thread(target=self._answer, daemon=True).start()

    def wait(self) -> None:
        """Wait until the broker has asked for many signs of life."""
        before = self._pings
        wait_until(lambda: self._pings >= before + BEATS, what="many heartbeats")

    def _answer(self) -> None:
        heard = b""
        while data := self._socket.recv(4096):
            heard += data
            count = heard.count(b"\x04PING\0\0")
            heard = heard[9 * count :]
            self._pings += count
            self._socket.sendall(b"\x04\x05\x04PONG" * count)


@pytest.fixture(scope="module", params=["NULL", "CURVE"])
def mechanism(request: pytest.FixtureRequest) -> str:
    """The mechanism of all doors but the library's, and those of the queue "watched"."""
    return str(request.param)


@pytest.fixture(scope="module")
def environment(mechanism: str) -> dict[str, str]:
    keys = {"SERVER": SERVER.public, "PUBLIC": CLIENT.public, "SECRET": CLIENT.secret}
    ours = {f"CURVE_{name}_KEY": encode(key) for name, key in keys.items()} if mechanism == "CURVE" else {}
    return {**ENVIRONMENT, **ours}


@pytest.fixture(scope="module")
def broker(
    mongo_uri: str, mechanism: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    key_file = tmp_path_factory.mktemp("keys") / "broker.key"
    write_key_file(key_file, SERVER)
    ends = {"frontend": ANY_PORT, "backend": ANY_PORT, "mechanism": [mechanism.lower()]}
    devices = [
        {"kind": "streamer", "queue": "received", **ends},
        {"kind": "streamer", "queue": "committed", "ack": "explicit", "commit": ANY_PORT, **ends},
        {"kind": "queue", "queue": "asked", **ends},
        {"kind": "queue", "queue": "watched", **ends, "mechanism": ["null"]},
        {"kind": "forwarder", **ends},
    ]
    anything = {"push": "*", "work": "*", "read": "*", "publish": "*", "subscribe": "*", "create": "*"}
    principals = {"programs": {"keys": [encode(CLIENT.public)], "permissions": anything}}
    config = {
        "broker": {"heartbeat": 0.25, "silence": 2.5},
        "devices": devices,
        "security": {"secret_key_file": str(key_file), "principals": principals},
    }
    with BrokerProcess(mongo_uri, f"foreign-{free_port()}", config=config) as process:
        yield process


@pytest.fixture(scope="module")
def beating_peer(broker: BrokerProcess) -> AnsweringPeer:
    return AnsweringPeer(door(broker, "watched", "backend"))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    built = str(tmp_path_factory.mktemp("interop") / "plain")
    subprocess.run(["gcc", "-O2", "-Wall", "-Werror", HERE / "plain.c", "-o", built, "-lzmq"], check=True)
    return {
        "C": [built],
        "C, libzmq 4.1": ["env", f"LD_LIBRARY_PATH={OLD_LIBZMQ}", built],
        "Node": ["node", str(HERE / "plain.js")],
        "Java": ["java", "-cp", JEROMQ, str(HERE / "Plain.java")],
    }


@pytest.fixture
def start(programs: dict[str, list[str]], environment: dict[str, str]) -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def begin(language: str, *arguments: str) -> subprocess.Popen[str]:
        running.append(
            subprocess.Popen(
                [*programs[language], *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
        )
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def door(broker: BrokerProcess, queue: str, end: str) -> str:
    """The address of this end of the device with this queue."""
    return str(next(device[end][0] for device in broker.devices if device["queue"] == queue))


def line(process: Any) -> str:
    text: str = process.stdout.readline()
    return text.rstrip("\n")


def tell(process: Any) -> None:
    process.stdin.write("go on\n")
    process.stdin.flush()


def cut(broker: BrokerProcess) -> int:
    """Connections that the broker has cut so far."""
    with Client(endpoint=broker.doors["smq"]) as client:
        return int(client.counters()["counters"].get("connections_cut", 0))


def version(language: str, programs: dict[str, list[str]]) -> str:
    """What the dynamic linker takes for libzmq."""
    ldd = [*programs[language][:-1], "ldd", programs[language][-1]]
    return subprocess.run(ldd, check=True, capture_output=True, text=True).stdout


def test_the_old_libzmq_is_the_one_that_is_meant(programs: dict[str, list[str]]) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("its wheels are for x86-64 only")
    assert f"{OLD_LIBZMQ}/libzmq.so.5" in version("C, libzmq 4.1", programs)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_rep_worker_has_its_job_once_however_long_it_takes(
    broker: BrokerProcess, beating_peer: AnsweringPeer, start: Start, language: str
) -> None:
    before = cut(broker)
    worker = start(language, "answer", door(broker, "asked", "backend"), "told")
    asker = start(language, "ask", door(broker, "asked", "frontend"), "one", "two")
    for question in ("one", "two"):
        assert line(worker) == question  # and it has not come again
        beating_peer.wait()
        tell(worker)
        assert line(asker) == f"{language.partition(',')[0]}:{question}"
    assert cut(broker) == before


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_pull_worker_that_commits_gets_jobs_and_nothing_else_however_long_they_take(
    broker: BrokerProcess, beating_peer: AnsweringPeer, start: Start, language: str
) -> None:
    before = cut(broker)
    ends = [door(broker, "committed", end) for end in ("backend", "commit")]
    worker = start(language, "work", *ends)
    beating_peer.wait()  # a PING that it took for a job would come first
    assert start(language, "push", door(broker, "committed", "frontend"), "one", "two").wait(60) == 0
    for job in ("one", "two"):
        assert line(worker) == job
        beating_peer.wait()
        tell(worker)
    with Client(endpoint=broker.doors["smq"]) as client:
        wait_until(lambda: not client.peek("committed", "reserved"), what="both commits")
    assert cut(broker) == before


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_pull_worker_that_is_idle_for_long_gets_what_comes_then(
    broker: BrokerProcess, beating_peer: AnsweringPeer, start: Start, language: str
) -> None:
    before = cut(broker)
    with Client(endpoint=broker.doors["smq"]) as client:  # the worker of the test before is gone
        wait_until(
            lambda: not any(queue["workers"] for queue in client.queues() if queue["name"] == "received")
        )
    worker = start(language, "pull", door(broker, "received", "backend"))
    beating_peer.wait()
    assert start(language, "push", door(broker, "received", "frontend"), "one", "two").wait(60) == 0
    assert [line(worker), line(worker)] == ["one", "two"]  # and no PING
    with Client(endpoint=broker.doors["smq"]) as client:  # as its PONG, or its kernel, has said
        wait_until(lambda: not client.peek("received", "reserved"), what="both commits")
        assert client.peek("received", "ready") == []
    assert cut(broker) == before


@pytest.mark.parametrize("language", LANGUAGES)
def test_publishers_and_subscribers_meet(
    broker: BrokerProcess, beating_peer: AnsweringPeer, start: Start, language: str
) -> None:
    before = cut(broker)
    start(language, "publish", broker.doors["pub"], f"{language} news")
    beating_peer.wait()
    assert line(start(language, "subscribe", broker.doors["sub"], language)) == f"{language} news"
    assert cut(broker) == before


@pytest.mark.parametrize("other", ["PLAIN", "CURVE"])
def test_clients_with_another_mechanism_are_counted_and_named(broker: BrokerProcess, other: str) -> None:
    before = cut(broker)
    context = zmq.Context()
    client = context.socket(zmq.REQ)
    if other == "PLAIN":
        client.plain_username, client.plain_password = b"me", b"secret"
    else:
        client.curve_publickey, client.curve_secretkey = zmq.curve_keypair()
        client.curve_serverkey, _ = zmq.curve_keypair()
    client.connect(door(broker, "watched", "frontend"))
    wait_until(lambda: cut(broker) > before)
    context.destroy(0)
    broker.wait_log("and only NULL is spoken here")


def test_an_older_zmtp_is_counted_and_named(broker: BrokerProcess) -> None:
    """As JeroMQ 0.3.6 and libzmq 3.2 greet: the version when they have read ours, and a frame of ZMTP 2."""
    before = cut(broker)
    with dial(broker.doors["push"]) as stranger:
        stranger.sendall(b"\xff" + bytes(7) + b"\x01\x7f")
        assert stranger.recv(12, 0x100) == GREETING[:12]  # MSG_WAITALL
        stranger.sendall(b"\x01\x08\0\0")
        assert hung_up(stranger)
    wait_until(lambda: cut(broker) > before)


@pytest.mark.full
def test_jeromq_0_3_6_is_counted_and_named(broker: BrokerProcess, start: Start) -> None:
    before = cut(broker)
    start("Java", broker.doors["push"])
    wait_until(lambda: cut(broker) > before)
    broker.wait_log("an older one: its ZeroMQ is from before 2013")
