"""However many topics a device alone has, and whatever changes of them: no turn of its hub computes for long.

The device runs as its command runs it, with a watch over its turns, which tells the longest when asked.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from faults.turns import slowness
from support.waiting import TIMEOUT

WATCHED = """
import sys
from sluicemq_devices import __main__ as device
import json, signal, gevent
from sluicemq_broker.runtime import Counters, Turns

turns = Turns(Counters())
turns.start()
gevent.signal_handler(signal.SIGUSR1, lambda: print(json.dumps(turns.take()), flush=True))
sys.exit(device.main())
"""
#: Seconds: what is wanted. It took 0.006 on the machine of :func:`slowness`, and more than this where Python
#: looked at all objects, or all that messages need was learnt at once.
LONGEST = 0.02
#: So many times 100 topics that begin each other: of 100,000 Python would not look at all objects yet.
CHAINS, LENGTHS = 1700, 100
TOPICS = [b"%04d/" % chain + b"x" * length for chain in range(CHAINS) for length in range(1, LENGTHS + 1)]
ANY_PORT = "tcp://127.0.0.1:0"


class Device:
    """A forwarder alone, somebody who publishes, and subscribers."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-c",
                WATCHED,
                "forwarder",
                ANY_PORT,
                ANY_PORT,
                "--json",
                "--hwm",
                "1000000",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        ends = self._told()
        self._context = zmq.Context()
        self._back = ends["backend"]
        self._publisher = self._connected(zmq.XPUB, ends["frontend"])

    def subscribed(self, topics: list[bytes]) -> zmq.Socket[bytes]:
        """A subscriber, whose topics the device has."""
        subscriber = self._connected(zmq.SUB, self._back)
        for topic in topics:
            subscriber.subscribe(topic)
        self.heard(b"\1", topics)
        return subscriber

    def heard(self, verb: bytes, topics: list[bytes]) -> None:
        """The device has told the publisher so of each topic."""
        missing = set(topics)
        while missing:
            told = self._publisher.recv()
            if told[:1] == verb:
                missing.discard(told[1:])

    def publish(self, messages: list[bytes], *subscribers: zmq.Socket[bytes]) -> None:
        """Each of them gets all of it, in order."""
        for message in messages:
            self._publisher.send(message)
        for subscriber in subscribers:
            assert [subscriber.recv() for _ in messages] == messages

    def longest_turn(self) -> float:
        """Seconds that the longest turn since the last call has computed."""
        self._process.send_signal(signal.SIGUSR1)
        computed: float = self._told()[1]
        return computed

    def stop(self) -> None:
        self._context.destroy(linger=0)
        self._process.terminate()
        self._process.communicate(timeout=TIMEOUT)

    def _told(self) -> Any:
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())

    def _connected(self, kind: int, endpoint: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.sndhwm = socket.rcvhwm = 0
        socket.rcvtimeo = int(TIMEOUT * 1000)
        socket.connect(endpoint)
        return socket


@pytest.fixture
def device() -> Iterator[Device]:
    device = Device()
    yield device
    device.stop()


@pytest.mark.full
def test_a_device_alone_with_very_many_topics_computes_for_no_long_turn(device: Device) -> None:
    # Given a subscriber of very many topics, which began to come when the device ran already
    messages = [b"%04d/" % chain + b"x" * 50 + b"~" * 80 for chain in range(CHAINS)]
    device.longest_turn()
    many = device.subscribed(TOPICS)
    # When there are messages, and then what begins them all comes, and they go again to both
    device.publish(messages, many)
    all_of_them = device.subscribed([b"0", b"1"])
    device.publish(messages, many, all_of_them)
    # And both leave
    all_of_them.close()
    device.heard(b"\0", [b"0"])
    device.publish(messages, many)
    many.close()
    device.heard(b"\0", TOPICS)
    # Then nobody had to wait for long
    assert device.longest_turn() < LONGEST * slowness()
