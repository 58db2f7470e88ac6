"""A broker whose every door is at an IPv6 address: library, commands, plain sockets and HTTP reach it."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
import zmq

from sluicemq import Client, Producer, Worker
from support.broker_process import BrokerProcess
from support.http_reader import Web
from support.own_queue import TOKEN
from support.ports import free_port
from support.waiting import TIMEOUT


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")


def _six() -> str:
    return f"tcp://[::1]:{free_port()}"


@pytest.fixture(scope="module")
def six(mongo_uri: str) -> Iterator[BrokerProcess]:
    own = {"endpoint": _six(), "http": f"[::1]:{free_port()}", "http_token": TOKEN}
    devices = [{"kind": "streamer", "frontend": _six(), "backend": _six(), "queue": "plain"}]
    config = {"broker": own, "devices": devices}
    with BrokerProcess(mongo_uri, "test_ipv6", config=config) as process:
        yield process


def test_the_library_pushes_and_works(six: BrokerProcess) -> None:
    endpoint = six.doors["smq"]
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        client.ping()
        with Worker("six", lambda job: job.payload[::-1], endpoint=endpoint):
            assert producer.call("six", b"abc", timeout=TIMEOUT) == b"cba"


def test_commands_find_it_by_their_option_and_by_the_variable(six: BrokerProcess) -> None:
    endpoint = six.doors["smq"]
    for words, variables in (
        (["--endpoint", endpoint, "ping"], {}),
        (["ping"], {"SLUICEMQ_ENDPOINT": f"@{endpoint}"}),
        (["ping"], {"SLUICEMQ_ENDPOINT": endpoint.replace("[::1]", "[::]")}),
    ):
        command = [sys.executable, "-m", "sluicemq", *words]
        env = {**os.environ, **variables}
        assert subprocess.run(command, env=env, timeout=TIMEOUT, check=False).returncode == 0, words


def test_plain_sockets_that_speak_ipv6_push_and_work(six: BrokerProcess) -> None:
    with zmq.Context() as context, context.socket(zmq.PUSH) as push, context.socket(zmq.PULL) as pull:
        for socket, door in ((push, "push"), (pull, "pull")):
            socket.ipv6, socket.linger = True, 0
            socket.connect(six.doors[door])
        push.send(b"job")
        assert pull.poll(int(TIMEOUT * 1000))
        assert pull.recv() == b"job"


def test_http_is_read_and_takes_orders(six: BrokerProcess) -> None:
    assert six.http.startswith("[::1]:")
    web = Web(six.http)
    assert web.get("/healthz").status == 200
    with Producer(endpoint=six.doors["smq"]) as producer:
        producer.push("orders", b"x").wait(TIMEOUT)
    answer = web.post("/api/v1/queues/orders/pause", token=TOKEN)
    assert (answer.status, json.loads(answer.body)) == (200, {"answer": ["delivery"]})


@pytest.mark.one_in(5)
@pytest.mark.parametrize("host", ["::1", "[::1]", "localhost", "lo", "::ffff:127.0.0.1"])
def test_the_default_doors_are_at_the_host(mongo_uri: str, host: str) -> None:
    """The doors are bound as far as ports are free: the answer of --check-config names them."""
    command = [sys.executable, "-m", "sluicemq_broker", "--host", host, "--mongodb-uri", mongo_uri]
    done = subprocess.run(
        [*command, "--check-config", "--json"], capture_output=True, timeout=TIMEOUT, check=True
    )
    shown = json.loads(done.stdout)["config"]
    bare = host.strip("[]")
    place = f"[{bare}]" if ":" in bare else bare
    assert shown["broker"]["endpoint"] == f"@tcp://{place}:5550"
    assert shown["devices"][0]["frontend"] == [f"@tcp://{place}:5551"]


@pytest.mark.parametrize("host", ["[::1]", "localhost", "lo", "*", "[::]"])
def test_http_is_where_it_is_told_to_be(mongo_uri: str, host: str) -> None:
    config = {"broker": {"http": f"{host}:0", "http_insecure": True}, "devices": []}
    with BrokerProcess(mongo_uri, "test_ipv6_http", config=config) as process:
        port = process.http.rpartition(":")[2]
        reached = {"[::1]": ["[::1]"], "*": ["127.0.0.1", "[::1]"], "[::]": ["127.0.0.1", "[::1]"]}
        for here in reached.get(host, ["127.0.0.1"]):
            assert Web(f"{here}:{port}").get("/healthz").status == 200
