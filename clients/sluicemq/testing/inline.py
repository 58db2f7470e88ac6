"""Workers without threads: they run handlers where a test calls ``run_pending``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any, Final, Self

from sluicemq import aio, job, tracing
from sluicemq.app import App
from sluicemq.protocol import wire
from sluicemq.protocol.errors import LeaseLostError, Reject, Requeue, Retry
from sluicemq.testing.queue import MemoryQueue, MemoryWorker
from sluicemq.testing.session import delivered_row
from sluicemq.transport.assignment import JobVerdict
from sluicemq.verdicts import Verdicts
from sluicemq_broker.doors import verdict_entry
from sluicemq_broker.queue import Delivery

if TYPE_CHECKING:
    from sluicemq.testing.broker import MemoryBroker

#: The tasks of an app, or handlers by their queues.
Handlers = App | Mapping[str, Callable[[Any], Any]]

#: Exceptions by which a handler says what becomes of its job.
_MEANT: Final = (Reject, Retry, Requeue)


def handlers_of(given: Sequence[Handlers], *, in_loop: bool) -> dict[str, Callable[[Any], Any]]:
    """Return the handler of each queue."""
    found: dict[str, Callable[[Any], Any]] = {}
    for app in given:
        if isinstance(app, App):
            app._check()
            handler: Callable[[Any], Any] = app.handler.in_loop if in_loop else app.handler
            found.update(dict.fromkeys(app._queues(), handler))
        else:
            found.update(app)
    return found


class InlineWorker:
    """Takes the jobs of some queues one by one. ``failures``: what handlers have raised."""

    def __init__(self, broker: MemoryBroker, handlers: Mapping[str, Callable[[Any], Any]]) -> None:
        self.failures: list[BaseException] = []
        self._broker = broker
        self._handlers = handlers
        self._workers: dict[str, MemoryWorker] = {}
        self._inbox: deque[tuple[MemoryQueue, Delivery]] = deque()

    def run(self) -> int:
        """Run handlers until no job is due; return how many have run."""
        count = 0
        with self:
            while found := self._next():
                queue, delivery = found
                verdicts = self._verdicts(self._watched(self._handlers[queue.name]))
                self._settle(queue, verdicts.on(self._job(job.Job, queue, delivery)))
                count += 1
        return count

    async def run_in_loop(self) -> int:
        """Await handlers in this event loop until no job is due; return how many have run."""
        count = 0
        with self:
            while found := self._next():
                queue, delivery = found
                self._settle(queue, await self._awaited(queue, self._job(aio.Job, queue, delivery)))
                count += 1
        return count

    def __enter__(self) -> Self:
        with self._broker.changes():
            self._broker.queues.created.append(self._attach)
            for queue in list(self._broker.queues.known.values()):
                self._attach(queue)
        return self

    def __exit__(self, *_error: object) -> None:
        with self._broker.changes():
            self._broker.queues.created.remove(self._attach)
            for name, worker in self._workers.items():
                if queue := self._broker.queues.known.get(name):
                    queue.leave(worker, died=False)

    def _attach(self, queue: MemoryQueue) -> None:
        if queue.name in self._handlers and queue.name not in self._workers:
            worker = MemoryWorker("run_pending", 1, partial(self._take, queue))
            worker.concurrency = 1
            self._workers[queue.name] = worker
            queue.attach(worker)

    def _take(self, queue: MemoryQueue, deliveries: Sequence[Delivery]) -> None:
        self._inbox.extend((queue, delivery) for delivery in deliveries)

    def _next(self) -> tuple[MemoryQueue, Delivery] | None:
        """Take the job that was accepted first of those that the queues have handed out."""
        if not self._inbox:
            self._broker.flush()  # what handlers have pushed
        with self._broker.lock:
            if not self._inbox:
                return None
            first = min(self._inbox, key=lambda entry: entry[1].job.seq)
            self._inbox.remove(first)
            return first

    def _job(self, kind: type[job.Job], queue: MemoryQueue, delivery: Delivery) -> job.Job:
        def extend(_job: Any, seconds: float) -> None:
            with self._broker.changes():
                if not queue.extend(delivery.receipt, self._workers[queue.name], seconds):
                    raise LeaseLostError("the delivery has ended")

        def note(_job: Any, progress: list[Any]) -> None:
            with self._broker.changes():
                queue.note_progress(delivery, *progress)

        offset = monotonic() - self._broker.now
        return kind.delivered(queue.name, delivered_row(delivery), 0, extend, note, offset)

    def _verdicts(self, handler: Callable[[Any], Any]) -> Verdicts:
        return Verdicts(handler, self._broker.endpoint, pop=False, on_unusable=self.failures.append)

    def _watched(self, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def handle(given: job.Job) -> Any:
            try:
                return handler(given)
            except _MEANT:
                raise
            except BaseException as error:
                self.failures.append(error)
                raise

        return handle

    async def _awaited(self, queue: MemoryQueue, given: job.Job) -> JobVerdict:
        handler: Callable[[Any], Awaitable[Any]] = self._handlers[queue.name]
        verdicts = self._verdicts(handler)
        try:
            return verdicts.of_result(given, await handler(given))
        except asyncio.CancelledError:
            self._settle(queue, JobVerdict(given, wire.RELEASE, delay=0.0))
            raise
        except BaseException as error:  # noqa: BLE001 - the job must be given back
            if not isinstance(error, _MEANT):
                self.failures.append(error)
            return verdicts.of_error(given, error)

    def _settle(self, queue: MemoryQueue, verdict: JobVerdict) -> None:
        row = wire.verdict_row(
            verdict.job.receipt, verdict.verb, verdict.detail, verdict.delay, verdict.onward, verdict.options
        )
        with self._broker.changes():
            problem = queue.settle(verdict_entry(row))
        if problem is not None:
            self.failures.append(problem)
        if verdict.span is not None:
            tracing.settled([(verdict.span, problem)], time_ns())
