"""Programs that know nothing of SluiceMQ, in C, Node and Python, unchanged but for the endpoint."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluicemq import Client, Producer, Publisher
from support.broker_process import BrokerProcess
from support.keyed_broker import KeyedBroker, keyed_broker, new_key
from support.ports import free_port, tcp
from support.waiting import TIMEOUT, wait_until

HERE = Path(__file__).parent
CLIENTS = HERE.parents[1] / "clients"
NODE_PATH = HERE.parents[1] / ".venv-test" / "node" / "node_modules"
ENVIRONMENT = {"NODE_PATH": str(NODE_PATH), **os.environ}

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(mongo_uri, f"interop-{free_port()}", config=devices()) as process:
        yield process


def devices(pulled: str = "pulled", asked: str = "asked") -> dict[str, Any]:
    """The devices of a broker, on free ports; ``pulled`` and ``asked``: their queues."""
    explicit = {"kind": "streamer", "queue": pulled, "frontend": tcp(), "backend": tcp()}
    queue = {"kind": "queue", "queue": asked, "frontend": tcp(), "backend": tcp()}
    forwarder = {"kind": "forwarder", "frontend": tcp(), "backend": tcp()}
    kept = {**forwarder, "stream": "prices", "envelope": "full"}
    kept |= {"frontend": tcp(), "backend": tcp(), "replay": tcp()}
    return {"devices": [explicit, queue, forwarder, kept]}


@pytest.fixture(scope="module")
def keyed(mongo_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedBroker]:
    folder = tmp_path_factory.mktemp("keys")
    with keyed_broker(
        mongo_uri, f"interop-keyed-{free_port()}", folder, devices("default", "default")
    ) as keyed:
        yield keyed


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("interop")
    built = folder / "plain"
    subprocess.run(
        ["gcc", "-O2", "-Wall", "-Werror", str(HERE / "plain.c"), "-o", str(built), "-lzmq"], check=True
    )
    for name in ("producer", "worker", "replay"):
        source, target = CLIENTS / "c" / f"{name}.c", folder / name
        subprocess.run(
            ["gcc", "-O2", "-Wall", "-Werror", str(source), "-o", str(target), "-lzmq"], check=True
        )
    return {
        "C": [str(built)],
        "Node": ["node", str(HERE / "plain.js")],
        "Python": [sys.executable, "-u", str(HERE / "plain.py")],
        "C producer": [str(folder / "producer")],
        "C worker": [str(folder / "worker")],
        "C replay": [str(folder / "replay")],
        "Node producer": ["node", str(CLIENTS / "node" / "producer.js")],
        "Node worker": ["node", str(CLIENTS / "node" / "worker.js")],
    }


@pytest.fixture
def start(programs: dict[str, list[str]]) -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def begin(language: str, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
        command = [*programs[language], *arguments]
        environment = ENVIRONMENT | variables
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def line(process: Any) -> str:
    text: str = process.stdout.readline()
    return text.rstrip("\n")


@pytest.mark.parametrize(
    ("asker", "worker"), [("C", "Node"), ("Node", "Python"), ("Python", "C"), ("C", "C"), ("Node", "Node")]
)
def test_a_req_program_is_answered(broker: BrokerProcess, start: Start, asker: str, worker: str) -> None:
    # Given a textbook REP server that connects instead of binding
    start(worker, "answer", broker.doors["rep"])
    # When a textbook REQ client asks three times
    asking = start(asker, "ask", broker.doors["req"], "one", "two", "three")
    # Then each question has its answer, in order
    assert [line(asking) for _ in range(3)] == [f"{worker}:one", f"{worker}:two", f"{worker}:three"]
    assert asking.wait(60) == 0


@pytest.mark.parametrize(("producer", "worker"), [("C", "Node"), ("Node", "Python"), ("Python", "C")])
def test_what_a_push_program_sends_reaches_a_pull_program_though_the_two_never_meet(
    broker: BrokerProcess, start: Start, producer: str, worker: str
) -> None:
    nobody_pulls(broker)
    # Given a producer that has sent and gone
    assert start(producer, "push", broker.doors["push"], "one", "two", "three").wait(60) == 0
    # When a worker comes
    pulling = start(worker, "pull", broker.doors["pull"])
    # Then it gets everything, in order
    assert [line(pulling) for _ in range(3)] == ["one", "two", "three"]


def nobody_pulls(broker: BrokerProcess) -> None:
    """Wait until the worker of the test before is gone, which would take jobs with it, at most once."""
    with Client(endpoint=broker.doors["smq"]) as client:
        wait_until(lambda: not any(queue.workers for queue in client.queues.list() if queue.name == "pulled"))


@pytest.mark.parametrize(("publisher", "subscriber"), [("C", "Node"), ("Node", "Python"), ("Python", "C")])
def test_what_a_pub_program_publishes_reaches_a_sub_program_by_topic(
    broker: BrokerProcess, start: Start, publisher: str, subscriber: str
) -> None:
    # Given publishers on two topics
    start(publisher, "publish", broker.doors["pub"], "other 1")
    start(publisher, "publish", broker.doors["pub"], f"{subscriber} 2")
    # When somebody subscribes to one of them
    subscribed = start(subscriber, "subscribe", broker.doors["sub"], subscriber)
    # Then it hears that one
    assert line(subscribed) == f"{subscriber} 2"


@pytest.mark.parametrize("language", ["C", "Node"])
def test_the_smallest_clients_push_and_work(broker: BrokerProcess, start: Start, language: str) -> None:
    # Given the producer in `clients/`, pushing into the queue of the QUEUE device by its name's default
    asked = broker.doors["req"]
    nobody_pulls(broker)
    worker = start(f"{language} worker", broker.doors["rep"])
    asking = start("Python", "ask", asked, "first")
    # Then the worker in `clients/` prints the job and its answer commits it
    assert line(worker) == "first"
    assert line(asking) == "done"
    # And what the producer in `clients/` pushes arrives
    assert start(f"{language} producer", broker.doors["push"], "a", "b").wait(60) == 0
    pulling = start("Python", "pull", broker.doors["pull"])
    assert [line(pulling), line(pulling)] == ["a", "b"]


@pytest.mark.parametrize("language", ["C", "Node"])
def test_the_smallest_clients_push_and_work_by_key(keyed: KeyedBroker, start: Start, language: str) -> None:
    # Given: a worker with a key, and one with a key that the broker does not know
    doors, keys = keyed.process.doors, keyed.variables
    new_key(keyed.folder / f"{language}.key")
    stranger = start(f"{language} worker", doors["rep"], **keys(language))
    worker = start(f"{language} worker", doors["rep"], **keys())
    # When: a program pushes, and the library asks
    assert start(f"{language} producer", doors["push"], "a", "b", **keys()).wait(60) == 0
    with Producer(**keyed.access(), endpoint=doors["smq"]) as producer:
        assert producer.call("default", b"first", timeout=TIMEOUT) == b"done"
    # Then: the worker whose key is known has them all
    assert {line(worker) for _ in range(3)} == {"a", "b", "first"}
    keyed.process.wait_log("handshake")
    stranger.kill()
    assert stranger.stdout
    assert stranger.stdout.read() == ""


def test_a_program_in_c_has_past_and_present_with_a_key(keyed: KeyedBroker, start: Start) -> None:
    device = next(found for found in keyed.process.devices if found.get("stream") == "prices")
    with Publisher(**keyed.access(), endpoint=keyed.process.doors["smq"]) as publisher:
        publisher.publish("prices", "eur", b"old").wait(TIMEOUT)
        doors = device["backend"][0], device["replay"][0]
        program = start("C replay", *doors, "prices", "2", **keyed.variables())
        while program.poll() is None:
            publisher.publish("prices", "eur", b"new").wait(TIMEOUT)
    assert program.stdout
    assert program.stdout.read().splitlines() == ["1 eur old", "2 eur new"]


def test_a_program_in_c_has_a_stream_without_a_hole(broker: BrokerProcess, start: Start) -> None:
    device = next(found for found in broker.devices if found.get("stream") == "prices")
    with Publisher(endpoint=broker.doors["smq"]) as publisher:
        for number in range(1, 1501):  # more than one answer has
            publisher.publish("prices", "eur", b"%d" % number)
        publisher.flush()
        wanted = 1510
        program = start("C replay", device["backend"][0], device["replay"][0], "prices", str(wanted))
        number = 1500
        while program.poll() is None:  # whenever it has subscribed: what it has missed it asks for
            number += 1
            publisher.publish("prices", "usd", b"%d" % number).wait(TIMEOUT)
    assert program.stdout
    lines = [line.split() for line in program.stdout]
    assert lines == [[str(at), "eur" if at <= 1500 else "usd", str(at)] for at in range(1, wanted + 1)]
