"""Permits of a limited queue, as one broker counts them."""

from __future__ import annotations

import math

from sluicemq_broker.config import QueueSettings
from sluicemq_broker.queue.limits import QueueLimits


def test_permits_of_a_former_id_are_not_given_back_however_the_limits_change() -> None:
    limits = QueueLimits(QueueSettings(max_running=5))
    limits.use("former")
    limits.permits = 5
    limits.give_back_later(1000.0)
    limits.reconfigure(QueueSettings())
    limits.use("new")
    assert limits.next(1001.0) == math.inf
