"""What many subscriptions cost in one step, Python's looks for cycles included."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import gc, json, sys
from time import thread_time
from sluicemq_devices import __main__ as device
from sluicemq_devices.hub import look_for_cycles
from sluicemq_devices.relays.topics import Topics

if sys.argv[1] == "as a device does":
    look_for_cycles(device._NEW_OBJECTS)
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
