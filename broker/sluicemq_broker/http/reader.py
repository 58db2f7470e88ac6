"""What the HTTP door reads of a broker, for its API and its metrics; it changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluicemq_broker.doors import Admin, Device
from sluicemq_broker.http.health import Health
from sluicemq_broker.queue import Census, Queues
from sluicemq_broker.runtime import Counters, Gauge, Histogram, Timing, Turns
from sluicemq_broker.store import StoreState


class Reader:
    """The broker as it is looked at. What is kept asks nobody; the other questions are those of ``admin``."""

    def __init__(
        self,
        admin: Admin,
        queues: Queues,
        census: Census,
        devices: Sequence[Device],
        counters: Counters,
        turns: Turns,
        store: StoreState,
        health: Health,
    ) -> None:
        self.queue = admin.queue
        self.peek = admin.peek
        self.show = admin.show
        self.about = admin.about
        self.workers = admin.workers
        self.history = admin.history
        self._admin = admin
        self._queues = queues
        self._census = census
        self._devices = devices
        self._counters = counters
        self._turns = turns
        self._store = store
        self._health = health

    def kept(self) -> list[dict[str, Any]]:
        """All queues, from the counts that are kept."""
        return self._census.kept()

    def devices(self) -> list[dict[str, Any]]:
        """The devices, their doors, and what they hold."""
        return [{**device.describe(), **device.figures()} for device in self._devices]

    def counters(self) -> dict[str, int]:
        """What the broker has counted since its start."""
        return dict(self._counters.values)

    def counters_by_queue(self) -> list[tuple[str, dict[str, int]]]:
        """The same for each queue."""
        return [(queue.name, dict(queue.counters.values)) for queue in self._queues]

    def timings(self) -> dict[Timing, dict[str, Histogram]]:
        """Durations by what splits them."""
        whole = {timing: {"": histogram} for timing, histogram in self._counters.timings.items()}
        return {**whole, Timing.STATEMENT: dict(self._counters.statements)}

    def gauges(self) -> dict[str, float]:
        """How the broker stands."""
        return {
            **self._admin.gauges(),
            "sluicemq_ready": float(not any(self._health.problems.values())),
            Gauge.STORE_SILENT: self._store.silent,
            "sluicemq_hub_turns": self._turns.count,
            "sluicemq_hub_busy_seconds": self._turns.busy,
        }
