"""How long a turn of the hub may compute, in CPU time, so that a loaded machine changes little."""

from __future__ import annotations

import time

#: Seconds: 0.02 are wanted; before there were bounds the least of the inputs took 0.1, the worst 38.
LONGEST = 0.06
#: Seconds of :func:`slowness`'s work on the machine where those were measured.
WORK = 0.0031


def slowness() -> float:
    """How many times longer this machine computes now than that where LONGEST was measured; at least 1."""
    costs = []
    for _ in range(5):
        began = time.process_time()
        sum(number * number for number in range(100_000))
        costs.append(time.process_time() - began)
    return max(1.0, max(costs) / WORK)
