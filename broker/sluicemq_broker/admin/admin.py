"""All that is read and changed for administration, by subject."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from sluicemq.protocol.errors import UnavailableError
from sluicemq.protocol.rows import BrokersRow, QueueRow, StatsRow
from sluicemq_broker.admin.broker import BrokerAdmin
from sluicemq_broker.admin.dead_letters import DeadLetterAdmin
from sluicemq_broker.admin.devices import DeviceAdmin
from sluicemq_broker.admin.find import Finder
from sluicemq_broker.admin.jobs import JobAdmin
from sluicemq_broker.admin.principals import PrincipalAdmin
from sluicemq_broker.admin.queues import QueueAdmin
from sluicemq_broker.admin.schedules import ScheduleAdmin
from sluicemq_broker.admin.snapshots import About, Snapshot
from sluicemq_broker.queues import Fleet, Tasks


class Admin(NamedTuple):
    """The subjects of administration. Each method of one may wait for MongoDB.

    ``dying()``: how many jobs of each queue became dead letters in the last minutes.
    """

    broker: BrokerAdmin
    queues: QueueAdmin
    jobs: JobAdmin
    finder: Finder
    dead_letters: DeadLetterAdmin
    tasks: Tasks
    schedules: ScheduleAdmin
    principals: PrincipalAdmin
    devices: DeviceAdmin
    fleet: Fleet
    dying: Callable[[], Mapping[str, int]]

    def all_queues(self) -> list[QueueRow]:
        """Return all queues with their counts; without MongoDB, as they were counted last."""
        try:
            return self.queues.all()
        except UnavailableError:
            return self.queues.kept()

    def stats(self, queues: list[QueueRow], *, operates: bool) -> StatsRow:
        """Return the broker's counters, these queues, and what subscribers of each forwarder have lost.

        ``operates``: with the longest turns, which are forgotten then.
        """
        about = self.broker.counters() if operates else self.broker.about()
        return StatsRow(
            broker=about.broker,
            counters=about.counters,
            queues=tuple(queues),
            forwarders=self.devices.forwarders(),
        )

    def snapshot(self, *, actions: bool) -> Snapshot:
        """Return the broker as dashboards show it; ``actions``: whether changes are allowed there."""
        about = About(
            self.broker.now(),
            self.broker.about(),
            {name: text for name, text in self.broker.problems().items() if text},
            actions,
        )
        return Snapshot(self.fleet.added(self.queues.kept()), about, self.dying())

    def brokers(self) -> BrokersRow:
        """Return the brokers on this database, each with its load."""
        found, loads = self.broker.brokers(), self.fleet.loads()
        rows = (replace(row, load=None if row.ended else loads.get(row.name)) for row in found.brokers)
        return replace(found, brokers=tuple(rows))
