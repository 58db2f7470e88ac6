"""Tasks: functions that are called by jobs, with their arguments.

``app`` declares them, ``task`` pushes them, ``signature`` makes JSON of their arguments and back, ``runner``
calls them at a worker. ``flows`` puts several behind and beside each other. ``supervisor`` and ``process``
are ``sluicemq work app:tasks``.
"""

from sluicemq.app.app import App
from sluicemq.app.flows import chain, group
from sluicemq.app.middleware import Middleware
from sluicemq.app.run import TaskRun, TaskTimeoutError
from sluicemq.app.sentry import Sentry
from sluicemq.app.signature import PREVIOUS
from sluicemq.app.step import Step
from sluicemq.app.task import Task
from sluicemq.app.telemetry import Telemetry
from sluicemq.app.time_limits import TimeLimits

__all__ = [
    "PREVIOUS",
    "App",
    "Middleware",
    "Sentry",
    "Step",
    "Task",
    "TaskRun",
    "TaskTimeoutError",
    "Telemetry",
    "TimeLimits",
    "chain",
    "group",
]
