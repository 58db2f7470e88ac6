"""One run of ``sluicemq work``: a worker, and what ends it besides a signal."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sluicemq.cli.output import Session
from sluicemq.errors import Release, SluiceError
from sluicemq.job import Job
from sluicemq.worker import Worker

_DRAINED = 1.0  # seconds without a job


class Impossible(Exception):
    """Raised by a task, with the cause: not this job is at fault, and none can be done."""


class Shift:
    """Gives the jobs of a queue to ``task``, until a signal, the count or the end of the queue."""

    def __init__(
        self, session: Session, queue: str, task: Callable[[Job], bytes | None], *,
        prefetch: int, concurrency: int, count: int | None, pop: bool = False, wait_for_queue: bool = False,
    ) -> None:  # fmt: skip
        self._session = session
        self._queue = queue
        self._task = task
        self._left = count
        self._fault: BaseException | None = None
        self._change = threading.Condition()
        self._running = 0
        self._stirred = False
        self._worker = Worker(
            session.endpoint, queue, self._handle,
            prefetch=prefetch, concurrency=concurrency, pop=pop, wait_for_queue=wait_for_queue,
        )  # fmt: skip

    @property
    def late(self) -> dict[str, int]:
        """How many verdicts came too late, by kind."""
        return self._worker.late_by_kind

    def run(self, *, until_drained: bool) -> None:
        """Work until the end; raises what made it impossible to go on."""
        if until_drained:
            threading.Thread(target=self._stop_when_drained, daemon=True).start()
        self._worker.run()
        if self._fault is not None:
            raise self._fault

    def _handle(self, job: Job) -> bytes | None:
        self._note(+1)
        try:
            return self._task(job)
        except Impossible as impossible:
            self._fault = impossible.__cause__
            self._worker.stop()
            raise Release from impossible
        finally:
            self._note(-1)
            self._count_down()

    def _count_down(self) -> None:
        if self._left is not None:
            self._left -= 1
            if not self._left:
                self._worker.stop()

    def _note(self, more: int) -> None:
        with self._change:
            self._running += more
            self._stirred = True
            self._change.notify_all()

    def _stop_when_drained(self) -> None:
        while self._has_stirred() or not self._is_empty():
            pass
        self._worker.stop()

    def _has_stirred(self) -> bool:
        """Whether a job runs, or came within the time; returns when none runs any more."""
        with self._change:
            stirred = self._change.wait_for(lambda: self._stirred, _DRAINED)
            self._change.wait_for(lambda: not self._running)
            self._stirred = False
        return stirred

    def _is_empty(self) -> bool:
        """Ask: it may be the broker that is not there, rather than jobs."""
        try:
            with self._session.client() as client:
                return not client.queue(self._queue)["ready"]
        except SluiceError:
            return False
