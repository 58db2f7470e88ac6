"""Plain workers: what is held for one whose socket takes nothing more."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sluicemq_broker.doors.lane_workers import ArrivalWorker, LaneWorker, PopWorker, PullWorker, RepWorker
from sluicemq_broker.queue import Marks
from sluicemq_broker.runtime import Counters
from sluicemq_broker.security import ANYBODY


class Lane:
    """One of which nothing is sent."""

    peer = "peer"
    writable = True
    backlog = 0
    who = ANYBODY
    zmtp = SimpleNamespace(peer_kind=b"REP")

    blocked: Callable[[], None]

    def on(self, **handlers: Callable[..., None]) -> None:
        vars(self).update(handlers)


@pytest.mark.parametrize("kind", [RepWorker, PullWorker, PopWorker, ArrivalWorker])
def test_nothing_is_held_for_a_worker_whose_socket_takes_nothing_more(kind: type[LaneWorker]) -> None:
    lane: Any = Lane()
    backend: Any = SimpleNamespace(
        queue=SimpleNamespace(
            offer=lambda *_, **__: None, stalled=lambda worker: setattr(worker, "reads", False)
        ),
        settings=SimpleNamespace(envelope="payload"),
        counters=Counters(),
        prefetch=5,
        marks=Marks(99, 2**20),
    )
    worker = kind(backend, lane)
    most = 1 if kind is ArrivalWorker else 5  # at first
    assert (worker.free, worker.takes) == (most, (most, most))

    lane.blocked()

    assert (worker.free, worker.takes) == (0, (0, 0))
