"""Steps for one of many queues: one that fails keeps no other from its turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.queue import Queue
from sluicemq_broker.store import Unclear


def attempt(step: Callable[[], object], failed: Callable[[Exception], object]) -> bool:
    """Run a step; False if it failed, after ``failed(error)``. Raises Unavailable while MongoDB is away."""
    try:
        step()
    except Exception as error:
        if isinstance(error, UnavailableError) and not isinstance(error, Unclear):
            raise  # no step for any queue can succeed now
        failed(error)
        return False
    return True


def attempt_each(
    queues: Iterable[Queue], duty: Callable[[Queue], None], failed: Callable[[Queue, Exception], object]
) -> None:
    """Do a duty for each queue; an error of one is handled by ``failed``, and the others have their turn."""
    for queue in queues:
        attempt(partial(duty, queue), partial(failed, queue))
