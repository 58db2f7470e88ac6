"""The broker's figures for ``/metrics``: counters, timings, gauges, queues, devices, gauges of parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sluicemq.protocol.rows import DeviceRow, QueueRow
from sluicemq_broker.admin.admin import Admin
from sluicemq_broker.queues import Queues
from sluicemq_broker.runtime import (
    Counters,
    Gauge,
    Histogram,
    KindCounters,
    LabelledGauge,
    Subjects,
    Timing,
    Turns,
)
from sluicemq_broker.store import StoreAvailability


class Figures:
    """All figures of a broker, by the labels that split them; no method waits for MongoDB."""

    def __init__(
        self,
        admin: Admin,
        counters: Counters,
        queues: Queues,
        subjects: Sequence[Subjects],
        store: StoreAvailability,
        turns: Turns,
        labelled: Callable[[], Iterable[LabelledGauge]],
        certificate_left: Callable[[], float | None],
    ) -> None:
        """``certificate_left``: seconds for which the HTTP door's certificate holds; None: it has none."""
        self._admin = admin
        self._counters = counters
        self._queues = queues
        self._subjects = subjects
        self.labelled = labelled
        """Return the gauges of the broker's parts."""
        self._store = store
        self._turns = turns
        self._certificate_left = certificate_left

    def queues(self) -> list[QueueRow]:
        """Return the counts of all queues that are kept here."""
        return self._admin.queues.kept()

    def devices(self) -> tuple[DeviceRow, ...]:
        """Return what each device holds and has counted."""
        return self._admin.devices.all()

    def counters(self) -> dict[str, int]:
        """Return the broker's counters since its start."""
        return dict(self._counters.values)

    def counters_by(self) -> dict[str, list[tuple[str, Mapping[str, int]]]]:
        """Return the counters of all subjects by their kind: of each ``queue``, each ``stream``."""
        return {subject.kind: list(subject.counters()) for subject in self._subjects}

    def kinds(self) -> Iterator[tuple[str, str, KindCounters]]:
        """Yield each queue and kind of jobs with its counters."""
        for queue in self._queues:
            for kind in queue.kinds():
                yield kind.queue, kind.kind, kind.counters

    def timings(self) -> dict[Timing, dict[str, Histogram]]:
        """Return durations by the value of the label that splits them, such as a queue; else by ``""``."""
        found = {timing: {"": histogram} for timing, histogram in self._counters.timings.items()}
        found[Timing.STATEMENT] = dict(self._counters.statements)
        for queue, histograms in self._counters.timings_by_queue.items():
            for timing, histogram in histograms.items():
                found.setdefault(timing, {})[queue] = histogram
        return found

    def gauges(self) -> dict[str, float]:
        """Return the broker's gauges by their names."""
        left = self._certificate_left()
        return {
            **self._admin.broker.gauges(),
            **({} if left is None else {Gauge.CERTIFICATE_LEFT: round(left)}),
            "sluicemq_ready": float(not any(self._admin.broker.problems().values())),
            Gauge.STORE_SILENT: self._store.silent,
            "sluicemq_hub_turns": self._turns.count,
            "sluicemq_hub_busy_seconds": self._turns.busy,
        }
