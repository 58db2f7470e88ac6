"""A broker in the memory of a test."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self, Unpack

import msgspec

from sluicemq.app import App, Task
from sluicemq.app.step import KIND
from sluicemq.client import Client
from sluicemq.job import Job
from sluicemq.producer import Producer
from sluicemq.protocol.durations import Duration, check_span, in_seconds
from sluicemq.protocol.errors import TimeoutError
from sluicemq.protocol.options import JobOptions
from sluicemq.receipt import PushReceipt
from sluicemq.testing.apps import at_broker
from sluicemq.testing.inline import Handlers, InlineWorker, handlers_of
from sluicemq.testing.queues import MemoryQueues
from sluicemq.testing.session import Session
from sluicemq.testing.streams import MemoryStreams
from sluicemq.transport import endpoints, memory_link
from sluicemq.transport.memory_link import MemoryLink
from sluicemq_broker.job import Job as StoredJob

_numbers: Final = itertools.count(1)
#: Arguments that a test does not name.
_ANY: Final = object()


@dataclass(frozen=True, slots=True)
class PushedJob:
    """A job that a client has pushed. ``delay``: seconds until it is due, at the time of the push."""

    queue: str
    id: str
    payload: bytes
    headers: dict[str, Any]
    priority: int
    delay: float
    group: str | None

    def value(self) -> Any:
        """Return the payload as a handler gets it with ``job.value()``."""
        return Job(self.payload, headers=self.headers).value()


class MemoryBroker:
    """A broker in the memory of this process, with a clock that the test moves.

    Producers, workers, clients and apps connect to its ``endpoint``, those of :mod:`sluicemq.aio` too. Jobs
    live as at a real broker, by its own decisions. Waits of a job (a delay, a back-off, a time-out, a
    schedule) pass in :meth:`advance` only. ``now``: Unix seconds of its clock at the begin.
    """

    def __init__(self, *, now: float | None = None) -> None:
        self.name = f"memory-{next(_numbers)}"
        self.endpoint = f"{endpoints.IN_MEMORY}{self.name}"
        """For ``endpoint=`` of the classes, and for ``SLUICEMQ_ENDPOINT``."""
        self.lock = threading.RLock()
        self.queues = MemoryQueues(now)
        self.streams = MemoryStreams(self.queues.clock)
        self.sessions: set[Session] = set()
        self.max_job_bytes = self.queues.max_job_bytes
        self._change = threading.Condition(self.lock)
        self._pushed: list[PushedJob] = []
        self._apps: list[App] = []
        self._client: Client | None = None
        self._at_work = False
        memory_link.brokers[self.endpoint] = self

    # ------------------------------------------------------------------ for tests

    @property
    def now(self) -> float:
        """Return the time of its clock, in Unix seconds."""
        return self.queues.clock.now()

    @property
    def client(self) -> Client:
        """Return a client of this broker, to look at jobs and to give orders."""
        if self._client is None:
            self._client = Client(endpoint=self.endpoint)
        return self._client

    def advance(self, seconds: Duration) -> None:
        """Let time pass: ``broker.advance("60s")``. What is due by then is ready, and runs are pushed."""
        check_span("seconds", seconds)
        self.flush()
        with self.changes():
            self.queues.advance(in_seconds(seconds))

    def run_pending(self, *handlers: Handlers, raises: bool = False, timeout: float = 10.0) -> int:
        """Run the handlers of all jobs that are due, here and now, with the jobs that they push.

        ``handlers``: apps, or handlers by queue, as ``{"mail": send}``; without any, the apps of
        :meth:`connect`. Workers that are connected are waited for, up to ``timeout`` real seconds. Returns
        how many handlers have run here. ``raises``: raise the first exception of a handler that is no
        Reject, Retry or Requeue, once its job is settled as always.
        """
        self.flush()
        worker = InlineWorker(self, handlers_of(handlers or self._apps, in_loop=False))
        count = worker.run()
        if raises and worker.failures:
            raise worker.failures[0]
        self._wait_for_workers(timeout, alone=not (handlers or self._apps))
        return count

    async def arun_pending(self, *handlers: Handlers, raises: bool = False) -> int:
        """Await the handlers of all jobs that are due, in this event loop, as :meth:`run_pending` runs them.

        Plain functions among the tasks of an app run in a thread.
        """
        self.flush()
        worker = InlineWorker(self, handlers_of(handlers or self._apps, in_loop=True))
        count = await worker.run_in_loop()
        if raises and worker.failures:
            raise worker.failures[0]
        return count

    @contextmanager
    def connect(self, app: App, *, eager: bool = False) -> Iterator[App]:
        """Have an app push to this broker, whatever its endpoint, until the block ends.

        ``eager``: each push runs the job at once, in the thread that pushes, with all that is due then.
        """
        with at_broker(app, self.endpoint, EagerProducer(self) if eager else None):
            self._apps.append(app)
            try:
                yield app
            finally:
                self._apps.remove(app)

    def configure(self, queue: str, **settings: Any) -> None:
        """Set settings of a queue, or with ``"*"`` of all.

        Raises ValueError for a wrong one, and for one that has no effect here.
        """
        with self.changes():
            self.queues.set_settings(queue, settings)

    def pushed(self, what: Task[..., Any] | str) -> list[PushedJob]:
        """Return the jobs that were pushed, of a task or into a queue, the first one first.

        Pushes of apps are waited for; wait yourself for those of other producers.
        """
        self.flush()
        with self.lock:
            return [job for job in self._pushed if _is_of(job, what)]

    def assert_pushed(self, what: Task[..., Any] | str, *args: Any, **keywords: Any) -> PushedJob:
        """Return the first pushed job of a task with these arguments; AssertionError: there is none.

        ``assert_pushed(send_mail, "a@b")``; without arguments any job of the task will do.
        ``assert_pushed("mail", value)`` is for a queue: the value, or the payload in bytes.
        """
        found, wanted = self.pushed(what), _wanted(what, args, keywords)
        for job in found:
            if wanted is _ANY or wanted in (job.payload, _value(job)):
                return job
        name = what if isinstance(what, str) else what.kind
        there = ", ".join(repr(_value(job)) for job in found[-10:]) or "none"
        given = "" if wanted is _ANY else f" with {wanted!r}"
        raise AssertionError(f"no job of {name} was pushed{given}; those that were: {there}")

    def assert_not_pushed(self, what: Task[..., Any] | str, *args: Any, **keywords: Any) -> None:
        """Raise AssertionError if :meth:`assert_pushed` would find a job."""
        try:
            found = self.assert_pushed(what, *args, **keywords)
        except AssertionError:
            return
        raise AssertionError(f"this was pushed: {found}")

    def disconnect(self) -> None:
        """Cut all connections, as a broker does that is killed; clients connect again."""
        with self.changes():
            for session in list(self.sessions):
                session.cut()

    def close(self) -> None:
        """End the broker: its jobs are gone, and nothing listens at its endpoint."""
        if self._client is not None:
            self._client.close()
        memory_link.brokers.pop(self.endpoint, None)
        self.disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # ------------------------------------------------------------------ for links and sessions

    def accept(self, link: MemoryLink) -> Session:
        """Return the session of a new link."""
        with self.changes():
            session = Session(self, link)
            self.sessions.add(session)
            return session

    @contextmanager
    def changes(self) -> Iterator[None]:
        """Hold the lock, and wake those who wait for a change."""
        with self.lock:
            try:
                yield
            finally:
                self._change.notify_all()

    def flush(self) -> None:
        """Wait for what the apps have pushed; raises the first refusal that nobody has seen."""
        for app in self._apps:
            if app._producer is not None:
                # Seconds that a broker in memory takes to answer, at most: its clients have threads
                app._producer.flush(30.0)

    def note_pushed(self, queue: str, jobs: Sequence[StoredJob]) -> None:
        """Note jobs that a client has pushed."""
        for job in jobs:
            delay = max(0.0, job.eligible_at - self.now)
            self._pushed.append(
                PushedJob(queue, job.id, job.payload, dict(job.headers or {}), job.priority, delay, job.group)
            )

    def require_end(self, queue: str, job_id: str) -> None:
        """Raise TimeoutError if the end of a job has to wait until the test lets time pass."""
        with self.lock:
            found: list[Any] = []
            self.queues.known[queue].wait_for_result(job_id, found.append)
            if found or not self._is_at_rest(alone=True):
                return
            stored = self.queues.known[queue].jobs.get(job_id)
            errors = stored.errors if stored else []
        why = f", after {errors[-1]['reason']}" if errors else ""
        raise TimeoutError(
            f"job {job_id} of queue {queue} waits{why}: advance() the clock of the broker, then run_pending()"
        )

    def run_eagerly(self) -> None:
        """Run what is due, unless a handler pushes that does so itself."""
        if not self._at_work:
            self._at_work = True
            try:
                self.run_pending()
            finally:
                self._at_work = False

    def _wait_for_workers(self, timeout: float, *, alone: bool) -> None:
        """Wait until workers have done their jobs; ``alone``: all that is due is theirs."""
        with self._change:
            if not self._change.wait_for(partial(self._is_at_rest, alone=alone), timeout):
                left = {
                    queue.name: queue.count_left for queue in self.queues.known.values() if queue.count_left
                }
                raise TimeoutError(f"after {timeout:g} s jobs are due or at work, by queue: {left}")

    def _is_at_rest(self, *, alone: bool) -> bool:
        queues = self.queues.known.values()
        return not any(queue.deliveries.in_flight or (alone and queue.has_due) for queue in queues)


class EagerProducer(Producer):
    """A producer whose jobs run before a push returns."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        super().__init__(endpoint=broker.endpoint)

    def call(
        self,
        queue: str,
        payload: bytes,
        timeout: float | None = 30.0,
        *,
        id: str | None = None,  # noqa: A002 - as every producer
        **options: Unpack[JobOptions],
    ) -> bytes:
        """Push one job, and return its result; raises TimeoutError at once if that waits for the clock."""
        reply = self.submit(queue, payload, id=id, **options)
        self._broker.require_end(queue, reply.receipt.id)
        return reply.result(timeout)

    def _enqueue(self, receipt: PushReceipt) -> None:
        super()._enqueue(receipt)
        receipt.wait()
        self._broker.run_eagerly()


def _is_of(job: PushedJob, what: Task[..., Any] | str) -> bool:
    if isinstance(what, str):
        return job.queue == what
    return job.headers.get(KIND) == what.kind


def _wanted(what: Task[..., Any] | str, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Return the value of the payload that a test asks for."""
    if not (args or keywords):
        return _ANY
    if isinstance(what, Task):
        return msgspec.json.decode(bytes(what.s(*args, **keywords).plan.arguments))
    (value,) = args
    return value


def _value(job: PushedJob) -> Any:
    try:
        return job.value()
    except ValueError:
        return job.payload
