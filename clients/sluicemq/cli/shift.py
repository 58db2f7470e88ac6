"""One run of ``sluicemq work``: a worker, and what ends it besides a signal."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from sluicemq.cli.output import Invocation
from sluicemq.forward import Forward
from sluicemq.job import Job
from sluicemq.protocol import wire
from sluicemq.protocol.errors import Reject, Requeue, SluiceError
from sluicemq.protocol.wire import ShownState
from sluicemq.worker import Worker

_DRAINED = 1.0  # seconds without a job
_VERDICTS = {"committed": wire.COMMIT, "rejected": wire.REJECT, "rolled_back": wire.ROLLBACK}


class Impossible(Exception):
    """Raised by a task, with the cause: no job can be done, and this job is not the reason."""


class Shift:
    """Gives the jobs of a queue to ``task``, until a signal, the count or the end of the queue."""

    def __init__(
        self, invocation: Invocation, queue: str, task: Callable[[Job], bytes | Forward | None], *,
        prefetch: int, concurrency: int, count: int | None, pop: bool = False, wait_for_queue: bool = False,
        on_stop: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self._invocation = invocation
        self._queue = queue
        self._task = task
        self._left = count
        self._fault: BaseException | None = None
        self._change = threading.Condition()
        self._running = 0
        self._counts: Counter[str] = Counter()
        self._was_busy = False
        self._worker = Worker(
            queue, self._handle, prefetch=prefetch, concurrency=concurrency, pop=pop,
            wait=wait_for_queue, on_stop=on_stop, endpoint=invocation.access,
        )  # fmt: skip

    @property
    def counts(self) -> dict[str, int]:
        """Return the outcomes of the jobs; late verdicts are counted apart."""
        late = self._worker.late_by_kind
        counts = {name: self._counts[verb] - late.get(verb, 0) for name, verb in _VERDICTS.items()}
        if forwarded := self._counts[wire.FORWARD]:
            counts["forwarded"] = forwarded - late.get(wire.FORWARD, 0)
        return counts | ({"too_late": sum(late.values())} if late else {})

    def run(self, *, until_drained: bool) -> None:
        """Work until the end; raises the error that made it impossible to go on."""
        if until_drained:
            threading.Thread(target=self._stop_when_drained, daemon=True).start()
        self._worker.run()
        if self._fault is not None:
            raise self._fault

    def _handle(self, job: Job) -> bytes | Forward | None:
        self._note(+1)
        verdict = wire.ROLLBACK
        try:
            result = self._task(job)
        except Reject:
            verdict = wire.REJECT
            raise
        except Impossible as impossible:
            verdict = wire.RELEASE
            self._fault = impossible.__cause__
            self._worker.stop()
            raise Requeue(delay=0) from impossible
        else:
            verdict = wire.FORWARD if isinstance(result, Forward) else wire.COMMIT
            return result
        finally:
            with self._change:
                self._counts[verdict] += 1
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
            self._was_busy = True
            self._change.notify_all()

    def _stop_when_drained(self) -> None:
        while self._is_busy() or not self._is_empty():
            pass
        self._worker.stop()

    def _is_busy(self) -> bool:
        """Return whether a job runs, or came within the time; waits while one runs."""
        with self._change:
            busy = self._change.wait_for(lambda: self._was_busy, _DRAINED)
            self._change.wait_for(lambda: not self._running)
            self._was_busy = False
        return busy

    def _is_empty(self) -> bool:
        """Return whether the queue is empty, as the broker says: the broker may be gone instead."""
        try:
            with self._invocation.client() as client:
                return not client.sent.queues.get(self._queue)[ShownState.READY]
        except SluiceError:
            return False
