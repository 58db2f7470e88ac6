"""Names of tasks in the spans of OpenTelemetry."""

from __future__ import annotations

from typing import Any

from sluicemq.app.middleware import Middleware
from sluicemq.app.run import TaskRun


class Telemetry(Middleware):
    """Gives the span of each run the name of its task; needs ``opentelemetry-api``.

    A worker makes that span itself, where a program traces: ``process mail`` is then ``process send_mail``,
    with the attribute ``sluicemq.kind``. The function runs in it, also a coroutine.
    """

    def __init__(self) -> None:
        from opentelemetry import trace  # noqa: PLC0415 - OpenTelemetry is optional

        self._current: Any = trace.get_current_span

    def before(self, run: TaskRun) -> None:
        """Name the span."""
        span = self._current()
        span.update_name(f"process {run.task.kind}")
        span.set_attribute("sluicemq.kind", run.task.kind)
