"""Failures of tasks as events of Sentry."""

from __future__ import annotations

from contextlib import ExitStack
from importlib import import_module
from typing import Any

from sluicemq.app.middleware import Middleware
from sluicemq.app.run import TaskRun
from sluicemq.protocol.errors import Reject, Requeue, Retry


class Sentry(Middleware):
    """Sends failures of tasks to Sentry, with the job's id, queue and kind; needs ``sentry-sdk``.

    The program calls ``sentry_sdk.init`` itself. Each run has a scope of its own. Retry, Requeue and Reject
    are no failures. ``sdk``: used in place of the module ``sentry_sdk``.
    """

    def __init__(self, sdk: Any = None) -> None:
        self._sdk = sdk or import_module("sentry_sdk")

    def before(self, run: TaskRun) -> None:
        """Begin a scope."""
        run.notes[self] = stack = ExitStack()
        scope = stack.enter_context(self._sdk.isolation_scope())
        scope.set_transaction_name(run.task.kind)
        for name, value in (("kind", run.task.kind), ("queue", run.job.queue), ("job", run.job.id)):
            scope.set_tag(f"sluicemq.{name}", value)
        scope.set_context("sluicemq", {"attempt": run.job.attempt, "max_attempts": run.job.max_attempts})

    def after(self, run: TaskRun, result: Any) -> None:  # noqa: ARG002 - the hook's
        """End the scope."""
        run.notes[self].close()

    def on_error(self, run: TaskRun, error: BaseException) -> None:
        """Send the failure, and end the scope."""
        with run.notes[self]:
            if not isinstance(error, Retry | Requeue | Reject):
                self._sdk.capture_exception(error)
