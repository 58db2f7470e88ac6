"""What people ask and order: one method per administrative verb of SMQ/1. Each may wait for MongoDB."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFrames, Unavailable
from sluicemq.protocol.options import OPTIONS
from sluicemq_broker import __version__
from sluicemq_broker.context import Context
from sluicemq_broker.doors.smq.schedules import ScheduleOrders
from sluicemq_broker.doors.smq.shared_answer import SharedAnswer
from sluicemq_broker.job import State
from sluicemq_broker.queue import Queue, check_headers
from sluicemq_broker.queues import (
    Delete,
    Discard,
    FailedParents,
    Purge,
    Queues,
    Redrive,
    Schedules,
    Task,
    Tasks,
    check_name,
)
from sluicemq_broker.runtime import Count, Gauge, Turns
from sluicemq_broker.statistics import Census, History
from sluicemq_broker.store import SHOWN_STATES, Changes, Documents, Inspector, Removals, StoreAvailability
from sluicemq_devices.sockets import Switchboard

_CHANGEABLE: Final = frozenset(each.name for each in OPTIONS.values() if each.changeable)
_MOST_PEEKED: Final = 1000
#: Workers that are told of, and jobs of each: more than a person reads.
_MOST_WORKERS: Final = 1000
_MOST_OF_ONE: Final = 20
#: A time that no job has, in Unix seconds: the year 9999.
_NEVER: Final = 253_370_000_000
#: Events in one answer.
_MOST_EVENTS: Final = 1000
_PEEKED_BYTES: Final = 8 * 1024 * 1024
#: What is stored is in memory as it came, taken apart, and as it is sent.
READ_PACKED_SENT: Final = 3


class Admin:
    """The administrative verbs. ``forwarders()``: each forwarder's doors and subscribers."""

    def __init__(
        self,
        queues: Queues,
        census: Census,
        tasks: Tasks,
        context: Context,
        turns: Turns,
        board: Switchboard,
        store: StoreAvailability,
        *,
        history: History,
        schedules: Schedules,
        forwarders: Callable[[], list[dict[str, Any]]],
    ) -> None:
        self._queues = queues
        self._schedules = ScheduleOrders(schedules)
        self._census = census
        self._tasks = tasks
        self._board = board
        self._store = store
        self._history = history
        self._owners = context.owners
        self._clock = context.clock
        self._counters = context.counters
        self._events = context.events
        self._turns = turns
        self._now = context.timer.now
        self._started = self._now()
        self._forwarders = forwarders
        self._counts = SharedAnswer(census.all)

    def queues(self) -> list[dict[str, Any]]:
        """All queues with their counts, those that other brokers have made too."""
        return self._counts.get()

    def queue(self, name: str) -> dict[str, Any]:
        """One queue with its counts; the others are not counted."""
        return self._census.one(check_name(name))

    def health(self) -> dict[str, Any]:
        """Whether MongoDB answers; at once, whether or not it does."""
        state = self._store
        return {"store": state.problem or wire.STORE_OK, Gauge.STORE_SILENT: round(state.silent, 3)}

    def stats(self) -> dict[str, Any]:
        """What :meth:`counters` tells, all queues, and what the subscribers of each forwarder have lost."""
        queues = self._queues_if_any_way()
        return {**self.counters(), "queues": queues, "forwarders": self._forwarders()}

    def counters(self) -> dict[str, Any]:
        """The broker, and what it has counted since its start; asks MongoDB nothing.

        ``connections``: open at all doors together; ``longest_turn``: seconds of the longest turn of its
        hub since the last one who asked; ``longest_turn_cpu``: of the one that has computed longest.
        """
        longest, longest_cpu = self._turns.take()
        about = self.about()
        about["broker"] |= {
            Gauge.LONGEST_TURN: round(longest, 4),
            Gauge.LONGEST_TURN_CPU: round(longest_cpu, 4),
        }
        return about

    def about(self) -> dict[str, Any]:
        """The same, but for what is told once."""
        broker = {
            "version": __version__,
            "pid": os.getpid(),
            "owner": self._owners.current,
            **self.gauges(),
            **self.health(),
        }
        return {"broker": broker, "counters": dict(sorted(self._counters.values.items()))}

    def gauges(self) -> dict[str, float]:
        """How the broker stands."""
        return {
            Gauge.UPTIME: round(self._now() - self._started, 3),
            Gauge.BROKERS: 1 + self._owners.others,
            Gauge.CONNECTIONS: self._board.connections,
            **self._queues.under_way(),
        }

    def history(self, kind: str, name: str, day: str | None, span: str) -> dict[str, Any]:
        """What was counted in each minute, hour, day or month, by all brokers together."""
        return self._history.read(kind, name, day, span)

    def workers(self, name: str | None = None) -> list[dict[str, Any]]:
        """The workers at this broker, or those of one queue, and the jobs that each has."""
        queues = self._queues if name is None else [self._queues.get(name)]
        return list(islice((row for each in queues for row in each.worker_list(_MOST_OF_ONE)), _MOST_WORKERS))

    def events(self, options: dict[str, Any]) -> dict[str, Any]:
        """What happens to jobs at this broker from the first question on, and has since the last one."""
        after, queue = options.get("after"), options.get("queue")
        if options.keys() - {"after", "queue"} or not _is_count(after):
            raise BadFrames("the options of EVENTS are a map of after, a number, and queue")
        return self._events.read(after, None if queue is None else check_name(queue), _MOST_EVENTS)

    def peek(self, name: str, state: str, limit: int) -> list[dict[str, Any]]:
        """The first jobs of a state, or with a limit below zero the last ones, without taking them."""
        queue = self._queues.get(name)
        _check_state(state, SHOWN_STATES)
        if not 1 <= abs(limit) <= _MOST_PEEKED:
            raise BadFrames(f"limit {limit} is not from 1 to {_MOST_PEEKED}, nor from -1 to -{_MOST_PEEKED}")
        return self._inspector(queue).peek(name, state, limit, _PEEKED_BYTES, self._clock.now())

    def show(self, name: str, job_id: str) -> dict[str, Any]:
        """All that is known of one job; if a worker of this broker has it, which."""
        queue = self._queues.get(name)
        shown = self._inspector(queue).show(name, job_id, self._clock.now())
        defaults = {key: getattr(queue.settings, key) for key in ("max_attempts", "visibility_timeout")}
        worker = queue.worker_with(job_id)
        return {**defaults, **shown, **({"worker": worker.name} if worker else {})}

    def weigh_peek(self, name: str, state: str, limit: int) -> int:
        """About how many bytes of memory a :meth:`peek` takes."""
        queue = self._queues.get(name)
        _check_state(state, SHOWN_STATES)
        most = max(-_MOST_PEEKED, min(limit, _MOST_PEEKED)) or 1
        size = self._inspector(queue).weigh_first(name, state, most, self._clock.now())
        return READ_PACKED_SENT * min(size, 2 * _PEEKED_BYTES)

    def weigh_show(self, name: str, job_id: str) -> int:
        """About how many bytes of memory a :meth:`show` takes."""
        return READ_PACKED_SENT * self._inspector(self._queues.get(name)).weigh(name, job_id)

    def purge(self, name: str, state: str) -> Task:
        """Remove all jobs of a state."""
        _check_state(state, [each for each in SHOWN_STATES if each != State.RESERVED])
        return self._tasks.begin(Purge.kind, name, state=state)

    def delete(self, name: str) -> Task:
        """Remove a queue and all its jobs; refused while workers are connected to it."""
        return self._tasks.begin(Delete.kind, name)

    def tasks(self) -> list[dict[str, Any]]:
        """The long orders of the last day, of all brokers, the latest first."""
        return self._tasks.latest()

    def task(self, task_id: str) -> dict[str, Any]:
        """One of them, and its answer."""
        return self._tasks.find(task_id)

    def cancel_task(self, task_id: str) -> None:
        """End it after its next page; what it has done is not undone."""
        self._tasks.cancel(task_id)

    def cancel(self, name: str, job_id: str) -> None:
        """Remove one job that waits, and tell whoever waits for its result."""
        queue = self._queues.get(name)
        group = self._removals(queue).cancel(name, job_id, self._clock.now())
        self._counters.add(Count.CANCELLED)
        queue.cancelled(job_id, group)

    def promote(self, name: str, job_id: str) -> None:
        """Run a delayed job now."""
        queue = self._queues.get(name)
        Changes(self._changed(queue)).promote(name, job_id, self._clock.now())
        queue.jobs_ready(1)

    def change(self, name: str, job_id: str, fields: dict[str, Any]) -> None:
        """Give a job that waits another priority, or another delay from now on."""
        queue = self._queues.get(name)
        if not fields or fields.keys() - _CHANGEABLE:
            raise BadFrames("a change is a map of priority, delay, or both")
        read = check_headers(fields)
        now = self._clock.now()
        due = now + read["delay"] if "delay" in read else None
        Changes(self._changed(queue)).change(name, job_id, now, priority=read.get("priority"), due=due)
        if due is not None and due > now:
            queue.jobs_due([due])
        else:
            queue.jobs_ready(1)

    def redrive(self, name: str, which: dict[str, Any], to: str | None) -> Task:
        """Make dead letters ready again, here or in another queue."""
        _check_letters(which)
        return self._tasks.begin(Redrive.kind, name, to=to, **which)

    def discard(self, name: str, which: dict[str, Any]) -> Task:
        """Remove dead letters, all or some."""
        _check_letters(which)
        return self._tasks.begin(Discard.kind, name, **which)

    def remove(self, name: str, job_id: str) -> None:
        """Remove one job that no worker has, whether it waits, is done, or is dead."""
        queue = self._queues.get(name)
        if self._removals(queue).remove_ended(name, job_id, self._clock.now()):
            self._counters.add(Count.PURGED)
            queue.check_results()
        else:
            self.cancel(name, job_id)

    def pause(self, name: str, what: str) -> list[str]:
        """Pause delivery or intake, for all brokers and until it is resumed; what is paused now."""
        queue = self._pausable(name, what)
        self._queues.pause(queue, what)
        return sorted(queue.paused)

    def resume(self, name: str, what: str) -> list[str]:
        """Resume delivery or intake; what is paused still."""
        queue = self._pausable(name, what)
        self._queues.resume(queue, what)
        return sorted(queue.paused)

    def schedule(self, action: str, about: dict[str, Any]) -> Any:
        """Look at recurring jobs, or change them."""
        return self._schedules.answer(action, about)

    def _pausable(self, name: str, what: str) -> Queue:
        if what not in (wire.DELIVERY, wire.INTAKE):
            raise BadFrames(f"{what!r} can't be paused, only {wire.DELIVERY} or {wire.INTAKE}")
        queue = self._queues.get(name)
        queue.prepare(anew=True)  # one without a collection would not be known after a restart
        return queue

    def _queues_if_any_way(self) -> list[dict[str, Any]]:
        """All queues, from what is known if MongoDB does not answer: the rest of the stats is there still."""
        try:
            return self.queues()
        except Unavailable:
            return self._census.kept()

    def _inspector(self, queue: Queue) -> Inspector:
        queue.prepare()
        return Inspector(self._queues.database_of(queue))

    def _removals(self, queue: Queue) -> Removals:
        return Removals(self._changed(queue), FailedParents(self._queues))

    def _changed(self, queue: Queue) -> Documents:
        """Where its jobs lie, of which some are about to change."""
        queue.prepare()
        self._census.recount(queue)
        return self._queues.database_of(queue)


#: The administrative verbs: which method answers, and the types of the fields that it takes.
QUESTIONS: Final[dict[bytes, tuple[Any, ...]]] = {
    wire.QUEUES: (Admin.queues,),
    wire.QUEUE: (Admin.queue, str),
    wire.STATS: (Admin.stats,),
    wire.COUNTERS: (Admin.counters,),
    wire.HISTORY: (Admin.history, str, str, str | None, str),
    wire.WORKERS: (Admin.workers, str | None),
    wire.EVENTS: (Admin.events, dict),
    wire.PEEK: (Admin.peek, str, str, int),
    wire.PURGE: (Admin.purge, str, str),
    wire.DELETE: (Admin.delete, str),
    wire.CANCEL: (Admin.cancel, str, str),
    wire.SHOW: (Admin.show, str, str),
    wire.PROMOTE: (Admin.promote, str, str),
    wire.CHANGE: (Admin.change, str, str, dict),
    wire.REDRIVE: (Admin.redrive, str, dict, str | None),
    wire.DISCARD: (Admin.discard, str, dict),
    wire.PAUSE: (Admin.pause, str, str),
    wire.RESUME: (Admin.resume, str, str),
    wire.SCHEDULE: (Admin.schedule, str, dict),
    wire.TASKS: (Admin.tasks,),
    wire.TASK: (Admin.task, str),
    wire.TCANCEL: (Admin.cancel_task, str),
}

#: Those that change nothing: they are of no use to anybody but who asked.
LOOKS: Final = frozenset(
    (
        *(Admin.queues, Admin.queue, Admin.history, Admin.stats, Admin.counters),
        *(Admin.workers, Admin.events, Admin.peek, Admin.show, Admin.tasks, Admin.task),
    )
)
#: What weighs the answers that may be as large as jobs.
WEIGHED: Final[dict[Any, Callable[..., int]]] = {
    Admin.peek: Admin.weigh_peek,
    Admin.show: Admin.weigh_show,
}
#: Those that may take long: they return a task, and take one field more, for how long to wait for it.
ORDERS: Final = frozenset((Admin.purge, Admin.delete, Admin.redrive, Admin.discard))
#: Those that cost the same however many ask.
TOGETHER: Final = frozenset((Admin.queues, Admin.stats, Admin.counters, Admin.workers, Admin.events))


def _check_letters(which: dict[str, Any]) -> None:
    """Raises :class:`BadFrames` if no dead letters can be chosen so."""
    ids, reason, limit = which.get("ids"), which.get("reason"), which.get("limit")
    if which.keys() - {"ids", "reason", "limit", "since", "until"}:
        raise BadFrames("dead letters are chosen by ids, reason, limit, since and until")
    for name in ("since", "until"):
        when = which.get(name)
        if when is not None and (
            isinstance(when, bool) or not isinstance(when, int | float) or not 0 <= when < _NEVER
        ):
            raise BadFrames(f"{name} is a time in Unix seconds")
    if ids is not None and not (isinstance(ids, list) and all(isinstance(each, str) for each in ids)):
        raise BadFrames("ids are an array of strings")
    if ids is not None and len(ids) > wire.MOST_IDS:
        raise BadFrames(f"dead letters are chosen by at most {wire.MOST_IDS} ids, not by {len(ids)}")
    if reason is not None and not isinstance(reason, str):
        raise BadFrames("reason is a string, a part of the last error's reason")
    whole = isinstance(limit, int) and not isinstance(limit, bool)
    if limit is not None and not (whole and 1 <= limit <= wire.MOST_REDRIVEN):
        raise BadFrames(f"limit {limit!r} is not from 1 to {wire.MOST_REDRIVEN}")


def _is_count(value: Any) -> bool:
    """True for a number of events, or none."""
    return value is None or (
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= wire.MAX_NUMBER
    )


def _check_state(state: str, allowed: tuple[str, ...] | list[str]) -> None:
    if state not in allowed:
        raise BadFrames(f"state {state!r} is not one of {', '.join(allowed)}")
