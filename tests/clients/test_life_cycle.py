"""One life for every object that has a connection: start, stop, run, close, ``with``, and equal answers."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from clients.scripted_broker import SECONDS, SILENCE, ScriptedBroker
from sluicemq import (
    BadQueueError,
    Client,
    HeldError,
    Producer,
    Publisher,
    Reader,
    Subscription,
    TimeoutError,
    Worker,
)
from sluicemq.life import LongLived
from sluicemq.protocol import wire
from sluicemq.protocol.packed import pack
from support.waiting import wait_until


def nothing(_given: object) -> None:
    """Do nothing with a job or a batch."""


#: Two messages of topic t, as they are stored.
PACKED = pack(b"t", b"a") + pack(b"t", b"b")
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("SLUICEMQ_")}

#: Each class, and how one is made.
MAKE: dict[str, Callable[[str], LongLived]] = {
    "Producer": lambda endpoint: Producer(endpoint=endpoint),
    "Publisher": lambda endpoint: Publisher(endpoint=endpoint),
    "Client": lambda endpoint: Client(endpoint=endpoint),
    "Worker": lambda endpoint: Worker("mail", nothing, endpoint=endpoint),
    "Reader": lambda endpoint: Reader("prices", follow=True, endpoint=endpoint),
    "Subscription": lambda endpoint: Subscription("prices", "billing", nothing, endpoint=endpoint),
}
each_class = pytest.mark.parametrize("name", MAKE)


@pytest.fixture
def endpoint(broker: ScriptedBroker) -> str:
    """A broker that knows the stream, which is empty."""
    broker.on[wire.READ] = lambda _message: SILENCE
    broker.on[wire.HOLD] = lambda _message: {"fence": 1, "watermark": 0}
    return broker.endpoint


def threads_of_the_library() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("sluicemq-")}


def test_the_table_has_every_class_that_lives_long() -> None:
    assert {kind.__name__ for kind in (Producer, Publisher, Client, Worker, Reader, Subscription)} == set(
        MAKE
    )
    for verb in ("start", "stop", "run", "close", "__enter__", "__exit__"):
        assert hasattr(LongLived, verb)


@each_class
def test_it_starts_and_stops_as_often_as_it_is_told(endpoint: str, name: str) -> None:
    made = MAKE[name](endpoint)
    made.start()
    made.start()
    assert made.stop(SECONDS) is True
    assert made.stop(SECONDS) is True
    made.close()
    made.close(SECONDS)
    wait_until(lambda: not threads_of_the_library())


@each_class
def test_it_may_be_stopped_before_it_was_started(endpoint: str, name: str) -> None:
    made = MAKE[name](endpoint)
    assert made.stop() is True
    made.close()


@each_class
def test_a_block_starts_it_and_ends_it(endpoint: str, name: str) -> None:
    made = MAKE[name](endpoint)
    with made as inside:
        assert inside is made
    assert made.stop() is True


@each_class
def test_run_lasts_until_it_is_stopped_in_another_thread(endpoint: str, name: str) -> None:
    made = MAKE[name](endpoint)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            made.run()
        except BaseException as error:  # noqa: BLE001 - for the assertion
            errors.append(error)

    running = threading.Thread(target=run)
    running.start()
    running.join(0.2)
    assert running.is_alive()
    assert made.stop(SECONDS) is True
    running.join(SECONDS)
    assert not running.is_alive()
    assert errors == []


PROGRAM = """
import sys
from sluicemq import *

def nothing(_given):
    pass

made = {
    "Producer": lambda: Producer(),
    "Publisher": lambda: Publisher(),
    "Client": lambda: Client(),
    "Worker": lambda: Worker("mail", nothing),
    "Reader": lambda: Reader("prices", follow=True),
    "Subscription": lambda: Subscription("prices", "billing", nothing),
}[sys.argv[1]]()
print("made", flush=True)
if sys.argv[2] == "run":
    made.run()
else:
    import time
    with made:
        print("begun", flush=True)
        time.sleep(600)
print("ended", flush=True)
"""


@each_class
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_ends_run_in_order(
    broker: ScriptedBroker, endpoint: str, name: str, number: signal.Signals
) -> None:
    with program(endpoint, name, "run") as process:
        broker.wait_for(wire.HELLO)
        process.send_signal(number)
        output, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, output.split()[-1], errors) == (0, "ended", "")


@each_class
def test_ctrl_c_in_a_block_ends_it_in_order(broker: ScriptedBroker, endpoint: str, name: str) -> None:
    with program(endpoint, name, "with") as process:
        assert process.stdout
        assert process.stdout.readline() == "made\n"
        assert process.stdout.readline() == "begun\n"
        broker.wait_for(wire.HELLO)
        process.send_signal(signal.SIGINT)
        _output, errors = process.communicate(timeout=SECONDS)
    assert process.returncode in (1, -signal.SIGINT)
    assert errors.endswith("KeyboardInterrupt\n")
    assert errors.count("Traceback") == 1


def program(endpoint: str, name: str, way: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, name, way],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | {"SLUICEMQ_ENDPOINT": endpoint},
    )


def test_a_producer_that_leaves_jobs_unconfirmed_answers_no_at_its_end(broker: ScriptedBroker) -> None:
    broker.on[wire.PUSH] = lambda _message: SILENCE
    producer = Producer(endpoint=broker.endpoint)
    producer.push("mail", b"x")
    assert producer.stop(0.1) is False
    assert producer.stop() is False
    raises = Producer(endpoint=broker.endpoint)
    raises.push("mail", b"x")
    with pytest.raises(TimeoutError, match="1 jobs are not confirmed"):
        raises.close(0.1)
    assert raises.stop() is False


def test_what_ended_a_worker_is_raised_by_close_and_not_by_stop(broker: ScriptedBroker) -> None:
    broker.on[wire.READY] = lambda _message: BadQueueError("no such name")
    worker = Worker("mail", nothing, endpoint=broker.endpoint)
    worker.start()
    wait_until(lambda: worker._failure is not None)
    assert worker.stop() is True
    for _ in range(2):
        with pytest.raises(BadQueueError):
            worker.close()


def test_what_ended_a_subscription_is_raised_by_close_and_not_by_stop(broker: ScriptedBroker) -> None:
    broker.on[wire.HOLD] = lambda _message: HeldError("by another", "rebuild")
    subscription = Subscription("prices", "billing", nothing, endpoint=broker.endpoint)
    subscription.start()
    wait_until(subscription._ended.is_set)
    assert subscription.stop() is True
    with pytest.raises(HeldError):
        subscription.close()


def test_a_reader_runs_a_handler_to_the_end(broker: ScriptedBroker) -> None:
    pages = [
        {"rows": [[1, 7.0, PACKED, None]], "gone": None, "after": 2, "newest": 2},
        {"rows": [], "gone": None, "after": 2, "newest": 2},
    ]
    broker.on[wire.READ] = lambda _message: pages.pop(0) if pages else SILENCE
    seen: list[Any] = []
    reader = Reader("prices", endpoint=broker.endpoint)
    reader.run(lambda message: seen.append((message.sequence, message.payload)))
    assert seen == [(1, b"a"), (2, b"b")]
    assert reader.position == 2
    assert reader.stop() is True


def test_a_subscription_without_a_file_left_says_so(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(*_given: object, **_more: object) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr("sluicemq.subscription.Connection", no_file)
    made = MAKE["Subscription"](endpoint)
    made.start()
    assert made.stop() is True
    with pytest.raises(OSError, match="too many open files"):
        made.close()
