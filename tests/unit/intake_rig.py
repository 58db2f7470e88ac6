"""An intake with a store in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.context.memory import Memory
from sluicemq_broker.context.retry import Retry
from sluicemq_broker.job.job import Job
from sluicemq_broker.queue.dispatch import Dispatch
from sluicemq_broker.queue.intake import Intake, Push
from sluicemq_broker.runtime.counters import Counters
from sluicemq_broker.runtime.timer import Timer
from support.fakes import Clock, FakeOutlet, FakeOwners, FakeStore, FakeWorker, a_context, go_on, no_limits


class IntakeRig:
    """An intake and its dispatcher over a store in memory."""

    def __init__(self, *, hwm_bytes: int = 1 << 30, timer: Timer | None = None) -> None:
        self.store = FakeStore()
        self.owners = FakeOwners()
        self.clock = Clock()
        self.retry = Retry(0.001)
        self.counters = Counters()
        self.memory = Memory(hwm_bytes=hwm_bytes)
        context = a_context(
            self.owners,
            clock=self.clock,
            counters=self.counters,
            retry=self.retry,
            memory=self.memory,
            timer=timer,
        )
        store: Any = self.store
        self.dispatch = dispatch = Dispatch(store, context, FakeOutlet(), no_limits(context))
        self.intake = Intake(store, context, dispatch.supply, dispatch.expiries, dispatch.groups)

    def worker(self, prefetch: int = 1) -> FakeWorker:
        worker = FakeWorker(prefetch)
        self.dispatch.attach(worker)
        go_on()
        return worker

    def push(self, *jobs: Job) -> Told:
        told = Told()
        self.intake.push(Push(list(jobs), told))
        return told

    def drain(self) -> None:
        assert self.intake.drain(5.0)
        go_on()


class Told:
    """Answer to the pusher; None: nothing yet."""

    refused: dict[int, SluiceError] | None = None
    existing: Sequence[int] = ()
    times = 0

    def __call__(self, refused: dict[int, SluiceError], existing: Sequence[int]) -> None:
        self.refused, self.existing = refused, existing
        self.times += 1
