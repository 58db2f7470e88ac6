"""The core of one queue, which its parts share."""

from __future__ import annotations

from sluicemq_broker.context import Context
from sluicemq_broker.queue.plans import Conditions
from sluicemq_broker.queue.ports import Dispatcher
from sluicemq_broker.queue.scheduler import Scheduler
from sluicemq_broker.store import QueueStore


class QueueCore:
    """One queue as its parts have it: its name, its collection, its scheduler, and the broker around it.

    A part that has changed what the scheduler knows calls ``dispatch``, or ``hand_out`` if that was only the
    room of workers. ``dispatch`` also names the queue where its verdicts count that are not written yet.
    """

    def __init__(
        self,
        name: str,
        store: QueueStore,
        context: Context,
        scheduler: Scheduler,
        dispatcher: Dispatcher,
    ) -> None:
        self.name = name
        self.store = store
        self.scheduler = scheduler
        self.dispatch, self.hand_out = dispatcher.dispatch, dispatcher.hand_out
        self.clock = context.clock
        self.timer = context.timer
        self.owners = context.owners
        self.memory = context.memory
        self.schema = context.schema
        self.retry = context.retry
        self.counters = context.counters
        self.events = context.events
        self.notify_brokers = context.notify_brokers

    def conditions(self) -> Conditions:
        """Return how things stand at this moment: an argument of each question to the scheduler."""
        owners = self.owners
        may_hand_out = owners.sure and not self.memory.verdicts.is_full(self.dispatch)
        brokers = (owners.others, owners.place)
        return Conditions(self.timer.now(), self.clock.now(), owners.current, *brokers, may_hand_out)
