"""What Python's looks for cycles cost a device in one step, and that connections need none."""

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from devices.plain_sockets import ANY_PORT, eventually, shake_hands
from sluicemq_devices.relays import Device, Forwarder, QueueDevice, Streamer
from sluicemq_devices.sockets import Switchboard
from sluicemq_devices.zmtp import encode
from support.long_forms import first_of

SCRIPT = """
import gc, json, sys
from time import thread_time
from importlib import import_module
from sluicemq_devices.hub import look_for_cycles
from sluicemq_devices.relays.topics import SubscribedTopics

if len(sys.argv) > 1:
    program = import_module(sys.argv[1])
    look_for_cycles(program._NEW_OBJECTS, program._NEW_BLOCKS)
most = [0.0, 0.0]

def looked(phase, about):
    if phase == "start":
        most[1] = thread_time()
    else:
        most[0] = max(most[0], thread_time() - most[1])

gc.callbacks.append(looked)
topics = SubscribedTopics()
for number in range(100_000):
    topics.add(b"%08d" % (number * 997 % 1_000_003), "a")
more = [[] for _ in range(600_000)]
print(most[0])
"""


def longest_look(*program: str) -> float:
    """While topics came, in seconds of CPU: of Python by itself, or as a program of ours has it."""
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, *program], capture_output=True, check=True, timeout=300
    )
    return float(ran.stdout)


@pytest.mark.full
@pytest.mark.parametrize("program", first_of("sluicemq_broker.command.serve", "sluicemq_devices.__main__"))
def test_many_topics_are_not_looked_at_for_cycles_all_at_once(program: str) -> None:
    assert longest_look(program) < longest_look() / 4


def test_what_came_is_looked_at_once_and_no_more_and_then_what_comes_next() -> None:
    told = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, check=True, timeout=60).stdout
    first, second, garbage = json.loads(told)
    assert first >= 20_000
    assert second >= first + 20_000
    assert garbage < 1000


LEFT = """
import gc, json, weakref
from sluicemq_devices.hub import look_for_cycles

class Cycle:
    def __init__(self):
        self.me = self

look_for_cycles(200, 20_000)
start = gc.get_freeze_count()
cycles = [weakref.ref(Cycle()) for _ in range(1000)]
much = [[] for _ in range(40_000)]
first = gc.get_freeze_count() - start
more = [[] for _ in range(40_000)]
second = gc.get_freeze_count() - start
print(json.dumps([first, second, sum(each() is not None for each in cycles)]))
"""


@pytest.fixture
def nothing_by_itself() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


Kinds = tuple[type[Forwarder | QueueDevice | Streamer], bytes, bytes]
KINDS: dict[str, Kinds] = {
    "streamer": (Streamer, b"PUSH", b"PULL"),
    "queue": (QueueDevice, b"REQ", b"REP"),
    "forwarder": (Forwarder, b"PUB", b"SUB"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("nothing_by_itself")
def test_ended_connections_are_in_none(board: Switchboard, started: Callable[[Any], Any], kind: str) -> None:
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
    found = [leaked for leaked in gc.garbage if type(leaked).__module__.startswith("sluicemq_devices")]
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
    for socket in (early, producer, worker, bad):
        socket.close()
    eventually(lambda: not device.connections)
