"""The library in a forked child: it begins anew or refuses, and the parent goes on undisturbed."""

import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clients.scripted_broker import SECONDS, SILENCE, Received, Script, ScriptedBroker
from sluicemq.protocol import wire
from support.ports import free_port
from support.waiting import wait_until

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full

BEGINNING = """
import sys
if "gevent" in sys.argv:
    from gevent import monkey
    monkey.patch_all()
import multiprocessing
import os
import signal
import threading
import time
from sluicemq import Claim, Client, Forked, Producer, Worker

endpoint = sys.argv[1]

def in_child(function):
    pid = os.fork()
    if not pid:
        code = 1
        try:
            function()
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitpid(pid, 0)[1]

def error_of(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return type(error).__name__
"""

MODES = pytest.mark.parametrize("mode", ["threads", "gevent"])


def run(program: str, endpoint: str, mode: str) -> list[str]:
    """What it prints, line by line."""
    command = [sys.executable, "-c", BEGINNING + program, endpoint, mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            output, _errors = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
        assert process.returncode == 0
        return output.splitlines()


def gives_one_job(broker: ScriptedBroker) -> Script:
    """Whoever asks for work gets a job."""

    def ready(message: Received) -> None:
        if message.fields[1]:
            broker.deliver(message.peer, "q", [b"one"])

    return ready


@MODES
def test_a_producer_pushes_in_the_child_and_goes_on_in_the_parent(broker: ScriptedBroker, mode: str) -> None:
    printed = run(
        """
producer = Producer(endpoint)
producer.push("q", b"before").wait(60)
def child():
    for number in range(1000):
        producer.push("q", b"child %d" % number)
    producer.close()
    print(producer.unconfirmed)
print(in_child(child))
for number in range(1000):
    producer.push("q", b"parent %d" % number)
producer.close()
print(producer.unconfirmed)
""",
        broker.endpoint,
        mode,
    )
    assert printed == ["0", "0", "0"]
    payloads = [payload for _id, payload in broker.pushed()]
    expected = [b"%s %d" % (who, number) for who in (b"child", b"parent") for number in range(1000)]
    assert payloads == [b"before", *expected]
    assert len({job_id for job_id, _payload in broker.pushed()}) == 2001
    assert len(broker.of(wire.HELLO)) == 2


@MODES
def test_a_child_chooses_a_broker_of_its_own(broker: ScriptedBroker, mode: str) -> None:
    other = ScriptedBroker().start()
    try:
        several = f"{broker.endpoint},{other.endpoint},dns+tcp://no-such-host.invalid:1"
        printed = run(
            """
producer = Producer(endpoint)
client = Client(endpoint, timeout=60)
client.ping()
producer.push("q", b"parent").wait(60)

def child():
    producer.push("q", b"child").wait(60)
    client.ping()
    assert producer.connected_to and client.connected_to
    producer.close()

print([in_child(child) for _ in range(6)])
producer.push("q", b"parent").wait(60)
""",
            several,
            mode,
        )
    finally:
        other.stop()
    assert printed == ["[0, 0, 0, 0, 0, 0]"]
    assert len(broker.pushed() + other.pushed()) == 8


@MODES
def test_what_the_parent_has_not_confirmed_is_not_the_childs(broker: ScriptedBroker, mode: str) -> None:
    """Its receipts say so at once, its futures too; and the child pushes none of it."""

    def withheld(message: Received) -> object:
        return SILENCE if message.fields[1][0][1] == b"withheld" else []

    broker.on[wire.PUSH] = withheld
    printed = run(
        """
confirmed = Producer(endpoint)
done = confirmed.push("q", b"confirmed")
done.wait(60)
producer = Producer(endpoint)
receipt = producer.push("q", b"withheld")
reply = producer.submit("q", b"withheld")
def child():
    done.wait(0)
    print(error_of(receipt.wait), error_of(reply.result), producer.unconfirmed)
    producer.flush(0)
    producer.push("q", b"child").wait(60)
    producer.close()
print(in_child(child), producer.unconfirmed)
""",
        broker.endpoint,
        mode,
    )
    assert printed[:2] == ["ForkedError ForkedError 0", "0 2"]
    pushed = [payload for _id, payload in broker.pushed()]
    assert pushed.count(b"child") == 1
    assert len([1 for payload in pushed if payload == b"withheld"]) == 2


def test_a_child_of_multiprocessing_pushes_what_it_has_before_it_ends(broker: ScriptedBroker) -> None:
    """It ends with ``os._exit``: without a finalizer of its own nothing would be flushed."""
    run(
        """
inherited = Producer(endpoint)
def child():
    inherited.push("q", b"inherited")
    Producer(endpoint).push("q", b"own")
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
""",
        broker.endpoint,
        "threads",
    )
    assert {payload for _id, payload in broker.pushed()} == {b"inherited", b"own"}


def test_a_child_that_uses_nothing_connects_nowhere(broker: ScriptedBroker) -> None:
    run(
        """
with Producer(endpoint) as producer, Client(endpoint) as client:
    producer.push("q", b"x").wait(60)
    client.ping(60)
    in_child(lambda: (producer.close(), client.close()))
    client.ping(60)
""",
        broker.endpoint,
        "threads",
    )
    assert len(broker.of(wire.HELLO)) == 2


def test_the_child_keeps_no_connection_of_the_parent_open(broker: ScriptedBroker) -> None:
    """Or a broker would notice only by its silence that the parent was killed."""
    printed = run(
        """
import socket
def connections():
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            other = socket.socket(fileno=os.dup(int(fd)))
        except OSError:
            continue
        with other:
            try:
                count += other.getpeername() == ("127.0.0.1", int(endpoint.rpartition(":")[2]))
            except OSError:
                pass
    return count
client = Client(endpoint)
client.ping(60)
in_child(lambda: print(connections()))
client.ping(60)
print(connections())
client.close()
""",
        broker.endpoint,
        "threads",
    )
    assert printed == ["0", "1"]


@MODES
def test_a_client_asks_in_both(broker: ScriptedBroker, mode: str) -> None:
    broker.on[wire.STATS] = lambda _message: {"broker": {}, "counters": {}, "queues": []}
    printed = run(
        """
client = Client(endpoint)
client.ping(60)
closed = Client(endpoint)
closed.close()
def child():
    print(client.stats().counters, error_of(closed.stats))
    client.close()
for _ in range(2):
    in_child(child)
print(client.stats().counters)
client.close()
""",
        broker.endpoint,
        mode,
    )
    assert printed == ["{} UnavailableError"] * 2 + ["{}"]


@MODES
def test_a_worker_that_was_started_is_refused_in_the_child(broker: ScriptedBroker, mode: str) -> None:
    """A handler may fork: the child takes no job and gives none back, a signal to it is its own."""
    broker.on[wire.READY] = gives_one_job(broker)
    printed = run(
        """
left = 2
def handler(job):
    global left
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        code = error_of(worker.start) + str(worker.stop()) + error_of(job.extend, 1)
        os.write(writing, code.encode())
        while True:
            time.sleep(60)
    print(os.read(reading, 100).decode())
    os.kill(pid, signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), worker._signals.count)
    worker.stop()
    return b"done"
worker = Worker(endpoint, "q", handler)
worker.run()
""",
        broker.endpoint,
        mode,
    )
    assert printed == ["ForkedErrorTrueLeaseLostError", "-15 0"]
    assert broker.settled() == {b"r-one": ["COMMIT", b"done", None]}


def test_a_thread_that_forked_in_a_handler_ends_in_the_child(broker: ScriptedBroker) -> None:
    broker.on[wire.READY] = gives_one_job(broker)
    printed = run(
        """
def handler(job):
    pid = os.fork()
    if pid:
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        worker.stop()
    return b"parent" if pid else b"child"
worker = Worker(endpoint, "q", handler)
worker.run()
""",
        broker.endpoint,
        "threads",
    )
    assert printed == ["0"]
    assert broker.settled() == {b"r-one": ["COMMIT", b"parent", None]}


@MODES
def test_a_worker_that_was_not_started_works_in_every_child(broker: ScriptedBroker, mode: str) -> None:
    broker.on[wire.READY] = gives_one_job(broker)
    printed = run(
        """
def handler(job):
    worker.stop()
worker = Worker(endpoint, "q", handler)
print([in_child(worker.run) for _ in range(2)])
worker.run()
""",
        broker.endpoint,
        mode,
    )
    assert printed == ["[0, 0]"]
    verdicts = [row[1] for message in broker.of(wire.SETTLE) for row in message.fields[0]]
    assert verdicts == ["COMMIT"] * 3


def test_a_claim_stays_the_parents(broker: ScriptedBroker) -> None:
    broker.on[wire.READY] = gives_one_job(broker)
    printed = run(
        """
client = Client(endpoint)
claim = client.reserve("q", 1, wait=60)
def child():
    with claim:
        print(error_of(claim.jobs[0].commit), error_of(claim.extend, 1))
in_child(child)
claim.jobs[0].commit(b"parent")
""",
        broker.endpoint,
        "threads",
    )
    assert printed == ["ForkedError ForkedError"]
    assert broker.settled() == {b"r-one": ["COMMIT", b"parent", None]}


APPLICATION = """
import os
from sluicemq import Producer

producer = Producer(os.environ["ENDPOINT"])
made_in = os.getpid()

def application(environ, start_response):
    receipt = producer.push("visits", environ["PATH_INFO"].encode())
    if environ["PATH_INFO"] != "/unconfirmed":
        receipt.wait(60)
    start_response("200 OK", [])
    return [b"%d" % (os.getpid() if os.getpid() != made_in else 0)]
"""


@contextmanager
def gunicorn(broker: ScriptedBroker, folder: Path, kind: str) -> Iterator[int]:
    """A server of two processes that has loaded the application before it forked; its port."""
    (folder / "application.py").write_text(APPLICATION)
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--worker-class", kind]
    command += ["--bind", f"127.0.0.1:{port}", "--no-control-socket", "application:application"]
    with subprocess.Popen(command, cwd=folder, env={**os.environ, "ENDPOINT": broker.endpoint}) as server:
        try:
            wait_until(lambda: visit(port, "/first"))
            yield port
        finally:
            server.terminate()
            server.wait(SECONDS)


def visit(port: int, path: str) -> int:
    """The pid of the process that served it; 0 if none did."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request("GET", path)
        return int(connection.getresponse().read())
    except ConnectionRefusedError:
        return 0
    finally:
        connection.close()


@pytest.mark.parametrize("kind", ["sync", "gevent"])
def test_a_prefork_server_pushes_from_each_process(broker: ScriptedBroker, tmp_path: Path, kind: str) -> None:
    served: list[int] = []
    with gunicorn(broker, tmp_path, kind) as port:
        # When: each has served, and one of them pushes what it does not wait for
        wait_until(lambda: served.append(visit(port, f"/{len(served)}")) or len(set(served)) == 2)
        visit(port, "/unconfirmed")
    payloads = [payload for _id, payload in broker.pushed()]
    assert 0 not in served
    assert set(payloads) == {b"/first", b"/unconfirmed", *(b"/%d" % number for number in range(len(served)))}
    assert len({job_id for job_id, _payload in broker.pushed()}) == len(payloads)
