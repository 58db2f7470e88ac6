"""The handler of a worker of tasks: it calls the function that a job names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any

import msgspec

from sluicemq import aio
from sluicemq.aio.loop import in_thread
from sluicemq.app import flows
from sluicemq.app.middleware import Middleware
from sluicemq.app.run import TaskRun, TaskTimeoutError, current
from sluicemq.app.signature import as_json
from sluicemq.app.step import KIND, THEN, Plan
from sluicemq.app.task import Task
from sluicemq.complaints import complain, log
from sluicemq.forward import FanOut, Forward
from sluicemq.job import Job
from sluicemq.protocol.errors import CancelledError, Reject
from sluicemq.protocol.readable import brief
from sluicemq.time_limits import SoftTimeLimitError


class Runner:
    """Runs the task of each job. A job that no function here takes is a dead letter, with the reason."""

    def __init__(self, tasks: Mapping[str, Task[..., Any]], middleware: Sequence[Middleware]) -> None:
        self._tasks = tasks
        self._middleware = middleware

    def __call__(self, job: Job) -> bytes | Forward | FanOut | None:
        """Run the task of a job; raises what the task raises, and Reject."""
        begun = self._begun(job)
        if isinstance(begun, FanOut | Forward):
            return begun
        with self._with_middleware(begun) as results:
            results.append(begun.do())
        return self._ended(begun, results[0])

    async def in_loop(self, job: Job) -> bytes | Forward | FanOut | None:
        """Run the task of a job in this event loop; raises as a call does.

        A plain function runs in a thread, with its middleware: connections to databases belong to threads.
        """
        task = self._tasks.get(str(job.headers.get(KIND)))
        if task is not None and not task.is_coroutine:
            bound = job.for_thread() if isinstance(job, aio.Job) else job
            return await in_thread(copy_context().run, self, bound)
        begun = self._begun(job)
        if isinstance(begun, FanOut | Forward):
            return begun
        with self._with_middleware(begun) as results:
            results.append(await begun.do_in_loop())
        return self._ended(begun, results[0])

    def _begun(self, job: Job) -> TaskRun | FanOut | Forward:
        """Return the run that a job asks for, or what becomes of a group; raises Reject."""
        try:
            then = msgspec.json.decode(job.headers.get(THEN, "[]"), type=list[Plan])
            if job.headers.get(KIND) == flows.GROUP:
                return flows.next_of_group(job, then)
            task = self._task_of(job.headers.get(KIND))
            bound = task.signature.decode(job.payload)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            log.warning("job %s of queue %s can't be called: %s", job.id, job.queue, error)
            raise Reject(f"the job can't be called: {error}") from error
        return TaskRun(task, job, (job, *bound.args) if task.bind else bound.args, bound.kwargs, then)

    @staticmethod
    def _ended(run: TaskRun, result: Any) -> bytes | Forward | FanOut | None:
        if isinstance(result, Forward | FanOut):
            return result
        data = b"" if result is None else as_json(result)
        return flows.onward(run.then, data) if run.then else data or None

    def _task_of(self, kind: object) -> Task[..., Any]:
        task = self._tasks.get(kind) if isinstance(kind, str) else None
        if task is None:
            raise TypeError(f"its kind is {brief(kind)}, and no task here has that")
        return task

    @contextmanager
    def _with_middleware(self, run: TaskRun) -> Iterator[list[Any]]:
        """Call the middleware around a block, which appends the result."""
        token, begun, results = current.set(run), list[Middleware](), list[Any]()
        run.job.interrupt = partial(_interrupt, run)
        if run.job.source is not None:
            run.job.source.when_cancelled(run.job, partial(run.interrupt, CancelledError))
        try:
            for middleware in self._middleware:
                begun.append(middleware)
                middleware.before(run)
            yield results
        except BaseException as error:
            for middleware in reversed(begun):
                _guarded(middleware.on_error, run, error)
            raise
        else:
            for middleware in reversed(begun):
                _guarded(middleware.after, run, results[0])
        finally:
            current.reset(token)


def _interrupt(run: TaskRun, error: type[Exception]) -> None:
    """Interrupt the function at a time limit of the job; its middleware is not interrupted."""
    run.interrupt(TaskTimeoutError if error is SoftTimeLimitError else error)


def _guarded(hook: Callable[[TaskRun, Any], None], run: TaskRun, value: Any) -> None:
    try:
        hook(run, value)
    except Exception:  # noqa: BLE001 - the run has ended as it has
        complain("%s failed around job %s of queue %s", hook.__qualname__, run.job.id, run.job.queue)
