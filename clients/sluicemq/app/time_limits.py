"""The time-outs of tasks: soft ones in the function, hard ones for its process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from sluicemq.app.middleware import Middleware
from sluicemq.app.run import TaskRun, TaskTimeoutError
from sluicemq.app.step import TIMEOUT
from sluicemq.app.task import LEEWAY
from sluicemq.complaints import log
from sluicemq.protocol.durations import Duration, check_span, in_seconds
from sluicemq.time_limits import Alarm


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

    def before(self, run: TaskRun) -> None:
        """Set the alarm."""
        given = run.job.headers.get(TIMEOUT)
        seconds = given if isinstance(given, int | float) else run.task.timeout
        if seconds is not None:
            run.notes[self] = limit = _Limit(run, seconds, self._hard)
            limit.alarm.__enter__()

    def after(self, run: TaskRun, result: Any) -> None:  # noqa: ARG002 - the hook's
        """Take the alarm back."""
        if self in run.notes:
            run.notes[self].alarm.__exit__()

    def on_error(self, run: TaskRun, error: BaseException) -> None:
        """Take the alarm back, and say in a time-out how long the run took."""
        self.after(run, None)
        if isinstance(error, TaskTimeoutError) and not error.args and self in run.notes:
            run.notes[self].describe(error)


class _Limit:
    """The limits of one run."""

    def __init__(self, run: TaskRun, seconds: float, hard: float | None) -> None:
        self._run = run
        self._seconds = seconds
        self._hard = hard
        self._is_reached = False
        steps: list[tuple[float, Callable[[], object]]] = [(seconds, self._interrupt)]
        self.alarm = Alarm(steps if hard is None else [*steps, (seconds + hard, self._end)])

    def describe(self, error: TaskTimeoutError) -> None:
        """Say how long the run took, if it was interrupted for this limit."""
        if self._is_reached:
            error.args = (f"{self._run.task.kind} ran for longer than {self._seconds:g} s",)

    def _interrupt(self) -> None:
        self._is_reached = self._run.interrupt(TaskTimeoutError)

    def _end(self) -> None:
        job = self._run.job
        log.critical(
            "job %s of queue %s (%s) did not end %g s after its time-out: this process ends",
            job.id, job.queue, self._run.task.kind, self._hard,
        )  # fmt: skip
        # Exit status of a process that a hard limit has ended
        os._exit(70)
