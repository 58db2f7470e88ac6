"""The broker itself: its health, its counters, its gauges, and the brokers beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from sluicemq.protocol import wire
from sluicemq.protocol.rows import (
    BrokersRow,
    CountersRow,
    EventsRow,
    Figures,
    HealthRow,
    UpgradeRow,
    from_wire,
    plain,
)
from sluicemq.protocol.rules import whole
from sluicemq_broker import __version__
from sluicemq_broker.context import Context
from sluicemq_broker.queues import Queues, check_name
from sluicemq_broker.runtime import TEXT, Gauge, Turns, read_options
from sluicemq_broker.store import SCHEMA, StoreAvailability
from sluicemq_devices.sockets import Switchboard


class BrokerAdmin:
    """The broker itself. ``is_open()``: whether its doors are open."""

    def __init__(
        self,
        context: Context,
        queues: Queues,
        store: StoreAvailability,
        turns: Turns,
        board: Switchboard,
        is_open: Callable[[], bool],
    ) -> None:
        self._context = context
        self._queues = queues
        self._store = store
        self._turns = turns
        self._board = board
        self._is_open = is_open
        self._started = context.timer.now()

    def now(self) -> float:
        """Return the time of MongoDB's clock."""
        return self._context.clock.now()

    def health(self) -> HealthRow:
        """Return whether MongoDB answers; at once, without asking it."""
        state = self._store
        return HealthRow(store=state.problem or wire.STORE_OK, store_silent=round(state.silent, 3))

    def problems(self) -> dict[str, str]:
        """Return what is wrong with the store, the lease and the doors; an empty text: nothing."""
        store, why = self._store.problem, "another broker may have declared this one dead"
        no_lease = f"{'the store takes no heartbeat' if store else why}: no jobs are handed out"
        return {
            "store": store,
            "lease": "" if self._context.owners.sure else no_lease,
            "doors": "" if self._is_open() else "the broker starts or stops",
        }

    def counters(self) -> CountersRow:
        """Return :meth:`about`, with the longest turns of the hub since this was last called.

        ``longest_turn``: seconds by the clock; ``longest_turn_cpu``: seconds of computing.
        """
        longest, longest_cpu = self._turns.take()
        about = self.about()
        about.broker[Gauge.LONGEST_TURN] = round(longest, 4)
        about.broker[Gauge.LONGEST_TURN_CPU] = round(longest_cpu, 4)
        return about

    def about(self) -> CountersRow:
        """Return the broker's version, gauges and health, and its counters since its start."""
        broker: Figures = {
            "name": self._context.owners.name,
            "version": __version__,
            "pid": os.getpid(),
            "owner": self._context.owners.current,
            **self.gauges(),
            **plain(self.health()),
        }
        return CountersRow(broker=broker, counters=dict(sorted(self._context.counters.values.items())))

    def gauges(self) -> dict[str, float]:
        """Return uptime, brokers, open connections, and what is on its way."""
        return {
            Gauge.UPTIME: round(self._context.timer.now() - self._started, 3),
            Gauge.BROKERS: 1 + self._context.owners.others,
            Gauge.CONNECTIONS: self._board.connections,
            Gauge.HANDSHAKES: self._board.addresses.handshakes,
            **self._queues.under_way(),
        }

    def brokers(self) -> BrokersRow:
        """Return the brokers on this database, those of the last day that fell silent, and the schemas."""
        brokers, schema = self._context.owners.brokers(), self._context.schema
        return BrokersRow(brokers=brokers, schema=schema.number, newest=SCHEMA)

    def upgrade(self) -> UpgradeRow:
        """Raise the store's schema to the newest, unless a broker that lives can't read it: OldBroker."""
        before = self._context.schema.upgrade(self._context.owners.living, self._context.timer.sleep)
        return UpgradeRow(schema=self._context.schema.number, before=before)

    def events(self, options: dict[str, Any], is_seen: Callable[[str], bool]) -> EventsRow:
        """Return what happened to jobs at this broker since the last question, or from now on.

        ``is_seen``: the queues whose events belong to the answer.
        """
        read = read_options(options, {"after": whole(0, wire.MAX_NUMBER), "queue": TEXT}, "EVENTS")
        queue = check_name(read["queue"]) if "queue" in read else None
        return from_wire(EventsRow, self._context.events.read(read.get("after"), queue, 1000, is_seen))
