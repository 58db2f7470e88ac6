"""Long orders, carried out beside the jobs: in pages with pauses between them, whoever stays or leaves.

The first pages of an order run at once: most orders are over then, and leave no trace. What takes longer
becomes a task. It is written down in MongoDB, goes on without its asker, can be asked for and cancelled at
every broker, and is taken up by another one if its own has died.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from secrets import token_hex
from typing import Any, Final

import gevent
from gevent.event import Event
from gevent.lock import BoundedSemaphore

from sluicemq.protocol.errors import BadQueue, NotFound, QueueFull, SluiceError, Unavailable, from_code
from sluicemq.protocol.wire import LOOKED, TaskField, TaskState
from sluicemq_broker.context import Context
from sluicemq_broker.queues.bulk_operations import BULK_OPERATIONS, PAGE, BulkOperation, Expire, Pages
from sluicemq_broker.queues.queues import Queues
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import Documents, Inspector, TaskStore, date, seconds

#: Seconds of an order that are carried out at once, without pauses; and of how many orders together.
AT_ONCE: Final = 0.5
BEGINNING: Final = 4
#: A page has half as many jobs after one that took longer than so many seconds, for its jobs are large; but
#: so many at least. A page in which nothing was done was one statement that looked.
_LONG: Final = 1.0
_LONG_LOOK: Final = 0.1
_LEAST: Final = 50
#: A page is followed by a pause, until so many jobs have gone their way for each one in it: to remove one
#: takes broker and mongod 0.6 times as long as a job takes from push to commit, to end an expired one 0.9,
#: to redrive one as long (78, 119, 129 us of processor time, and 131). So the jobs beside keep nine tenths of
#: their rate: 0.91, 0.99 and 0.94 were measured (``tests/bench/orders.py``), with six 0.88 beside a purge.
FAIR: Final = 12
#: Where fewer go their way, or another broker's do: until so many times as long as the page was have passed,
#: but so many seconds at most. Where no broker works on jobs, as long as the page, however many are there.
GENTLE: Final = 12.0
_LONGEST: Final = 2.0
_LOOK: Final = 0.02
#: Tasks that are under way here, at most.
MOST: Final = 100
#: Seconds until a task is tried again for which MongoDB was away.
_AWAY: Final = 1.0

log = logging.getLogger("broker.tasks")


class Task:
    """One order under way; of about ``total`` jobs, None if nobody knows how many there are."""

    def __init__(self, operation: BulkOperation, task_id: str, owner: str) -> None:
        self.id = task_id
        self.operation = operation
        self.owner = owner
        self.state = TaskState.RUNNING
        self.total: int | None = None
        self.named = False
        """True if somebody knows its id, and so may ask for it when it has ended."""
        self.noted = False
        """True if it stands in MongoDB."""
        self.error: SluiceError | None = None
        self.left = Event()
        """Set when nothing more happens to it here."""

    def outcome(self, wait: float | None = None) -> Any:
        """The order's answer, or its error; after ``wait`` seconds ``{task, done, total}``, if it goes on."""
        self.left.wait(wait)
        if self.error is not None:
            raise self.error
        if self.state == TaskState.DONE:
            return self.operation.answer()
        self.named = True
        return {TaskField.TASK: self.id, TaskField.DONE: self.operation.done, TaskField.TOTAL: self.total}


class Tasks:
    """The long orders of one broker, and what is known of those of others.

    All tasks together have one page under way, or the pause after it: however many there are, the jobs beside
    them lose no more. ``most`` are under way at once.
    """

    def __init__(
        self, queues: Queues, context: Context, database: Callable[[str], Documents], *, most: int = MOST
    ) -> None:
        self._queues = queues
        self._context = context
        self._most = most
        self._clock = context.clock
        self._timer = context.timer
        self._owners = context.owners
        self._stores = {name: TaskStore(database(name)) for name in queues.databases}
        self._running: dict[str, Task] = {}
        self._beginning = BoundedSemaphore(BEGINNING)
        self._one_page = BoundedSemaphore(1)
        self._worked = 0.0
        self._stopping = Event()

    # ------------------------------------------------------------------- orders

    def begin(self, kind: str, name: str, **arguments: Any) -> Task:
        """Begin with an order for a queue; it goes on whatever becomes of the caller.

        Raises what the order is refused with at once, or :class:`QueueFull` if too many are under way.
        """
        if len(self._running) >= self._most:
            raise QueueFull(f"{self._most} tasks are under way here: wait for some, or cancel one")
        queue = self._queues.get(name)
        order = BULK_OPERATIONS[kind](self._queues, self._context, queue, self._clock.now(), **arguments)
        order.admit()
        return self._start(Task(order, token_hex(6), self._owners.current))

    def expire(self, name: str) -> None:
        """End what has expired in a queue, unless that is under way."""
        under_way = {(each.operation.kind, each.operation.queue.name) for each in self._running.values()}
        if (Expire.kind, name) not in under_way:
            self.begin(Expire.kind, name)

    def cancel(self, task_id: str) -> None:
        """End a task, of whichever broker, after its next page; raises :class:`NotFound`."""
        if task := self._running.get(task_id):
            self._begin(task)
        state = self.find(task_id)["state"]
        if not any([store.cancel(task_id) for store in self._stores.values()]):  # noqa: C419 - in each
            raise NotFound(f"task {task_id} is {state} already")

    # --------------------------------------------------------------------- asked

    def latest(self) -> list[dict[str, Any]]:
        """The tasks of all brokers that share our databases, of the last day, the latest first."""
        rows = [
            self._shown(each, live)
            for name, store in self._stores.items()
            for live in [self._owners.live(name)]
            for each in store.latest()
        ]
        return sorted(rows, key=lambda row: float(row["started_at"]), reverse=True)

    def find(self, task_id: str) -> dict[str, Any]:
        """One of them; raises :class:`NotFound`."""
        task = self._running.get(task_id)
        if task and not task.noted:
            return self._shown({"_id": task_id, **self._note(task)}, {task.owner})
        for name, store in self._stores.items():
            if found := store.find(task_id):
                return self._shown(found, self._owners.live(name))
        raise NotFound(f"there is no task {task_id!r}, or it ended more than a day ago")

    def _shown(self, stored: dict[str, Any], live: set[str]) -> dict[str, Any]:
        shown = {key: value for key, value in stored.items() if key not in ("_id", "owner", "now", "cancel")}
        for key in ("started_at", "changed_at", "ended_at"):
            if key in shown:
                shown[key] = round(seconds(shown[key]), 3)
        if task := self._running.get(stored["_id"]):
            shown[TaskField.DONE], shown[LOOKED] = task.operation.done, task.operation.looked
        elif stored["state"] == TaskState.RUNNING and stored["owner"] not in live:
            shown["state"] = TaskState.INTERRUPTED  # until it is taken up
        return {"id": stored["_id"], **shown}

    # -------------------------------------------------------------- from time to time

    def prepare(self) -> None:
        """At the start: make what the tasks need in MongoDB."""
        for store in self._stores.values():
            store.prepare()

    def take_up(self) -> None:
        """Every lease, and at the start: go on with the tasks of brokers that are gone."""
        for database, store in self._stores.items():
            for stored in store.running():
                held = stored["owner"] and self._owners.is_live(stored["owner"], database)
                if stored["_id"] not in self._running and not held and len(self._running) < self._most:
                    self._try_to_take_up(store, stored)

    def _try_to_take_up(self, store: TaskStore, stored: dict[str, Any]) -> None:
        """One that fails keeps no other from going on, nor a broker from starting."""
        try:
            self._take_up(store, stored)
        except Unavailable:
            raise
        except Exception:
            log.exception("task %s, which another broker has left, does not go on", stored["_id"])

    def _take_up(self, store: TaskStore, stored: dict[str, Any]) -> None:
        task_id, former, mine = stored["_id"], stored["owner"], self._owners.current
        kind = BULK_OPERATIONS.get(stored["kind"])
        if kind is None or not kind.resumes or stored.get("cancel"):
            state = TaskState.CANCELLED if stored.get("cancel") else TaskState.INTERRUPTED
            store.end(task_id, former, self._clock.now(), {"state": state})
            return
        try:
            queue = self._queues.get(stored["queue"])
            order = kind(self._queues, self._context, queue, stored["now"], **stored["order"])
        except (NotFound, BadQueue) as error:
            why = {"code": error.code, "message": str(error)}
            store.end(task_id, former, self._clock.now(), {"state": TaskState.FAILED, "error": why})
            return
        if not store.take(task_id, former, mine, self._owners.name):
            return
        log.info("task %s: %s of queue %s goes on here", task_id, order.kind, queue.name)
        order.done = stored[TaskField.DONE]
        task = Task(order, task_id, mine)
        task.total, task.noted = stored[TaskField.TOTAL], True
        self._start(task)

    def stop(self) -> None:
        """Leave what is under way to the next broker; harmless again."""
        self._stopping.set()

    @property
    def busy(self) -> bool:
        """True if any task has not come to rest."""
        return bool(self._running)

    # ------------------------------------------------------------- carrying it out

    def _start(self, task: Task) -> Task:
        self._running[task.id] = task
        gevent.spawn(self._run, task)
        return task

    def _run(self, task: Task) -> None:
        """``kill -9`` at any moment: another broker, or the next one here, goes on from the last note."""
        try:
            if task.noted or not self._over_at_once(task):
                while not self._carry_out(task):
                    self._timer.wait(self._stopping, _AWAY)
        except SluiceError as error:
            task.error = error
        except Exception:
            log.exception("%s of queue %s failed", task.operation.kind, task.operation.queue.name)
            task.error = Unavailable("the broker failed on this; its log says why")
        finally:
            self._forget(task)

    def _over_at_once(self, task: Task) -> bool:
        """Carry out the first of an order; raises what goes wrong: who gave it hears of it, and may again."""
        try:
            with self._beginning, closing(task.operation.pages()) as pages:
                until = self._timer.now() + AT_ONCE
                while self._page(task, pages):
                    if self._timer.now() >= until:
                        return False
        except SluiceError:
            if task.named:  # whoever gave it has gone on, and may ask for it
                return False
            raise
        if task.named:
            self._begin(task)
        self._end(task, TaskState.DONE)
        return True

    def _carry_out(self, task: Task) -> bool:
        """Go on until it ends; False if MongoDB was away."""
        try:
            with closing(task.operation.pages()) as pages:
                self._begin(task)
                while self._goes_on(task):
                    if not self._page_in_turn(task, pages):
                        self._end(task, TaskState.DONE)
                        break
        except Unavailable:
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
        """Carry out one page; False if there was none."""
        began = self._timer.now()
        done = next(pages, None)
        if done is None:
            return False
        order, long = task.operation, self._timer.now() - began > (_LONG if done else _LONG_LOOK)
        order.done += done
        order.page = max(_LEAST, order.page // 2) if long else min(PAGE, order.page * 2)
        return True

    def _pause(self, took: float, jobs: int) -> None:
        """Let others go first, after a page of so many jobs that took so many seconds."""
        alone = self._worked == self._gone_their_way and not self._owners.others_at_work
        enough = self._gone_their_way + FAIR * jobs
        end = self._timer.now() + min(_LONGEST, took * (1.0 if alone else GENTLE))
        while self._timer.now() < end and self._gone_their_way < enough:
            if self._timer.wait(self._stopping, min(_LOOK, max(0.0, end - self._timer.now()))):
                break
        self._worked = self._gone_their_way

    @property
    def _gone_their_way(self) -> float:
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
        """What stands of it in MongoDB."""
        order = task.operation
        return {
            "kind": order.kind,
            "queue": order.queue.name,
            "order": order.arguments,
            "now": order.now,
            "state": task.state,
            TaskField.DONE: order.done,
            LOOKED: order.looked,
            TaskField.TOTAL: task.total,
            "owner": task.owner,
            "broker": self._owners.name,
            "started_at": date(order.now),
            "changed_at": date(self._clock.now()),
        }

    def _goes_on(self, task: Task) -> bool:
        """Note how far it is; False if it is not to go on here."""
        progress = {
            TaskField.DONE: task.operation.done,
            LOOKED: task.operation.looked,
            "changed_at": date(self._clock.now()),
        }
        if self._stopping.is_set():
            self._store(task).go_on(task.id, task.owner, {**progress, "owner": ""})
            return False
        cancelled = self._store(task).go_on(task.id, task.owner, progress)
        if cancelled:
            self._end(task, TaskState.CANCELLED)
            return False
        return cancelled is not None

    def _end(self, task: Task, state: TaskState) -> None:
        """It has ended. Where that can't be written it is carried out once more, for nothing."""
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
