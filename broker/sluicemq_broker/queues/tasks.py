"""Tasks: bulk operations that run beside the jobs, in pages with pauses between them.

The first pages run at once: most operations end with them, and leave no trace. A longer one is stored in
MongoDB as a task. It goes on without its client, can be read and cancelled at every broker, and is continued
by another broker if its own has died.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from functools import partial
from secrets import token_hex
from typing import Any, Final

import gevent
from gevent.event import Event
from gevent.lock import BoundedSemaphore

from sluicemq.protocol.errors import (
    BadQueueError,
    NotFoundError,
    QueueFullError,
    SluiceError,
    UnavailableError,
    from_code,
)
from sluicemq.protocol.rows import OperationRow, from_document
from sluicemq.protocol.wire import LOOKED, TaskField, TaskState
from sluicemq_broker.context import Context
from sluicemq_broker.queues.bulk_operations import (
    BULK_OPERATIONS,
    PAGE,
    BulkOperation,
    Expire,
    Pages,
    Retire,
)
from sluicemq_broker.queues.queues import Queues
from sluicemq_broker.queues.retention import DeadBounds
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import Documents, Inspector, TaskStore, date, seconds
from sluicemq_devices.hub import nothing

#: Jobs from push to commit that must pass, for each job of a page, before the next page. Removing one takes
#: broker and mongod 0.6 times as long as a job takes from push to commit, ending an expired one 0.9, and
#: redriving one 1.0 (78, 119, 129 us of processor time, and 131). So jobs beside keep nine tenths of their
#: rate: 0.91, 0.99 and 0.94 were measured (``benchmarks/orders.py``), with six 0.88 beside a purge.
FAIR: Final = 12
#: With fewer jobs here, or jobs at other brokers, the pause takes this many times as long as the page, up to
#: ``_LONGEST`` seconds. While no broker works on jobs it takes as long as the page.
GENTLE: Final = 12.0
_LONGEST: Final = 2.0

log = logging.getLogger("broker.tasks")


class Task:
    """One operation that runs; ``total``: about how many jobs it changes, None: not known."""

    def __init__(self, operation: BulkOperation, task_id: str, owner: str) -> None:
        self.id = task_id
        self.operation = operation
        self.owner = owner
        self.state = TaskState.RUNNING
        self.total: int | None = None
        self.named = False
        """True if a client knows its id, and so may read it when it has ended."""
        self.noted = False
        """True if it is stored in MongoDB."""
        self.error: SluiceError | None = None
        self.note: Callable[[], None] = nothing
        """Stores it in MongoDB, once."""
        self.left = Event()
        """Set when it has ended here."""

    def outcome(self, wait: float | None = None) -> Any:
        """Return the answer, or raise the error; after ``wait`` seconds return ``{task, done, total}``.

        A task that is named is stored: its client finds it at other brokers if this one is killed.
        """
        self.left.wait(wait)
        if self.error is not None:
            raise self.error
        if self.state == TaskState.DONE:
            return self.operation.answer()
        self.named = True
        self.note()
        return {TaskField.TASK: self.id, TaskField.DONE: self.operation.done, TaskField.TOTAL: self.total}


class Tasks:
    """The tasks of one broker, and those that others have stored.

    One page of all tasks runs at a time, or the pause after it: many tasks cost jobs beside them no more than
    one. ``most``: tasks at one time.
    """

    def __init__(
        self, queues: Queues, context: Context, database: Callable[[str], Documents], *, most: int = 100
    ) -> None:
        self._queues = queues
        self._context = context
        self._most = most
        self._clock = context.clock
        self._timer = context.timer
        self._owners = context.owners
        self._stores = {name: TaskStore(database(name)) for name in queues.databases}
        self._running: dict[str, Task] = {}
        self._beginning = BoundedSemaphore(4)  # operations that run at once
        self._one_page = BoundedSemaphore(1)
        self._worked = 0.0
        self._stopping = Event()

    # -------------------------------------------------------------------- begin

    def begin(self, kind: str, name: str, **arguments: Any) -> Task:
        """Begin an operation on a queue; it goes on if the caller leaves.

        Raises the operation's refusal, or :class:`QueueFull` if too many tasks run.
        """
        if len(self._running) >= self._most:
            raise QueueFullError(f"{self._most} tasks are under way here: wait for some, or cancel one")
        queue = self._queues.get(name)
        make = BULK_OPERATIONS[kind]
        operation = make(self._queues, self._context, queue, self._clock.now(), **arguments)
        operation.admit()
        return self._start(Task(operation, token_hex(6), self._owners.current))

    def expire(self, name: str) -> None:
        """End expired jobs of a queue, unless a task does so already."""
        self._begin_once(Expire.kind, name)

    def retire(self, name: str, bounds: DeadBounds) -> None:
        """Remove the dead letters of a queue that are beyond its bounds, unless a task does so already."""
        self._begin_once(Retire.kind, name, bounds=bounds)

    def _begin_once(self, kind: str, name: str, **arguments: Any) -> None:
        under_way = {(task.operation.kind, task.operation.queue.name) for task in self._running.values()}
        if (kind, name) not in under_way:
            self.begin(kind, name, **arguments)

    def cancel(self, task_id: str) -> None:
        """End a task, of any broker, after its next page; raises :class:`NotFound`."""
        if task := self._running.get(task_id):
            self._begin(task)
        state = self.find(task_id).state
        if not any([store.cancel(task_id) for store in self._stores.values()]):  # noqa: C419 - in each
            raise NotFoundError(f"task {task_id} is {state} already")

    # --------------------------------------------------------------------- read

    def latest(self) -> list[OperationRow]:
        """Return the tasks of the last day, of all brokers on our databases, the latest first."""
        rows = [
            self._row(task, live)
            for name, store in self._stores.items()
            for live in [self._owners.live(name)]
            for task in store.latest()
        ]
        return sorted(rows, key=lambda row: row.started_at or 0.0, reverse=True)

    def find(self, task_id: str) -> OperationRow:
        """Return one task; raises :class:`NotFound`."""
        task = self._running.get(task_id)
        if task and not task.noted:
            return self._row({"_id": task_id, **self._note(task)}, {task.owner})
        for name, store in self._stores.items():
            if found := store.find(task_id):
                return self._row(found, self._owners.live(name))
        raise NotFoundError(f"there is no task {task_id!r}, or it ended more than a day ago")

    def _row(self, stored: dict[str, Any], live: set[str]) -> OperationRow:
        shown = {key: value for key, value in stored.items() if key not in ("_id", "owner", "now", "cancel")}
        for key in ("started_at", "changed_at", "ended_at"):
            if key in shown:
                shown[key] = round(seconds(shown[key]), 3)
        if task := self._running.get(stored["_id"]):
            shown[TaskField.DONE], shown[LOOKED] = task.operation.done, task.operation.looked
        elif stored["state"] == TaskState.RUNNING and stored["owner"] not in live:
            shown["state"] = TaskState.INTERRUPTED  # until another broker continues it
        return from_document(OperationRow, {"id": stored["_id"], **shown})

    # --------------------------------------------------- tasks of dead brokers

    def prepare(self) -> None:
        """Make the indexes that tasks need."""
        for store in self._stores.values():
            store.prepare()

    def take_up(self) -> None:
        """Continue the tasks of dead brokers; called at the start, and every lease."""
        for database, store in self._stores.items():
            for stored in store.running():
                held = stored["owner"] and self._owners.is_live(stored["owner"], database)
                if stored["_id"] not in self._running and not held and len(self._running) < self._most:
                    self._try_to_take_up(store, stored)

    def _try_to_take_up(self, store: TaskStore, stored: dict[str, Any]) -> None:
        """Continue one task; a failure keeps neither other tasks nor the broker's start waiting."""
        try:
            self._take_up(store, stored)
        except UnavailableError:
            raise
        except Exception:
            log.exception("task %s of a dead broker is not continued", stored["_id"])

    def _take_up(self, store: TaskStore, stored: dict[str, Any]) -> None:
        task_id, former, own = stored["_id"], stored["owner"], self._owners.current
        kind = BULK_OPERATIONS.get(stored["kind"])
        if kind is None or not kind.resumes or stored.get("cancel"):
            state = TaskState.CANCELLED if stored.get("cancel") else TaskState.INTERRUPTED
            store.end(task_id, former, self._clock.now(), {"state": state})
            return
        try:
            queue = self._queues.get(stored["queue"])
            operation = kind(self._queues, self._context, queue, stored["now"], **stored["order"])
        except (NotFoundError, BadQueueError) as error:
            why = {"code": error.code, "message": str(error)}
            store.end(task_id, former, self._clock.now(), {"state": TaskState.FAILED, "error": why})
            return
        if not store.take(task_id, former, own, self._owners.name):
            return
        log.info("task %s: %s of queue %s is continued here", task_id, operation.kind, queue.name)
        operation.done = stored[TaskField.DONE]
        task = Task(operation, task_id, own)
        task.total, task.noted = stored[TaskField.TOTAL], True
        self._start(task)

    def stop(self) -> None:
        """Leave tasks to the next broker; harmless again."""
        self._stopping.set()

    @property
    def busy(self) -> bool:
        """True while a task runs here."""
        return bool(self._running)

    # ---------------------------------------------------------------------- run

    def _start(self, task: Task) -> Task:
        self._running[task.id] = task
        task.note = partial(self._begin, task)
        gevent.spawn(self._run, task)
        return task

    def _run(self, task: Task) -> None:
        """Run a task; after ``kill -9`` at any moment another broker goes on from the last note."""
        try:
            if task.noted or not self._over_at_once(task):
                while not self._carry_out(task):
                    # Seconds until a task is tried again after MongoDB was away.
                    self._timer.wait(self._stopping, 1.0)
        except SluiceError as error:
            task.error = error
        except Exception:
            log.exception("%s of queue %s failed", task.operation.kind, task.operation.queue.name)
            task.error = UnavailableError("the broker failed on this; its log says why")
        finally:
            self._forget(task)

    def _over_at_once(self, task: Task) -> bool:
        """Run the first pages; True if it has ended. Raises errors: the client may request it again."""
        try:
            with self._beginning, closing(task.operation.pages()) as pages:
                until = self._timer.now() + 0.5  # seconds without pauses
                while self._page(task, pages):
                    if self._timer.now() >= until:
                        return False
        except SluiceError:
            if task.named:  # its client has gone on, and may read the task
                return False
            raise
        if task.named:
            self._begin(task)
        self._end(task, TaskState.DONE)
        return True

    def _carry_out(self, task: Task) -> bool:
        """Run a task to its end; False if MongoDB was away."""
        try:
            with closing(task.operation.pages()) as pages:
                self._begin(task)
                while self._note_progress(task):
                    if not self._page_in_turn(task, pages):
                        self._end(task, TaskState.DONE)
                        break
        except UnavailableError:
            return bool(self._stopping.is_set())
        except SluiceError as error:
            self._fail(task, error)
        return True

    def _page_in_turn(self, task: Task, pages: Pages) -> bool:
        with self._one_page:
            began, before = self._timer.now(), task.operation.done
            more = self._page(task, pages)
            if more:
                self._pause(self._timer.now() - began, task.operation.done - before)
        return more

    def _page(self, task: Task, pages: Pages) -> bool:
        """Run one page; False if there was none."""
        began = self._timer.now()
        done = next(pages, None)
        if done is None:
            return False
        # Its jobs are large; one that changed nothing was one statement that looked
        operation, long = task.operation, self._timer.now() - began > (1.0 if done else 0.1)
        operation.done += done
        operation.page = max(50, operation.page // 2) if long else min(PAGE, operation.page * 2)
        return True

    def _pause(self, took: float, jobs: int) -> None:
        """Pause after a page of ``jobs`` jobs that took these seconds, so that other jobs go first."""
        alone = self._worked == self._jobs_worked and not self._owners.others_at_work
        enough = self._jobs_worked + FAIR * jobs
        end = self._timer.now() + min(_LONGEST, took * (1.0 if alone else GENTLE))
        while self._timer.now() < end and self._jobs_worked < enough:
            if self._timer.wait(self._stopping, min(0.02, max(0.0, end - self._timer.now()))):
                break
        self._worked = self._jobs_worked

    @property
    def _jobs_worked(self) -> float:
        """Jobs from push to commit, of all queues here."""
        values = self._context.counters.values
        return (values[Count.PUSHED] + values[Count.COMMITTED]) / 2

    def _begin(self, task: Task) -> None:
        if task.noted:
            return
        if task.operation.state:
            queue = task.operation.queue
            counts = Inspector(self._queues.database_of(queue)).counts(queue.name, self._clock.now())
            task.total = task.operation.done + int(counts.get(task.operation.state, 0))
        self._store(task).begin(task.id, self._note(task))
        task.noted = True

    def _note(self, task: Task) -> dict[str, Any]:
        """Return a task as it is stored in MongoDB."""
        operation = task.operation
        return {
            "kind": operation.kind,
            "queue": operation.queue.name,
            "order": operation.arguments,
            "now": operation.now,
            "state": task.state,
            TaskField.DONE: operation.done,
            LOOKED: operation.looked,
            TaskField.TOTAL: task.total,
            "owner": task.owner,
            "broker": self._owners.name,
            "started_at": date(operation.now),
            "changed_at": date(self._clock.now()),
        }

    def _note_progress(self, task: Task) -> bool:
        """Note the progress; False if the task ends here."""
        progress = {
            TaskField.DONE: task.operation.done,
            LOOKED: task.operation.looked,
            "changed_at": date(self._clock.now()),
        }
        if self._stopping.is_set():
            self._store(task).note_progress(task.id, task.owner, {**progress, "owner": ""})
            return False
        cancelled = self._store(task).note_progress(task.id, task.owner, progress)
        if cancelled:
            self._end(task, TaskState.CANCELLED)
            return False
        return cancelled is not None

    def _end(self, task: Task, state: TaskState) -> None:
        """End a task. If that can't be written, another broker runs it again, which finds no more jobs."""
        what: dict[str, Any] = {
            "state": state,
            TaskField.DONE: task.operation.done,
            LOOKED: task.operation.looked,
        }
        if state == TaskState.DONE:
            what["answer"] = task.operation.answer()
        if task.error is not None:
            what["error"] = {"code": task.error.code, "message": str(task.error)}
        if task.noted:
            self._store(task).end(task.id, task.owner, self._clock.now(), what)
        task.state = state
        self._forget(task)

    def _fail(self, task: Task, error: SluiceError) -> None:
        task.error = from_code(error.code, str(error))
        self._end(task, TaskState.FAILED)

    def _forget(self, task: Task) -> None:
        self._running.pop(task.id, None)
        task.left.set()

    def _store(self, task: Task) -> TaskStore:
        return self._stores[self._queues.database_name(task.operation.queue.name)]
