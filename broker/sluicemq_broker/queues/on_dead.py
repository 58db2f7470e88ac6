"""Consequences of dead letters: the parent of a failed child dies, and ``on_dead`` moves dead letters.

``on_dead`` of a queue names another queue, with consumers, into which its dead letters are moved. The broker
that made a job a dead letter does both at its next tick. If it died, another broker, or the restarted one,
finds the dead letter in its round. ``kill -9`` or a lost reply at any moment leaves a dead letter in one of
both queues, for each page is one transaction; and notifying a parent twice changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import takewhile
from typing import Final

from sluicemq.protocol.errors import BadQueueError, SluiceError
from sluicemq.protocol.names import is_queue_name
from sluicemq_broker.context import Context
from sluicemq_broker.job import RESULT_WANTED_FOR, Parent
from sluicemq_broker.queue import Queue
from sluicemq_broker.queues.attempts import attempt
from sluicemq_broker.queues.failed_parents import FailedParents
from sluicemq_broker.queues.queues import Queues
from sluicemq_broker.queues.removals import end_left, under_way
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import (
    DeadChild,
    DeadLetters,
    FailedParent,
    Portions,
    Redriven,
    Redrives,
    Removals,
    count_failed_children,
    dead_children,
    death_after,
    fail_parents,
    mark_parents_notified,
)

#: Dead letters in one transaction, at most.
_PAGE: Final = 250
_SELDOM: Final = 32
#: Dead letters that are looked at in one turn: MongoDB reads them, and took over 15 s for a million.
_STEP: Final = 50_000
#: Seconds by which clocks of brokers differ, and statements are late.
_MARGIN: Final = 10.0


class OnDead:
    """Notifies parents of dead letters, and moves dead letters of queues with ``on_dead``.

    In each round one of ``seldom`` queues is searched from the oldest dead letter on, about ``step`` in a
    turn: a broker may have been killed right after a death, or have had no answer for long.
    """

    def __init__(self, queues: Queues, context: Context, *, step: int = _STEP, seldom: int = _SELDOM) -> None:
        self._queues = queues
        self._context = context
        self._families = FailedParents(queues)
        self._portions = Portions(_PAGE, context.counters.notice)
        self._clock = context.clock
        self._counters = context.counters
        self._step, self._seldom = step, seldom
        self._stopping = False
        self._rounds = 0
        #: Pairs (from queue, to queue): all old dead letters were tried to move once; all were moved.
        self._begun: set[tuple[str, str]] = set()
        self._emptied: set[tuple[str, str]] = set()
        self._places: dict[str, float] = {}  # by queue: time of death up to which turns have searched

    def tick(self) -> None:
        """Handle queues in which jobs died here since the last tick; at first all dead letters.

        Called every second or so.
        """
        for queue in self._until_stopped():
            died, to = queue.endings.take_deaths(), _goes_to(queue)
            if died:
                self._try(queue, self._clock.now() - _MARGIN, self._notify_parents)
            if to and (queue.name, to) not in self._begun:
                self._begun.add((queue.name, to))
                self._move_all(queue, to)
            elif to and died:
                self._try(queue, self._clock.now() - _MARGIN, self._move)

    def round(self, seconds: float) -> None:
        """Handle all queues, with dead letters made by other brokers; called every ``seconds``.

        A dead letter whose result is wanted at another broker is moved a minute after its death, so the look
        goes back as far.
        """
        since = self._clock.now() - RESULT_WANTED_FOR - 3 * seconds - _MARGIN
        self._rounds += 1
        self._forget_those_gone()
        self._resume_drops()
        for number, queue in enumerate(self._until_stopped()):
            if (number + self._rounds) % self._seldom == 0:
                self._try(queue, self._places.get(queue.name, 0.0), self._walk)
            if queue.in_use:
                self._try(queue, since, self._notify_parents)
            to = _goes_to(queue)
            if to and (queue.name, to) not in self._emptied:
                self._move_all(queue, to)
            elif to:
                self._try(queue, since, self._move)

    def notify_parents_since(self, since: float) -> None:
        """Notify the parents of children that died from ``since`` on, also in queues that nobody uses here.

        Called when a broker was found dead: it may have been killed right after such a death.
        """
        for queue in self._until_stopped():
            self._try(queue, since - _MARGIN, self._notify_parents)

    def stop(self) -> None:
        """Begin no other page."""
        self._stopping = True

    def _until_stopped(self) -> Iterator[Queue]:
        """Yield all queues, until the broker stops."""
        return takewhile(lambda _queue: not self._stopping, self._queues)

    def _forget_those_gone(self) -> None:
        """Forget queues that were removed, or have another ``on_dead`` now."""
        ways = {(queue.name, _goes_to(queue)) for queue in self._queues}
        self._begun &= ways
        self._emptied &= ways
        there = {name for name, _ in ways}
        self._places = {name: place for name, place in self._places.items() if name in there}

    def _resume_drops(self) -> None:
        try:
            end_left(self._queues, self._context)
            for database in self._queues.documents():
                removals = Removals(database, self._families)
                removals.resume_drops(self._clock.now(), under_way=lambda: under_way(self._queues))
        except SluiceError as error:
            self._counters.notice(Count.UNSWEPT, f"what is left of removed queues stays: {error}")

    def _move_all(self, queue: Queue, to: str) -> None:
        """Move all dead letters; those that can't be moved are tried again in the next round."""
        if self._try(queue, 0.0, self._move) and not self._stopping:
            self._emptied.add((queue.name, to))

    def _try(self, queue: Queue, since: float, step: Callable[[Queue, float], None]) -> bool:
        """Run a step for one queue; True if it succeeded, else it is tried again in the next round."""

        def failed(error: Exception) -> None:
            text = f"dead letters of queue {queue.name} stay there: {type(error).__name__}: {error}"
            self._counters.notice(Count.DEAD_UNMOVED, text, None if isinstance(error, SluiceError) else error)

        return attempt(partial(step, queue, since), failed)

    def _walk(self, queue: Queue, since: float) -> None:
        """Search on through all dead letters of a queue; behind the latest, begin with the oldest again."""
        until = death_after(queue.store, since, self._step)
        self._notify_parents(queue, since, until)
        after = None if until is None else until + 0.001  # dates in MongoDB are in whole milliseconds
        if after is None:
            self._places.pop(queue.name, None)
        else:
            self._places[queue.name] = after
        # Last, because dead letters that can't be moved must not keep parents of later ones waiting.
        if _goes_to(queue):  # a parent was notified, or moving became possible, long after the death
            self._move(queue, since, after)

    def _notify_parents(self, queue: Queue, since: float, until: float | None = None) -> None:
        """Make dead letters of the parents of jobs that died from ``since`` on, and note that.

        Parents that allow failures count them.

        A kill between both statements, or an unclear outcome, repeats it, which changes nothing. Jobs that
        die from now on wait for the next call: else this would not end while jobs die as fast.
        """
        now = self._clock.now()
        until = now if until is None else until
        while not self._stopping and (children := dead_children(queue.store, since, _PAGE, until)):
            counted = [child for child in children if _is_counted(child)]
            if counted:
                count_failed_children(queue.store, counted, now, self._families, self._portions)
            failed = [child for child in children if not _is_counted(child)] if counted else children
            parents = {
                child.parent: child for child in reversed(failed) if child.parent
            }  # by its first child
            reasons: dict[str, dict[Parent, str]] = defaultdict(dict)
            for parent, child in parents.items():
                text = f"child {child.id} in queue {queue.name} is dead: {child.reason}"
                reasons[parent.queue][parent] = text
            for name, these in reasons.items():
                self._fail(name, these, now)
            if failed:
                mark_parents_notified(queue.store, failed)
            since = children[-1].died_at

    def _fail(self, queue: str, parents: dict[Parent, str], now: float) -> None:
        try:
            store = self._queues.open(queue).store
        except BadQueueError:
            return  # the child's document was no job's: no queue can have that name
        failed = fail_parents(store, parents, now)
        self._families.on_parents_failed(
            [FailedParent(queue, parent.id, parents[parent], groups) for parent, groups in failed.items()]
        )

    def _move(self, queue: Queue, since: float, until: float | None = None) -> None:
        """Move the dead letters that died from ``since`` on and before ``until``."""
        target = self._queues.for_dead_letters(queue, _goes_to(queue))
        target.store.prepare(again=True)
        now = self._clock.now()
        dead_letters = DeadLetters(since=since, until=until, unasked=now - RESULT_WANTED_FOR)
        redrives = Redrives(self._queues.database_of(queue), self._counters.notice)
        into, redriven = target.store, Redriven()
        for moved in redrives.redriving(
            queue.name, dead_letters, now, redriven, lambda: _PAGE, into, by_setting=True
        ):
            if moved:
                queue.counters.add(Count.DEAD_MOVED, moved)
                for end in (queue, target):
                    end.capacity.recount()
                target.events.emit(Count.DEAD_MOVED, now, [{"jobs": moved, "from": queue.name}])
                target.groups.freed(redriven.groups)
                target.jobs_ready(moved)
            if self._stopping:
                break


def _is_counted(child: DeadChild) -> bool:
    """Return True if the parent goes on without it; a name by hand may be that of no queue."""
    return child.parent is not None and child.parent.may_fail and is_queue_name(child.parent.queue)


def _goes_to(queue: Queue) -> str:
    """Return the queue into which dead letters are moved; empty: they stay."""
    to = queue.settings.on_dead or ""
    return "" if to == queue.name else to
