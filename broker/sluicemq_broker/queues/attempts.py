"""Steps for one of many queues: one that fails keeps no other from its turn."""

from __future__ import annotations

from collections.abc import Callable

from sluicemq.protocol.errors import Unavailable
from sluicemq_broker.store import Unclear


def attempt(step: Callable[[], object], failed: Callable[[Exception], None]) -> bool:
    """Run a step; False if it failed, after ``failed(error)``. Raises Unavailable while MongoDB is away."""
    try:
        step()
    except Exception as error:
        if isinstance(error, Unavailable) and not isinstance(error, Unclear):
            raise  # no step for any queue can succeed now
        failed(error)
        return False
    return True
