"""One run of a task at a worker."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Any, Final

from sluicemq import forks
from sluicemq.app.step import Plan
from sluicemq.app.task import Task
from sluicemq.job import Job
from sluicemq.time_limits import Interruptible, SoftTimeLimitError
from sluicemq.transport.native import is_patched


class TaskTimeoutError(SoftTimeLimitError):
    """A run took longer than its task's ``timeout``, or its job's soft time limit; raised in the function."""


class Loop:
    """An event loop in a thread, which begins when it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begin()
        forks.on_fork(self, Loop._begin)

    def _begin(self) -> None:
        """Begin without a loop; in the child of a fork, too, because its thread is the parent's."""
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        """Return the loop, which runs; raises RuntimeError where gevent has replaced the threads."""
        if is_patched():
            raise RuntimeError(
                "gevent has replaced the threads of this process, so no event loop runs beside it: "
                "run tasks that are coroutines in a process without gevent, as `sluicemq work` does"
            )
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True).start()
            return self._loop


_coroutines: Final = Loop("sluicemq-coroutines")


class TaskRun(Interruptible):
    """One run of a task: ``task``, ``job``, and the ``args`` and ``kwargs`` of the function.

    ``then``: the steps of a chain behind it. ``notes``: what a middleware keeps from ``before`` to ``after``.
    """

    def __init__(
        self,
        task: Task[..., Any],
        job: Job,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        then: list[Plan],
    ) -> None:
        super().__init__()
        self.task = task
        self.job = job
        self.args = args
        self.kwargs = kwargs
        self.then = then
        self.notes: dict[Any, Any] = {}

    def do(self) -> Any:
        """Call the function, and return its result; a coroutine runs in the loop that all of them share."""
        if not self.task.is_coroutine:
            return self.call(self.task.function, *self.args, **self.kwargs)
        return asyncio.run_coroutine_threadsafe(self.do_in_loop(), _coroutines.get()).result()

    async def do_in_loop(self) -> Any:
        """Await the function, a coroutine function, in this event loop, and return its result."""
        loop = asyncio.get_running_loop()
        running = loop.create_task(self.task.function(*self.args, **self.kwargs))
        with self.stopping(lambda _error: loop.call_soon_threadsafe(running.cancel)):
            try:
                return await running
            except asyncio.CancelledError:
                if self.stopped_by is not None and running.cancelled():
                    raise self.stopped_by from None
                raise


#: The run that this thread, or this coroutine, is in.
current: Final[ContextVar[TaskRun | None]] = ContextVar("current", default=None)
