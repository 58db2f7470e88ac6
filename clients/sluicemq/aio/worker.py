"""Workers for asyncio: each job is a task."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Final, TypeAlias, Unpack, cast

from sluicemq import forks, handlers, tracing, verdicts, worker
from sluicemq.aio.job import Job, JobsOfTasks, PoppedJobsOfTasks
from sluicemq.aio.life import Life, stop_signals
from sluicemq.aio.loop import LoopMailbox, Room, in_thread
from sluicemq.aio.watch import Watch
from sluicemq.arguments import checked
from sluicemq.codec import CodecArgument
from sluicemq.complaints import complain, log
from sluicemq.forward import FanOut, Forward
from sluicemq.job import Job as JobOfThreads
from sluicemq.protocol.errors import SluiceError
from sluicemq.time_limits import Interruptible, limited, log_hung
from sluicemq.transport.access import Access, Broker
from sluicemq.transport.assignment import Assignment, JobVerdict, not_begun
from sluicemq.transport.credentials import AccessOptions
from sluicemq.transport.pop import PopAssignment
from sluicemq.worker import STOP_TIMEOUT
from sluicemq.worker_queues import QueueOrder, Queues

#: Seconds that cancelled handlers have to end, and the last verdicts to be answered.
_END_WITHIN: Final = 2.0

Result: TypeAlias = bytes | Forward | FanOut | None
#: Called for each job; with ``in_threads`` a plain function, else an ``async def``.
Handler: TypeAlias = Callable[[Job], Awaitable[Result]] | Callable[[JobOfThreads], Result]


def check(handler: Any) -> None:
    """Raise TypeError for a handler that is no ``async def``; the error names it."""
    if not callable(handler):
        raise TypeError(f"a handler is called with each job; {type(handler).__name__} can't be called")
    if inspect.isasyncgenfunction(handler):
        raise TypeError(f"the handler {_name(handler)} yields, and a job has one result: return it")
    if not any(map(inspect.iscoroutinefunction, (handler, type(handler).__call__))):
        raise TypeError(
            f"the handler {_name(handler)} is no async def: make it one, or give in_threads=True, which runs "
            "a plain def in threads"
        )


def _check_plain(handler: Any) -> None:
    if inspect.iscoroutinefunction(handler):
        raise TypeError(f"the handler {_name(handler)} is an async def: give it without in_threads")
    handlers.check(handler)


def _name(handler: Any) -> str:
    while isinstance(handler, functools.partial):
        handler = handler.func
    return getattr(handler, "__qualname__", type(handler).__name__)


def _not_awaited(what: str) -> TypeError:
    return TypeError(f"the handler {what}, which nobody awaits: write 'return await ...'")


class _VerdictsOfTasks(verdicts.Verdicts):
    """Awaits the handler of a worker for each job."""

    _unusable = staticmethod(_not_awaited)

    async def of(self, job: Any) -> JobVerdict:
        """Have a job handled, and return the verdict on it; raises CancelledError only."""
        spans = tracing.current()
        job.began = monotonic()
        handler: Any = self._handler if job.time_limits is None else self._within_limits
        try:
            if spans is None:
                return self.of_result(job, await handler(job))
            with spans.processing(job, self._endpoint):
                verdict = self.of_result(job, await handler(job))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - also SystemExit: the job must be given back
            verdict = self.of_error(job, error)
        return verdict if spans is None else self.traced(spans, job, verdict)

    async def _within_limits(self, job: Any) -> Any:
        """Await the handler, within the time limits of the job; its task is the current one."""
        handler: Any = self._handler
        loop, task, run = asyncio.get_running_loop(), asyncio.current_task(), Interruptible()

        def cancel() -> None:
            if run.is_running and task is not None:
                task.cancel()

        with (
            limited(job, run.interrupt, self._on_hung),
            run.stopping(lambda _error: loop.call_soon_threadsafe(cancel)),
        ):
            try:
                return await handler(job)
            except asyncio.CancelledError:
                if run.stopped_by is None or job.is_cancelled or task is None or task.uncancel():
                    raise
                raise run.stopped_by from None


class _Core(worker.Worker):
    """A worker of threads, whose jobs come in the event loop, and are tasks there."""

    _check = staticmethod(check)
    _open_mailbox = staticmethod(LoopMailbox)
    _Verdicts = _VerdictsOfTasks
    _Assignment: type[Assignment] = JobsOfTasks
    _PopAssignment: type[PopAssignment] = PoppedJobsOfTasks
    _verdicts: _VerdictsOfTasks

    def begin(self) -> None:
        """Begin to work, in this loop and with these context variables."""
        self._started_in = forks.generation
        self.loop, self._context = asyncio.get_running_loop(), contextvars.copy_context()
        self._free = list(range(self._concurrency))
        self.tasks: dict[asyncio.Task[None], int] = {}
        """The tasks of handlers, and the place of each in ``at_work``."""
        self._changes = Room()
        self._hurries = False
        self.to_stop = asyncio.Event()
        self._stop_task: asyncio.Task[None] | None = None
        self._task_name = f"sluicemq handler {_name(self._handler)}"
        self._watch = Watch(self._named, self._cut_off)
        for share in self._shares.values():
            share.alone.join(share)
        for connection in self._connections:
            connection.start()

    async def stopped(self, timeout: float | None) -> bool:
        """Stop in order, as ``stop`` does; cancelled, handlers are cancelled at once."""
        self.to_stop.set()
        inside = asyncio.current_task() in self.tasks
        if self._stop_task is None:
            seconds = self._stop_timeout if timeout is None else timeout
            if inside and not self._pop:
                self._begin_no_more()
            self._stop_task = self.loop.create_task(self._stop_tasks(seconds), name="sluicemq-stop")
        if inside:
            return False
        try:
            await asyncio.shield(self._stop_task)
        except asyncio.CancelledError:
            self.hurry()
            raise
        return not self.tasks

    def hurry(self) -> None:
        """Wait for handlers no longer: cancel them."""
        self._hurries = True
        for task in self.tasks:
            task.cancel("the worker stops")
        self._changes.wake_first()

    # ------------------------------------------------------------------ from the mailbox

    def _on_jobs(self, count: int) -> None:
        if self.loop.is_closed():
            self._ending = True
        super()._on_jobs(count)
        if not self._ending:
            self._begin_jobs()

    def _on_failure(self, error: SluiceError) -> None:
        super()._on_failure(error)
        self.to_stop.set()

    def _on_unusable(self, error: TypeError) -> None:
        self._failure = error
        log.error("worker of queue %s stops: %s", self.queue, error)
        self._begin_no_more()
        self.to_stop.set()

    def _on_hung(self, job: JobOfThreads) -> None:
        """Stop; called in a thread, as the loop itself may hang."""
        self._hung += 1
        self._failure = log_hung(job)
        self._begin_no_more()
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.to_stop.set)

    def _stop_as_ordered(self) -> None:
        log.info("worker of queue %s stops: an operator wants it", self.queue)
        self._begin_no_more()
        self.to_stop.set()

    # ------------------------------------------------------------------ tasks

    def _begin_jobs(self) -> None:
        while self._free and (job := self._next_job()) is not None:
            number = self._free.pop()
            self._at_work[number] = job
            task = self.loop.create_task(
                self._work_on(number, job), name=self._task_name, context=self._context.copy()
            )
            self.tasks[task] = number
            job.source.when_cancelled(job, task.cancel)
            task.add_done_callback(self._task_ended)

    def _cut_off(self) -> None:
        """Disconnect, as the event loop was closed: others get the jobs."""
        log.error("the event loop of the worker of queue %s was closed before the worker", self.queue)
        self._ending = True
        for connection in self._connections:
            connection.close()

    def _named(self, task: asyncio.Task[Any]) -> str:
        """Return what a task does; empty if it is none of these."""
        job = self._at_work[self.tasks[task]] if task in self.tasks else None
        return f"the handler {_name(self._handler)} of job {job.id} of queue {job.queue}" if job else ""

    async def _work_on(self, number: int, job: JobOfThreads) -> None:
        if job.is_held and (not job.source.doubtful or await in_thread(self._may_begin, job)):
            if monotonic() >= job.source.late_from:
                job.source.begin(job)
            verdict = await self._verdicts.of(job)
            self._at_work[number] = None
            self._settle(verdict)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        number = self.tasks.pop(task)
        job, self._at_work[number] = self._at_work[number], None
        try:
            task.result()
        except BaseException as error:  # noqa: BLE001 - the job must be given back
            if job is not None:
                self._settle(self._of_cut_off(job, error))
        self._free.append(number)
        self._begin_jobs()
        if self._ending or self._stopped:
            self._changes.wake_first()

    def _of_cut_off(self, job: JobOfThreads, error: BaseException) -> JobVerdict:
        """Give back a job whose task was cancelled: uncounted if the worker stops, else as a failure."""
        if isinstance(error, asyncio.CancelledError) and (self._hurries or job.is_cancelled):
            return not_begun(job)
        return self._verdicts.of_error(job, error)

    # ------------------------------------------------------------------ stopping

    async def _stop_tasks(self, seconds: float) -> None:
        self._stopped = True
        try:
            await self._end_in_order(seconds)
        finally:
            self._watch.end()
            for share in self._shares.values():
                share.alone.leave(share)
            ends = [in_thread(connection.close) for connection in self._connections]
            await asyncio.gather(*ends)

    async def _end_in_order(self, seconds: float) -> None:
        if self._on_stop is not None:
            await self._call_stop(self._on_stop, seconds)
        if self._pop:
            self._ask_for_no_more()
            await self._verdicts_answered()
            await self._at_rest(lambda: not (self._inbox or self.tasks), seconds)
        self._give_back_the_rest()
        await self._at_rest(lambda: len(self.tasks) <= self._hung, seconds)
        if self.tasks:
            log.warning(
                "%d handlers still run; they are cancelled, and their jobs given back", len(self.tasks)
            )
            self.hurry()
        await self._changes.wait(lambda: not self.tasks, _END_WITHIN)
        await self._verdicts_answered()

    async def _at_rest(self, rests: Callable[[], bool], seconds: float) -> bool:
        await self._changes.wait(lambda: rests() or self._hurries, seconds)
        return rests()

    async def _call_stop(self, on_stop: Callable[[], Any], seconds: float) -> None:
        try:
            async with asyncio.timeout(max(seconds, 1.0)):
                if inspect.isawaitable(returned := on_stop()):
                    await returned
        except Exception:  # noqa: BLE001 - the worker stops nevertheless
            complain("on_stop of the worker of queue %s failed; the worker stops nevertheless", self.queue)

    async def _verdicts_answered(self) -> None:
        answered: list[asyncio.Event] = []
        for assignment in self._assignments:
            with suppress(SluiceError):
                settled = asyncio.Event()
                assignment.call(assignment.when_settled, settled.set)
                answered.append(settled)
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_WITHIN):
                for settled in answered:
                    await settled.wait()


class _CoreOfThreads(_Core):
    """Runs plain handlers in threads, whose jobs wait as in a worker of threads."""

    _check = staticmethod(_check_plain)
    _Assignment, _PopAssignment = Assignment, PopAssignment

    def _begin(self) -> None:
        super()._begin()
        self._verdicts._handler = self._in_thread

    def _in_thread(self, job: JobOfThreads) -> Any:
        return in_thread(contextvars.copy_context().run, self._called, job)

    def _called(self, job: JobOfThreads) -> Any:
        if job.time_limits is None:
            return self._handler(job)
        run = Interruptible()
        job.interrupt = run.interrupt
        return run.call(self._handler, job)


@checked()
class Worker(Life[_Core]):
    """Takes jobs of a queue, or of several, and awaits ``handler(job)`` for up to ``concurrency`` at a time.

    The handler is an ``async def``. Its end settles the job as that of a :class:`sluicemq.Worker` does: it
    returns bytes or None, a :class:`~sluicemq.Forward` or a :class:`~sluicemq.FanOut`, or raises
    :class:`~sluicemq.Reject`, :class:`~sluicemq.Retry`, :class:`~sluicemq.Requeue` or any other exception.
    Other arguments are those of :class:`sluicemq.Worker`.

    Each job is a task, with a copy of the context variables that the worker was started with. The worker has
    ``concurrency`` jobs at a time, or ``prefetch`` if that is more. A handler that blocks the event loop for
    more than a second is named in the log. With ``in_threads=True`` the handler is a plain function, which
    runs in a thread for each job.

    ``async with Worker(...)``, or ``await worker.run()``, which stops at SIGTERM or SIGINT, or when its task
    is cancelled. A worker that stops takes no more jobs, and waits ``stop_timeout`` seconds for its handlers.
    Then it cancels them and gives their jobs back, which counts no attempt. If the stop is cancelled, it does
    that at once. A handler whose task is cancelled otherwise has failed. ``on_stop`` may be an ``async def``.
    """

    def __init__(
        self,
        queue: Queues,
        handler: Handler,
        *,
        order: QueueOrder = "weights",
        concurrency: int = 100,
        prefetch: int = 1,
        stop_timeout: float = STOP_TIMEOUT,
        in_threads: bool = False,
        pop: bool = False,
        wait: bool = True,
        on_stop: Callable[[], Any] | None = None,
        name: str | None = None,
        codec: CodecArgument | None = None,
        endpoint: Broker = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        kind = _CoreOfThreads if in_threads else _Core
        kind._check(handler)
        self._make = functools.partial(
            kind,
            queue,
            cast("Any", handler),
            order=order,
            concurrency=concurrency,
            prefetch=prefetch,
            stop_timeout=stop_timeout,
            pop=pop,
            wait=wait,
            on_stop=on_stop,
            name=name,
            codec=codec,
        )
        self._access = Access.at_start(endpoint, access)

    def _made(self) -> _Core:
        core = super()._made()
        core.begin()
        return core

    @property
    def late(self) -> int:
        """Return how many verdicts came too late: the job was no longer this worker's."""
        return self._here.late

    @property
    def failed(self) -> int:
        """Return how many popped jobs were not done: their handler raised, or there was no time for them."""
        return self._here.failed

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT, ``stop()`` by another task, or a cancel; then finish or give back.

        Signals are caught in the main thread only; a second one cancels the handlers. Raises the error that
        made it impossible to go on, such as :class:`~sluicemq.BadQueueError`.
        """
        async with self:
            core = self._core

            def stop() -> None:
                if core.to_stop.is_set():
                    core.hurry()
                core.to_stop.set()

            with stop_signals(stop):
                await core.to_stop.wait()
                await core.stopped(None)

    async def stop(self, timeout: float | None = None) -> bool:
        """Take no more jobs, wait for running handlers, settle, give back the rest, disconnect.

        ``timeout`` (None: ``stop_timeout``) is for the handlers, which are cancelled then. Returns True if
        all have ended. May be called again. In a handler it returns False at once.
        """
        return True if self._loop is None else await self._here.stopped(timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Stop, and raise the error that made it impossible to go on."""
        await self.stop(timeout)
        if self._loop is not None and self._core._failure is not None:
            raise self._core._failure
