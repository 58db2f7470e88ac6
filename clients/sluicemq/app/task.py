"""Tasks: functions that jobs call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Self, TypeVar, Unpack, cast

import msgspec

from sluicemq import handlers
from sluicemq.app.signature import Signature
from sluicemq.app.step import TIMEOUT, Plan, Step, plain_options
from sluicemq.protocol.durations import Duration, check_span, in_seconds
from sluicemq.protocol.options import JobOptions
from sluicemq.receipt import PushReceipt
from sluicemq.reply import Reply

if TYPE_CHECKING:
    from sluicemq.app.app import App

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Seconds between a task's time-out and the time at which another worker gets its job.
LEEWAY: Final = 15.0


class TaskOptions(JobOptions, total=False):
    """Options of a task, or of one push of it: those of a job, and these.

    ``retries``: runs after the first one that failed. ``timeout``: longest time of a run.
    """

    id: str | None
    queue: str
    retries: int | None
    timeout: Duration | None


class Task(Generic[_P, _R]):
    """A function whose calls can be pushed: ``send_mail.push("a@b", subject="hi")``.

    ``@app.task`` makes it. Called itself it is the function. The arguments are checked against the
    function's signature and its annotations when they are pushed: TypeError names the wrong one.
    """

    def __init__(
        self, app: App, function: Callable[_P, _R], kind: str, options: TaskOptions, *, bind: bool = False
    ) -> None:
        if handlers.begins_only(function).endswith("generator function"):
            raise TypeError(f"task {kind} yields, and a job has one result: return it")
        functools.update_wrapper(cast("Any", self), function)
        self._app = app
        self._options = options
        self.function = function
        self.kind = kind
        self.bind = bind
        self.signature = Signature(function, bind=bind)
        self.is_coroutine = inspect.iscoroutinefunction(function)
        self._plan = self._planned()

    @property
    def queue(self) -> str:
        """Return the queue of its jobs."""
        return self._options["queue"]

    @property
    def timeout(self) -> float | None:
        """Return the seconds that a run may take; None: no limit of its own."""
        timeout = self._options.get("timeout")
        return None if timeout is None else in_seconds(timeout)

    def __call__(self, *args: _P.args, **keywords: _P.kwargs) -> _R:
        """Call the function, here and now."""
        return self.function(*args, **keywords)

    def options(self, **changes: Unpack[TaskOptions]) -> Self:
        """Return the task with other options for its next push: ``task.options(delay="5m").push(...)``."""
        merged = cast("TaskOptions", {**self._options, **changes})
        return type(self)(self._app, self.function, self.kind, merged, bind=self.bind)

    def s(self, *args: Any, **keywords: Any) -> Step:
        """Return one call as a step, for a chain or a group, or to be pushed; raises TypeError."""
        try:
            payload, takes = self.signature.encode(args, keywords)
        except TypeError as error:
            raise TypeError(f"{self.kind}: {error}") from error
        plan = msgspec.structs.replace(self._plan, arguments=msgspec.Raw(payload), takes=takes)
        return Step(self._app.get_producer, plan, self.signature.result, self._options.get("id"))

    def push(self, *args: _P.args, **keywords: _P.kwargs) -> PushReceipt:
        """Push a call, and return at once; the receipt's ``wait`` returns when the job is stored."""
        return self.s(*args, **keywords).push()

    def call(self, *args: _P.args, **keywords: _P.kwargs) -> Any:
        """Push a call, and wait 30 seconds for its result; ``s(...).call(timeout)`` waits otherwise."""
        return self.s(*args, **keywords).call()

    def submit(self, *args: _P.args, **keywords: _P.kwargs) -> Reply:
        """Push a call, and return a future of the result, whose ``json()`` waits for it."""
        return self.s(*args, **keywords).submit()

    async def apush(self, *args: _P.args, **keywords: _P.kwargs) -> PushReceipt:
        """Push a call, and return when the job is stored."""
        return await self.s(*args, **keywords).apush()

    async def acall(self, *args: _P.args, **keywords: _P.kwargs) -> Any:
        """Push a call, and return its result."""
        return await self.s(*args, **keywords).acall()

    def _planned(self) -> Plan:
        """Return a call without arguments; raises TypeError or ValueError for wrong options."""
        given: dict[str, Any] = {
            key: value
            for key, value in self._options.items()
            if key not in ("id", "queue", "retries", "timeout")
        }
        headers = dict(given.pop("headers", None) or {})
        retries, timeout = self._options.get("retries"), self._options.get("timeout")
        if retries is not None:
            if not isinstance(retries, int) or retries < 0:
                raise ValueError(f"retries is a whole number from 0, not {retries!r}")
            given.setdefault("max_attempts", retries + 1)
        if timeout is not None:
            check_span("timeout", timeout)
            seconds = in_seconds(timeout)
            if seconds <= 0:
                raise ValueError(f"timeout is more than 0 seconds, not {timeout!r}")
            given.setdefault("visibility_timeout", seconds + LEEWAY)
            headers[TIMEOUT] = seconds
        options = plain_options(cast("JobOptions", given))
        return Plan(self.queue, self.kind, msgspec.Raw(b"{}"), options=options, headers=headers)

    def __repr__(self) -> str:
        return f"<Task {self.kind} of queue {self.queue}>"
