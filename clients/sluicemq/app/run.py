"""One run of a task at a worker."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextvars import ContextVar, copy_context
from typing import Any, Final

from sluicemq import forks
from sluicemq.app.task import Task
from sluicemq.job import Job
from sluicemq.transport.native import is_patched


class TaskTimeoutError(TimeoutError):
    """A run took longer than its task's ``timeout``; raised in the task's function."""


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


class TaskRun:
    """One run of a task: ``task``, ``job``, and the ``args`` and ``kwargs`` of the function.

    ``notes``: for what a middleware keeps from ``before`` to ``after``.
    """

    def __init__(self, task: Task[..., Any], job: Job, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.task = task
        self.job = job
        self.args = args
        self.kwargs = kwargs
        self.notes: dict[Any, Any] = {}
        self._change = threading.Lock()
        self._stop: Callable[[type[Exception]], object] | None = None
        self._stopped_by: type[Exception] | None = None

    def interrupt(self, error: type[Exception]) -> bool:
        """Raise ``error`` in the function; a coroutine is cancelled. False: it does not run."""
        with self._change:
            if self._stop is None or self._stopped_by is not None:
                return False
            self._stopped_by = error
            self._stop(error)
            return True

    def do(self) -> Any:
        """Call the function, and return its result."""
        return self._await() if self.task.is_coroutine else self._call()

    def _call(self) -> Any:
        thread = threading.get_ident()
        self._stop = lambda error: _raise_in(thread, error)
        try:
            return self.task.function(*self.args, **self.kwargs)
        finally:
            with self._change:
                self._stop = None
                if self._stopped_by is not None:
                    _raise_in(thread, None)  # it has been raised, or comes too late

    def _await(self) -> Any:
        loop, done, context = _coroutines.get(), Future[Any](), copy_context()

        def begin() -> None:
            running = loop.create_task(self.task.function(*self.args, **self.kwargs), context=context)
            self._stop = lambda _error: loop.call_soon_threadsafe(running.cancel)
            running.add_done_callback(lambda ended: _hand_over(ended, done))

        loop.call_soon_threadsafe(begin)
        try:
            return done.result()
        except CancelledError:
            if self._stopped_by is not None:
                raise self._stopped_by from None
            raise
        finally:
            with self._change:
                self._stop = None


#: The run that this thread, or this coroutine, is in.
current: Final[ContextVar[TaskRun | None]] = ContextVar("current", default=None)


def _raise_in(thread: int, error: type[Exception] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error and ctypes.py_object(error))


def _hand_over(ended: asyncio.Task[Any], done: Future[Any]) -> None:
    """Give the end of a coroutine to the thread that waits for it."""
    if ended.cancelled():
        done.set_exception(CancelledError())
    elif (error := ended.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(ended.result())
