"""A settling with a store in memory."""

from collections.abc import Callable, Sequence
from typing import Any

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.config import QueueSettings
from sluicemq_broker.context import Memory, Retry
from sluicemq_broker.job import Job
from sluicemq_broker.queue import Outcome, Settlement, Verdict
from sluicemq_broker.store import Completed, RolledBack
from support.fakes import FakeStore, FakeWorker, go_on
from support.jobs import some_jobs
from support.waiting import wait_until
from unit.dispatch_rig import DispatchRig


class SettleStore(FakeStore):
    """Takes every verdict, unless ``fault`` is set."""

    fault: Exception | None = None

    def __init__(self) -> None:
        super().__init__()
        self.rolled_back: list[RolledBack] = []
        self.finished: list[Completed] = []

    def _end(self, job: Job) -> SluiceError | None:
        if self.fault:
            raise self.fault
        return super()._end(job)

    def roll_back(self, entries: Sequence[RolledBack], now: float) -> int:
        self.rolled_back += entries
        return super().roll_back(entries, now)

    def complete(self, completed: Sequence[Completed], now: float) -> dict[str, SluiceError]:
        self.finished += completed
        return super().complete(completed, now)


class SettlingRig(DispatchRig):
    """The verdicts of one queue over a store in memory, and a worker that has ``count`` jobs.

    ``waits``: somebody waits here for the result of each job, and fails on every answer.
    """

    store: SettleStore

    def __init__(
        self,
        count: int,
        *,
        pops: bool = False,
        waits: bool = True,
        attempts: int = 0,
        queue: QueueSettings | None = None,
        max_attempts: int = 1,
        memory: Memory | None = None,
        **settings: Any,
    ) -> None:
        self.retry = Retry(0.001)
        super().__init__(store=SettleStore(), memory=memory, retry=self.retry, settings=queue)
        self.heard: list[dict[int, SluiceError]] = []
        self.store.ready += some_jobs(count, max_attempts=max_attempts, **settings)
        for job in self.store.ready:
            job.attempts = attempts
            if waits:
                self.queue.results.wait(job.id, _fails)
        self.hand = FakeWorker(count)
        self.hand.pops = pops

    @property
    def answers(self) -> list[dict[int, type[SluiceError]]]:
        """What the worker was answered: kinds of errors by the positions of its verdicts."""
        return [{at: type(why) for at, why in answer.items()} for answer in self.heard]

    def hire(self) -> None:
        self.queue.attach(self.hand)
        self.queue.jobs_ready()
        self.wait()

    def give_verdict(
        self, kind: str, told: Callable[[dict[int, SluiceError]], None] | None = None, **verdict: Any
    ) -> None:
        """The worker gives this verdict on all that it has; it is not written yet."""
        verdicts = [Verdict(delivery.receipt, kind, **verdict) for delivery in self.hand.deliveries]
        self.queue.settling.settle(verdicts, Settlement(told or self.heard.append))

    def verdict(self, *arguments: Any, **verdict: Any) -> None:
        self.give_verdict(*arguments, **verdict)
        self.wait()

    def wait(self) -> None:
        go_on()
        wait_until(lambda: go_on() or not self.queue.busy)
        go_on()


def _fails(outcome: Outcome) -> None:
    raise ValueError(outcome)
