"""What Python's looks for cycles cost a device in one step, and that connections need none."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from devices.plain_sockets import ANY_PORT, eventually, shake_hands
from sluicemq_devices.doors.switchboard import Switchboard
from sluicemq_devices.relays import Device, Forwarder, Queue, Streamer
from sluicemq_devices.zmtp.frames import encode

SCRIPT = """
import gc, json, sys
from time import thread_time
from sluicemq_devices import __main__ as device
from sluicemq_devices.hub import look_for_cycles
from sluicemq_devices.relays.topics import Topics

if sys.argv[1] == "as a device does":
    look_for_cycles(device._NEW_OBJECTS, most=device._MOST_OBJECTS)
most = [0, 0.0, 0.0]

def looked(phase, about):
    if phase == "start":
        most[1] = thread_time()
    else:
        most[2] = max(most[2], thread_time() - most[1])
        most[0] += about["generation"] == 2

gc.callbacks.append(looked)
topics = Topics()
for number in range(200_000):
    topics.add(b"%08d" % (number * 997 % 1_000_003), "a")
print(json.dumps({"at all": most[0], "longest": most[2]}))
"""


def looks(how: str) -> dict[str, float]:
    """How often all objects were looked at while topics came, and the longest look, in seconds of CPU."""
    ran = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, check=True, timeout=300)
    told: dict[str, float] = json.loads(ran.stdout)
    return told


def test_many_topics_are_not_looked_at_for_cycles_all_at_once() -> None:
    by_itself, as_a_device = looks("as Python does"), looks("as a device does")
    assert by_itself["at all"] > as_a_device["at all"] == 0
    assert as_a_device["longest"] < by_itself["longest"] / 2


def test_while_there_is_little_all_is_looked_at_and_no_more_when_much_came() -> None:
    told = subprocess.run(
        [sys.executable, "-c", THRESHOLDS], capture_output=True, check=True, timeout=60
    ).stdout
    assert json.loads(told) == [[200, 1, 50], [200, 1, 2**31 - 1], [200, 1, 50]]


THRESHOLDS = """
import gc, json
from sluicemq_devices.hub import look_for_cycles

look_for_cycles(200, most=20_000)
told = [gc.get_threshold()]
much = [[] for _ in range(30_000)]
told.append(gc.get_threshold())
del much
few = [[] for _ in range(1000)]
told.append(gc.get_threshold())
print(json.dumps(told))
"""


@pytest.fixture
def nothing_by_itself() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


Kinds = tuple[type[Forwarder | Queue | Streamer], bytes, bytes]
KINDS: dict[str, Kinds] = {
    "streamer": (Streamer, b"PUSH", b"PULL"),
    "queue": (Queue, b"REQ", b"REP"),
    "forwarder": (Forwarder, b"PUB", b"SUB"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("nothing_by_itself")
def test_connections_that_have_ended_are_in_no_cycle(
    board: Switchboard, started: Callable[[Any], Any], kind: str
) -> None:
    # Given a device to which some have come already
    form, front, back = KINDS[kind]
    device: Device = started(form(board, ANY_PORT, ANY_PORT))
    come_and_go(device, front, back)
    gc.collect()
    # When others come, say something, or nothing that can be understood, and leave
    for _ in range(5):
        come_and_go(device, front, back)
    # Then Python finds nothing
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    found = [each for each in gc.garbage if type(each).__module__.startswith("sluicemq_devices")]
    gc.set_debug(0)
    gc.garbage.clear()
    assert not found


def come_and_go(device: Any, front: bytes, back: bytes) -> None:
    producer, worker = shake_hands(device.addresses[0], front), shake_hands(device.addresses[1], back)
    if back == b"SUB":
        worker.sendall(encode([b"\1a"]))
        eventually(lambda: device.subscribers[0]["topics"])
    frames = [b"", b"abc"] if front == b"REQ" else [b"abc"]
    received = device.received
    producer.sendall(encode(frames))
    assert worker.recv(1000)
    producer.sendall(encode(frames) * 100 + encode([bytes(100_000)])[:50_000])  # in the midst of a message
    eventually(lambda: device.received > received + 50)
    early, bad = shake_hands(device.addresses[1], back), shake_hands(device.addresses[0], front)
    bad.sendall(b"\6no command")
    for each in (early, producer, worker, bad):
        each.close()
    eventually(lambda: not device.connections)
