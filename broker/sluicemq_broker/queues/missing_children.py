"""A search for parents that wait for children which are in no queue any more, page by page."""

from __future__ import annotations

from typing import Final

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.context import Context
from sluicemq_broker.queue import Queue
from sluicemq_broker.queues.failed_parents import FailedParents
from sluicemq_broker.queues.queues import Queues
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import (
    FailedParent,
    WaitingParents,
    count_missing_children,
    fail_parents,
    waiting_parents,
)

#: One that is dead, and was so before its parent was redriven, ends it no more.
_LOST: Final = "are dead letters, or in no queue any more"
#: The share of time that the search may take.
_SHARE: Final = 1 / 20
#: Seconds between two rounds through all queues, at least.
_ROUND: Final = 5.0
#: Queues in one turn, unless one has more parents than a page.
_QUEUES: Final = 20


class MissingChildren:
    """The search of one broker: rounds through all its queues.

    A turn looks at one page of parents, and then rests for twenty times as long. A broker may be killed at
    any moment: the next search finds the parents.
    """

    def __init__(self, queues: Queues, context: Context) -> None:
        self._queues = queues
        self._families = FailedParents(queues)
        self._clock = context.clock
        self._timer = context.timer
        self._counters = context.counters
        self._waiting: list[str] = []  # queues that are still to be searched in this round
        self._after = 0  # place in the first of them behind which the search goes on
        self._rests_until = 0.0

    def tick(self) -> None:
        """Take a turn, unless the search rests; called every second or so."""
        began = self._timer.now()
        if began < self._rests_until:
            return
        try:
            self._search()
        finally:
            rest = (self._timer.now() - began) / _SHARE
            self._rests_until = self._timer.now() + (rest if self._waiting else max(rest, _ROUND))

    def _search(self) -> None:
        self._waiting = self._waiting or [each.name for each in self._queues if each.store.groups.ever_waited]
        for name in self._waiting[:_QUEUES]:
            queue = self._queues.known(name)
            if queue is not None and self._look(queue):
                break
            self._next()

    def _next(self) -> None:
        self._after = 0
        del self._waiting[0]

    def _look(self, queue: Queue) -> bool:
        """Look at the next page of a queue's parents; False: it has no more."""
        try:
            page = waiting_parents(queue.store, self._after)
            self._fail(queue, page)
        except SluiceError:
            self._next()  # this queue comes again in the next round
            raise
        self._after = page.after or 0
        return page.after is not None

    def _fail(self, queue: Queue, page: WaitingParents) -> None:
        lost = (
            count_missing_children(queue.store, page.parents, self._queues.documents())
            if page.parents
            else {}
        )
        reasons = {each: f"{count} of its children {_LOST}" for each, count in lost.items()}
        failed = fail_parents(queue.store, reasons, self._clock.now())
        self._families.on_parents_failed(
            [FailedParent(queue.name, each.id, reasons[each], groups) for each, groups in failed.items()]
        )
        for each in failed:
            text = f"job {each.id} of queue {queue.name} is a dead letter: {reasons[each]}"
            self._counters.notice(Count.CHILDREN_LOST, text, about={"queue": queue.name, "job": each.id})
