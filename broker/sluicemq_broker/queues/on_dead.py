"""What follows from a death: a parent is dead with its child, and letters go where ``on_dead`` says.

Dead letters go on into the queue that their own one names as ``on_dead``, and have consumers there. Whoever
made a job a dead letter does both at its next tick; or it died with its broker: then another broker, or the
restarted one, finds it in its round. ``kill -9`` or a lost reply at any moment leaves a letter in one of both
queues, for each page is one transaction, and a parent that is told twice is dead all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sluicemq.errors import SluiceError
from sluicemq_broker.context import Context
from sluicemq_broker.job import ASKED
from sluicemq_broker.queue import Queue
from sluicemq_broker.queues.families import Families
from sluicemq_broker.queues.queues import Queues
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import (
    Bereaved,
    DeadLetters,
    Redriven,
    Redrives,
    Removals,
    dead_children,
    death_after,
    fail_parent,
    told_parents,
)

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
        self._families = Families(queues)
        self._clock = context.clock
        self._counters = context.counters
        self._known: set[tuple[str, str]] = set()
        self._step, self._seldom = step, seldom
        self._rounds = 0
        self._places: dict[str, float] = {}  # by queue: by when those died that were looked at in turns

    def tick(self) -> None:
        """Every second or so: of queues in which jobs have died here since; at first all there are."""
        for queue in self._queues:
            died, to = queue.take_deaths(), _goes_to(queue)
            if died:
                self._try(queue, self._clock.now() - _MARGIN, self._tell_parents)
            if to and (queue.name, to) not in self._known:
                self._known.add((queue.name, to))
                self._try(queue, 0.0, self._move)
            elif to and died:
                self._try(queue, self._clock.now() - _MARGIN, self._move)

    def round(self, seconds: float) -> None:
        """Every so many seconds: of all queues, whoever made them dead letters.

        What somebody may still ask for at another broker goes a minute after it died, so look so far back.
        """
        since = self._clock.now() - ASKED - 3 * seconds - _MARGIN
        self._resume_drops()
        for number, queue in enumerate(self._queues):
            every = (number + self._rounds) % self._seldom == 0
            if every:
                self._try(queue, self._places.get(queue.name, 0.0), self._walk)
            if queue.in_use:
                self._try(queue, since, self._tell_parents)
            if _goes_to(queue):
                self._try(queue, since, self._move)
        self._rounds += 1
        there = {queue.name for queue in self._queues}
        self._places = {name: place for name, place in self._places.items() if name in there}

    def _resume_drops(self) -> None:
        for database in self._queues.documents():
            try:
                Removals(database, self._families).resume_drops(self._clock.now())
            except SluiceError as error:
                self._counters.notice(Count.UNSWEPT, f"what is left of removed queues stays: {error}")

    def _try(self, queue: Queue, since: float, step: Callable[[Queue, float], None]) -> None:
        """One that fails is counted, and tried again in the next round."""
        try:
            step(queue, since)
        except SluiceError as error:
            text = f"dead letters of queue {queue.name} stay there: {error}"
            self._counters.notice(Count.DEAD_UNMOVED, text)

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
        """Killed between both statements, or unclear: told again, which changes nothing."""
        while children := dead_children(queue.store, since, _PAGE, until):
            now = self._clock.now()
            for each in children:
                above = self._queues.open(each.parent.queue)
                groups = fail_parent(above.store, each, queue.name, now)
                if groups is not None:
                    reason = f"child {each.id} in queue {queue.name} is dead: {each.reason}"
                    self._families.bereaved([Bereaved(above.name, each.parent.id, reason, groups)])
            told_parents(queue.store, children)

    def _move(self, queue: Queue, since: float, until: float | None = None) -> None:
        """Of those that died from then on, and before ``until``."""
        target = self._queues.for_push(_goes_to(queue), by=f"on_dead of queue {queue.name}")
        target.prepare(anew=True)
        now = self._clock.now()
        letters = DeadLetters(since=since, until=until, unasked=now - ASKED)
        redrives = Redrives(self._queues.database_of(queue))
        into, redriven = target.store, Redriven()
        for moved in redrives.redriving(
            queue.name, letters, now, redriven, lambda: _PAGE, into, by_setting=True
        ):
            queue.counters.add(Count.DEAD_MOVED, moved)
            for each in (queue, target):
                each.capacity.recount()
            target.events.tell(Count.DEAD_MOVED, now, [{"jobs": moved, "from": queue.name}])
            target.freed(redriven.groups)
            target.jobs_ready(moved)


def _goes_to(queue: Queue) -> str:
    """The queue into which its dead letters go; empty: they stay."""
    to = queue.settings.on_dead or ""
    return "" if to == queue.name else to
