"""What follows from a death: a parent is dead with its child, and letters go where ``on_dead`` says.

Dead letters go on into the queue that their own one names as ``on_dead``, and have consumers there. Whoever
made a job a dead letter does both at its next tick; or it died with its broker: then another broker, or the
restarted one, finds it in its round. ``kill -9`` or a lost reply at any moment leaves a letter in one of both
queues, for each page is one transaction, and a parent that is told twice is dead all the same.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Final

from sluicemq.protocol.errors import BadQueue, SluiceError, Unavailable
from sluicemq_broker.context import Context
from sluicemq_broker.job import RESULT_WANTED_FOR, Parent
from sluicemq_broker.queue import Queue
from sluicemq_broker.queues.failed_parents import FailedParents
from sluicemq_broker.queues.queues import Queues
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import (
    DeadLetters,
    FailedParent,
    Redriven,
    Redrives,
    Removals,
    Unclear,
    dead_children,
    death_after,
    fail_parents,
    mark_parents_notified,
)

log = logging.getLogger("broker.on_dead")

#: Letters in one transaction, at most.
_PAGE: Final = 250
_SELDOM: Final = 32
#: MongoDB has to read them: for a million at once that took more than the 15 s that it has for an answer.
_STEP: Final = 50_000
_MILLISECOND: Final = 0.001
#: Seconds by which clocks of brokers differ, and statements are late.
_MARGIN: Final = 10.0


class OnDead:
    """The dead letters of all queues: of which a parent must hear, and of those that say ``on_dead``.

    Of all queues one of ``seldom`` has its turn in each round: a broker may have been killed right after a
    death, or got no answer for long. Of their dead letters about ``step`` are looked at in a turn.
    """

    def __init__(self, queues: Queues, context: Context, *, step: int = _STEP, seldom: int = _SELDOM) -> None:
        self._queues = queues
        self._families = FailedParents(queues)
        self._clock = context.clock
        self._counters = context.counters
        self._step, self._seldom = step, seldom
        self._stopping = False
        self._rounds = 0
        #: From which queue into which all that were there are tried to move, and have moved.
        self._begun: set[tuple[str, str]] = set()
        self._emptied: set[tuple[str, str]] = set()
        self._places: dict[str, float] = {}  # by queue: by when those died that were looked at in turns

    def tick(self) -> None:
        """Every second or so: of queues in which jobs have died here since; at first all there are."""
        for queue in self._each():
            died, to = queue.take_deaths(), _goes_to(queue)
            if died:
                self._try(queue, self._clock.now() - _MARGIN, self._tell_parents)
            if to and (queue.name, to) not in self._begun:
                self._begun.add((queue.name, to))
                self._move_all(queue, to)
            elif to and died:
                self._try(queue, self._clock.now() - _MARGIN, self._move)

    def round(self, seconds: float) -> None:
        """Every so many seconds: of all queues, whoever made them dead letters.

        What somebody may still ask for at another broker goes a minute after it died, so look so far back.
        """
        since = self._clock.now() - RESULT_WANTED_FOR - 3 * seconds - _MARGIN
        self._rounds += 1
        self._forget_those_gone()
        self._resume_drops()
        for number, queue in enumerate(self._each()):
            if (number + self._rounds) % self._seldom == 0:
                self._try(queue, self._places.get(queue.name, 0.0), self._walk)
            if queue.in_use:
                self._try(queue, since, self._tell_parents)
            to = _goes_to(queue)
            if to and (queue.name, to) not in self._emptied:
                self._move_all(queue, to)
            elif to:
                self._try(queue, since, self._move)

    def stop(self) -> None:
        """Begin with no other page."""
        self._stopping = True

    def _each(self) -> Iterator[Queue]:
        """All queues, until it stops."""
        return takewhile(lambda _queue: not self._stopping, self._queues)

    def _forget_those_gone(self) -> None:
        """One that is removed, or has another ``on_dead``, begins anew."""
        ways = {(queue.name, _goes_to(queue)) for queue in self._queues}
        self._begun &= ways
        self._emptied &= ways
        there = {name for name, _ in ways}
        self._places = {name: place for name, place in self._places.items() if name in there}

    def _resume_drops(self) -> None:
        for database in self._queues.documents():
            try:
                Removals(database, self._families).resume_drops(self._clock.now())
            except SluiceError as error:
                self._counters.notice(Count.UNSWEPT, f"what is left of removed queues stays: {error}")

    def _move_all(self, queue: Queue, to: str) -> None:
        """Those that are there go first; what can't go now is tried again in the next round."""
        if self._try(queue, 0.0, self._move) and not self._stopping:
            self._emptied.add((queue.name, to))

    def _try(self, queue: Queue, since: float, step: Callable[[Queue, float], None]) -> bool:
        """One that fails is counted, and tried again in the next round; where MongoDB is away, so are all."""
        try:
            step(queue, since)
        except Exception as error:
            if isinstance(error, Unavailable) and not isinstance(error, Unclear):
                raise
            if not isinstance(error, SluiceError):
                log.exception("the dead letters of queue %s", queue.name)
            text = f"dead letters of queue {queue.name} stay there: {type(error).__name__}: {error}"
            self._counters.notice(Count.DEAD_UNMOVED, text)
            return False
        return True

    def _walk(self, queue: Queue, since: float) -> None:
        """Go on through all its dead letters, from the oldest to the latest and anew."""
        until = death_after(queue.store, since, self._step)
        self._tell_parents(queue, since, until)
        after = None if until is None else until + _MILLISECOND
        if after is None:
            self._places.pop(queue.name, None)
        else:
            self._places[queue.name] = after
        # Last, for letters that can't be moved must not keep later ones from being told of.
        if _goes_to(queue):  # those that were told, or could be moved, only long after they died
            self._move(queue, since, after)

    def _tell_parents(self, queue: Queue, since: float, until: float | None = None) -> None:
        """Killed between both statements, or unclear: told again, which changes nothing.

        What dies from now on has its own turn: else it would not end where they die as fast.
        """
        now = self._clock.now()
        until = now if until is None else until
        while not self._stopping and (children := dead_children(queue.store, since, _PAGE, until)):
            parents = {each.parent: each for each in reversed(children) if each.parent}  # by its first child
            reasons: dict[str, dict[Parent, str]] = defaultdict(dict)
            for parent, child in parents.items():
                text = f"child {child.id} in queue {queue.name} is dead: {child.reason}"
                reasons[parent.queue][parent] = text
            for name, these in reasons.items():
                self._fail(name, these, now)
            mark_parents_notified(queue.store, children)
            since = children[-1].died_at

    def _fail(self, queue: str, parents: dict[Parent, str], now: float) -> None:
        try:
            store = self._queues.open(queue).store
        except BadQueue:
            return  # a document that is no job: no queue can have that name
        failed = fail_parents(store, parents, now)
        self._families.on_parents_failed(
            [FailedParent(queue, parent.id, parents[parent], groups) for parent, groups in failed.items()]
        )

    def _move(self, queue: Queue, since: float, until: float | None = None) -> None:
        """Of those that died from then on, and before ``until``."""
        target = self._queues.for_push(_goes_to(queue), by=f"on_dead of queue {queue.name}")
        target.prepare(again=True)
        now = self._clock.now()
        letters = DeadLetters(since=since, until=until, unasked=now - RESULT_WANTED_FOR)
        redrives = Redrives(self._queues.database_of(queue), self._counters.notice)
        into, redriven = target.store, Redriven()
        for moved in redrives.redriving(
            queue.name, letters, now, redriven, lambda: _PAGE, into, by_setting=True
        ):
            if moved:
                queue.counters.add(Count.DEAD_MOVED, moved)
                for each in (queue, target):
                    each.capacity.recount()
                target.events.emit(Count.DEAD_MOVED, now, [{"jobs": moved, "from": queue.name}])
                target.freed(redriven.groups)
                target.jobs_ready(moved)
            if self._stopping:
                break


def _goes_to(queue: Queue) -> str:
    """The queue into which its dead letters go; empty: they stay."""
    to = queue.settings.on_dead or ""
    return "" if to == queue.name else to
