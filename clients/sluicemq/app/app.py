"""Apps: tasks of one program, and how their brokers are reached."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, Unpack, cast, overload

from sluicemq.app.middleware import Middleware
from sluicemq.app.runner import Runner
from sluicemq.app.schedules import Declared, declare
from sluicemq.app.task import Task, TaskOptions
from sluicemq.app.time_limits import TimeLimits
from sluicemq.app.worker import AsyncTaskWorker, TaskWorker
from sluicemq.client import Client
from sluicemq.job import Job
from sluicemq.namespaces.words import MisfireWord
from sluicemq.producer import Producer
from sluicemq.protocol.durations import Duration
from sluicemq.protocol.enums import Misfire
from sluicemq.protocol.names import KIND_RULE, QUEUE_NAME_RULE, is_kind, is_queue_name
from sluicemq.protocol.readable import brief
from sluicemq.transport.access import Access, Broker
from sluicemq.transport.credentials import AccessOptions
from sluicemq.worker_queues import Queues

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T", bound=Task[..., Any])
_J = TypeVar("_J", bound=Job)  # also that of sluicemq.aio


class App:
    """The tasks of a program: ``app = App()``, and ``@app.task(queue="mail")`` above a function.

    ``name``: only an app that declares schedules needs one, which no other app at its brokers has.
    ``middleware`` is called around each run, :class:`~sluicemq.TimeLimits` where none is given. ``producer``:
    the one that pushes; None: the app makes its own when it first pushes. ``endpoint`` and ``access`` are
    those of :class:`~sluicemq.Producer`.
    """

    def __init__(
        self,
        name: str = "",
        *,
        middleware: Iterable[Middleware] | None = None,
        producer: Producer | None = None,
        endpoint: Broker = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        self.name = name
        self.tasks: dict[str, Task[..., Any]] = {}
        """The tasks by their kinds."""
        self.middleware: list[Middleware] = [TimeLimits()] if middleware is None else list(middleware)
        self.handler = Runner(self.tasks, self.middleware)
        """The handler of a worker of these tasks; a test may call it with a :class:`~sluicemq.Job`."""
        self._schedules: dict[str, Declared] = {}
        self._producer = producer
        self._making = threading.Lock()
        self._endpoint = endpoint
        self._options = access

    # ------------------------------------------------------------------ declaring

    @overload
    def task(self, function: Callable[_P, _R], /) -> Task[_P, _R]: ...

    @overload
    def task(
        self, *, bind: Literal[True], **options: Unpack[TaskOptions]
    ) -> Callable[[Callable[Concatenate[_J, _P], _R]], Task[_P, _R]]: ...

    @overload
    def task(
        self, *, bind: Literal[False] = False, **options: Unpack[TaskOptions]
    ) -> Callable[[Callable[_P, _R]], Task[_P, _R]]: ...

    def task(  # type: ignore[misc] # mypy does not see that Any takes all that TaskOptions has
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        bind: bool = False,
        kind: str | None = None,
        **options: Any,
    ) -> Any:
        """Make a task of a function or a coroutine function.

        ``kind``: the name in its jobs, else that of the function; it stays while old jobs wait. ``bind``: the
        first parameter gets the :class:`~sluicemq.Job`. ``queue``, ``retries``, ``timeout`` and all options
        of :meth:`~sluicemq.Producer.push` count for each push. Raises ValueError if another task has this
        kind.
        """

        def decorate(function: Callable[..., Any]) -> Task[..., Any]:
            name = getattr(function, "__name__", "") if kind is None else kind
            if not is_kind(name):
                raise ValueError(f"a kind has {KIND_RULE}, not {brief(name)}")
            if name in self.tasks:
                raise ValueError(f"there are two tasks {name!r}: give one of them another kind")
            # The queue of tasks that name none
            merged = cast("TaskOptions", {"queue": "default", **options})
            self.tasks[name] = Task(self, function, name, merged, bind=bind)
            return self.tasks[name]

        return decorate if function is None else decorate(function)

    def schedule(
        self,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        name: str | None = None,
        timezone: str = "UTC",
        misfire: MisfireWord = Misfire.ONE,
        arguments: dict[str, Any] | None = None,
    ) -> Callable[[_T], _T]:
        """Push a task again and again: ``@app.schedule(cron="0 3 * * *")`` above its ``@app.task``.

        ``name``: else that of the app and the task's kind, as in ``shop.nightly``. ``arguments``: those of
        the task, by name. The others are those of ``client.schedules.add``. A worker of the app declares it
        at its start. One that is no more in the code is removed then.
        """
        if not self.name:
            raise ValueError("an app with schedules has a name of its own: App('shop')")
        if (cron is None) == (every is None):
            raise TypeError("a schedule has either cron or every")

        def decorate(task: _T) -> _T:
            if not isinstance(task, Task):
                raise TypeError("a schedule stands above @app.task")
            full = f"{self.name}.{task.kind}" if name is None else name
            if not is_queue_name(full):
                raise ValueError(f"{brief(full)} is no name of a schedule: {QUEUE_NAME_RULE}")
            if full in self._schedules:
                raise ValueError(f"there are two schedules {full!r}: give one of them another name")
            plan = task.s(**(arguments or {})).plan
            self._schedules[full] = Declared(
                name=full, plan=plan, cron=cron, every=every, timezone=timezone, misfire=misfire
            )
            return task

        return decorate

    # ------------------------------------------------------------------ working

    def worker(
        self,
        queues: Queues | None = None,
        *,
        concurrency: int = 1,
        prefetch: int = 1,
        stop_timeout: float = 30.0,
    ) -> TaskWorker:
        """Return a worker of its tasks; ``queues``: those of all tasks where none are given.

        Raises what is wrong with a task, such as an annotation that names nothing.
        """
        self._check()
        worker = TaskWorker(
            queues or self._queues(), self.handler, concurrency=concurrency, prefetch=prefetch,
            stop_timeout=stop_timeout, endpoint=self.access,
        )  # fmt: skip
        worker.declare = self.declare_schedules if self.name else None
        return worker

    def aworker(
        self,
        queues: Queues | None = None,
        *,
        concurrency: int = 100,
        prefetch: int = 1,
        stop_timeout: float = 30.0,
    ) -> AsyncTaskWorker:
        """Return a worker of its tasks for asyncio: ``await app.aworker().run()``, or ``async with``.

        Coroutines run in this event loop, each a task of asyncio, with a job of :mod:`sluicemq.aio`. Plain
        functions run in threads. Raises as :meth:`worker` does.
        """
        self._check()
        worker = AsyncTaskWorker(
            queues or self._queues(), self.handler.in_loop, concurrency=concurrency,
            prefetch=prefetch, stop_timeout=stop_timeout, endpoint=self.access,
        )  # fmt: skip
        worker.declare = self.declare_schedules if self.name else None
        return worker

    def declare_schedules(self) -> None:
        """Make the schedules at the broker as they are in the code; a worker does this at its start."""
        with Client(endpoint=self.access) as client:
            declare(client, self.name, self._schedules.values())

    def _queues(self) -> list[str]:
        plans = {schedule.plan.queue for schedule in self._schedules.values()}
        return sorted(plans | {task.queue for task in self.tasks.values()})

    def _check(self) -> None:
        for kind, task in self.tasks.items():
            try:
                task.signature.check()
            except Exception as error:
                raise TypeError(f"task {kind}: {error}") from error

    # ------------------------------------------------------------------ pushing

    @property
    def access(self) -> Access:
        """Return its brokers and how to get in there."""
        return Access.chosen(self._endpoint, self._options)

    def get_producer(self) -> Producer:
        """Return the producer of its pushes."""
        with self._making:
            if self._producer is None:
                self._producer = Producer(endpoint=self.access)
            return self._producer

    def close(self) -> None:
        """Wait until all pushes are confirmed, and disconnect; a later push connects again."""
        with self._making:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<App {self.name or 'without a name'} of {len(self.tasks)} tasks>"
