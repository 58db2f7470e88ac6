"""Middleware: what happens around each run of a task."""

from __future__ import annotations

from typing import Any

from sluicemq.app.run import TaskRun


class Middleware:
    """Called around each run of a task, in the thread of its handler.

    The ``before`` of an app's middleware are called in their order, ``after`` and ``on_error`` in reverse,
    for those whose ``before`` has been called. What ``before`` raises ends the run as if the task had raised
    it. Exceptions of the other two are logged.
    """

    def before(self, run: TaskRun) -> None:
        """Do something before the function is called."""

    def after(self, run: TaskRun, result: Any) -> None:
        """Do something after the function has returned."""

    def on_error(self, run: TaskRun, error: BaseException) -> None:
        """Do something after the function has raised; also Retry, Requeue and Reject."""
