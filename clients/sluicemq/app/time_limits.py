"""Time limits of tasks: soft ones in the function, hard ones for its process."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

from sluicemq.app.middleware import Middleware
from sluicemq.app.run import Loop, TaskRun, TaskTimeoutError
from sluicemq.app.step import TIMEOUT
from sluicemq.app.task import LEEWAY
from sluicemq.complaints import log
from sluicemq.protocol.durations import Duration, check_span, in_seconds
from sluicemq.transport.native import is_patched

#: Exit status of a process that a hard limit has ended.
HARD_LIMIT_STATUS: Final = 70


class TimeLimits(Middleware):
    """Raises :class:`~sluicemq.TaskTimeoutError` in a function that takes longer than its ``timeout``.

    A coroutine is cancelled. The job is given back, and comes again after its back-off. A thread that is in
    a call of C, such as a long query, gets the exception when that returns. ``hard``: so long after the
    ``timeout`` the process is ended, whatever it does: up to 10 seconds, None for never. Its other jobs go
    back to the broker, too. Threads of gevent have no limits.
    """

    def __init__(self, *, hard: Duration | None = None) -> None:
        if hard is not None:
            check_span("hard", hard)
        self._hard = None if hard is None else in_seconds(hard)
        if self._hard is not None and not 0 < self._hard < LEEWAY - 5:
            raise ValueError(f"hard is more than 0 and less than {LEEWAY - 5:g} seconds")
        self._clock = Loop("sluicemq-time-limits")

    def before(self, run: TaskRun) -> None:
        """Set the alarm."""
        given = run.job.headers.get(TIMEOUT)
        seconds = given if isinstance(given, int | float) else run.task.timeout
        if seconds is not None and not is_patched():
            loop = self._clock.get()
            run.notes[self] = alarm = _Alarm(run, loop, seconds, self._hard)
            loop.call_soon_threadsafe(alarm.set)

    def after(self, run: TaskRun, result: Any) -> None:  # noqa: ARG002 - the hook's
        """Take the alarm back."""
        if self in run.notes:
            run.notes[self].take_back()

    def on_error(self, run: TaskRun, error: BaseException) -> None:
        """Take the alarm back, and say in a time-out how long the run took."""
        self.after(run, None)
        if isinstance(error, TaskTimeoutError) and not error.args and self in run.notes:
            error.args = (f"{run.task.kind} ran for longer than {run.notes[self].seconds:g} s",)


class _Alarm:
    """The limits of one run; called in the thread of the loop, except for ``take_back``."""

    def __init__(
        self, run: TaskRun, loop: asyncio.AbstractEventLoop, seconds: float, hard: float | None
    ) -> None:
        self.seconds = seconds
        self._run = run
        self._loop = loop
        self._hard = hard
        self._next: asyncio.TimerHandle | None = None
        self._over = False

    def set(self) -> None:
        if not self._over:
            self._next = self._loop.call_later(self.seconds, self._soft)

    def take_back(self) -> None:
        self._over = True
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def _soft(self) -> None:
        if self._over:
            return
        self._run.interrupt(TaskTimeoutError)
        if self._hard is not None:
            self._next = self._loop.call_later(self._hard, self._end)

    def _end(self) -> None:
        if not self._over:
            job = self._run.job
            log.critical(
                "job %s of queue %s (%s) did not end %g s after its time-out: this process ends",
                job.id, job.queue, self._run.task.kind, self._hard,
            )  # fmt: skip
            os._exit(HARD_LIMIT_STATUS)
