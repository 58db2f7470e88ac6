"""How things stand around a queue: an argument of each question to its scheduler."""

from __future__ import annotations

from collections.abc import Callable

from sluicemq_broker.context import Context
from sluicemq_broker.queue.plans import Conditions


class Surroundings:
    """The clocks, the lease and the other brokers of one queue.

    ``go_on`` names the queue where its verdicts count that are not written yet.
    """

    def __init__(self, context: Context, go_on: Callable[[], None]) -> None:
        self._clock = context.clock
        self._timer = context.timer
        self._owners = context.owners
        self._verdicts = context.memory.verdicts
        self._go_on = go_on

    def now(self) -> Conditions:
        """Return how things stand at this moment."""
        owners = self._owners
        may_hand_out = owners.sure and not self._verdicts.is_full(self._go_on)
        brokers = (owners.others, owners.place)
        return Conditions(self._timer.now(), self._clock.now(), owners.current, *brokers, may_hand_out)
