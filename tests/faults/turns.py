"""Bounds on what one turn of the hub computes and a broker grows by while a client attacks it.

Turns are measured in CPU time of the broker's thread, which other programs on the machine hardly change.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from support.broker_under_test import BrokerUnderTest

MIB = 2**20
#: Seconds: 0.02 are wanted; before there were bounds the least of the inputs took 0.1, the worst 38.
LONGEST = 0.06
#: Bytes that the broker's memory may grow by while it looks at what is sent.
GROWTH = 150 * MIB
#: Seconds of :func:`slowness`'s work on the machine where those were measured.
WORK = 0.0031


@contextmanager
def attacked(broker: BrokerUnderTest) -> Iterator[BrokerUnderTest]:
    """Attack a broker: meanwhile no turn is long, and afterwards it serves others and has grown little."""
    before = _memory(broker)
    assert broker.serves()
    _longest_turn(broker)
    yield broker
    assert broker.serves()
    assert _longest_turn(broker) < LONGEST * slowness()
    assert _memory(broker) < before + GROWTH
    assert "Traceback" not in broker.process.log_text()
    broker.close_sockets()


def slowness() -> float:
    """How many times longer this machine computes now than that where LONGEST was measured; at least 1."""
    costs = []
    for _ in range(5):
        began = time.process_time()
        sum(number * number for number in range(100_000))
        costs.append(time.process_time() - began)
    return max(1.0, max(costs) / WORK)


def _longest_turn(broker: BrokerUnderTest) -> float:
    """Return the seconds that the longest turn since the last call has computed."""
    broker.ask_counters()
    longest, broker.longest_turn_cpu = broker.longest_turn_cpu, 0.0
    return longest


def _memory(broker: BrokerUnderTest) -> int:
    return int(psutil.Process(broker.process.pid).memory_info().rss)
