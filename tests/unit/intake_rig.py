"""An intake with a store in memory."""

from __future__ import annotations

from collections.abc import Mapping

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.context import Memory, Retry
from sluicemq_broker.job import Job
from sluicemq_broker.queue import Push
from sluicemq_broker.runtime import Timer
from support.fakes import go_on
from unit.dispatch_rig import DispatchRig


class IntakeRig(DispatchRig):
    """The intake of a queue over a store in memory."""

    def __init__(self, *, hwm_bytes: int = 1 << 30, timer: Timer | None = None) -> None:
        self.retry = Retry(0.001)
        super().__init__(timer, memory=Memory(hwm_bytes=hwm_bytes), retry=self.retry)
        self.intake = self.queue.intake

    def push(self, *jobs: Job) -> Told:
        told = Told()
        self.queue.intake.push(Push(list(jobs), told))
        return told

    def drain(self) -> None:
        assert self.intake.drain(5.0)
        go_on()


class Told:
    """Answer to the pusher; None: nothing yet."""

    refused: dict[int, SluiceError] | None = None
    existing: Mapping[int, str] = {}
    times = 0

    def __call__(self, refused: dict[int, SluiceError], existing: Mapping[int, str]) -> None:
        self.refused, self.existing = refused, existing
        self.times += 1
