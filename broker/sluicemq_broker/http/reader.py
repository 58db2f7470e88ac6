"""What the HTTP door reads of a broker, for its API, its metrics and the dashboard; it changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sluicemq.protocol import wire
from sluicemq_broker.config import RouteSettings
from sluicemq_broker.context import Context
from sluicemq_broker.doors import Admin, Device, StreamSide
from sluicemq_broker.http.health import Health
from sluicemq_broker.http.job_pages import JobPages
from sluicemq_broker.http.snapshots import Snapshot
from sluicemq_broker.queues import Queues
from sluicemq_broker.runtime import Counters, Gauge, Histogram, Timing, Turns
from sluicemq_broker.statistics import Census, History, Incidents, Series
from sluicemq_broker.store import StoreAvailability
from sluicemq_broker.streams import Lags


class Reader:
    """The broker as it is looked at. What is kept asks nobody; the other questions are those of ``admin``."""

    def __init__(
        self,
        admin: Admin,
        *,
        queues: Queues,
        census: Census,
        devices: Sequence[Device],
        counters: Counters,
        turns: Turns,
        store: StoreAvailability,
        health: Health,
        streams: StreamSide,
        lags: Lags,
        routes: Sequence[RouteSettings],
        context: Context,
        history: History,
        incidents: Incidents,
    ) -> None:
        self.queue = admin.queue
        self.show = admin.show
        self.weigh_show = admin.weigh_show
        self.about = admin.about
        self.workers = admin.workers
        self.jobs = JobPages(queues, census, context)
        self.tasks = admin.tasks
        self.task = admin.task
        self.history = admin.history
        self.incidents = incidents.read
        self._dying = incidents.dying
        self._admin = admin
        self._queues = queues
        self._census = census
        self._devices = devices
        self._counters = counters
        self._turns = turns
        self._store = store
        self._health = health
        self._streams = streams
        self._lags = lags
        self._routes = routes
        self._clock = context.clock
        self._owners = context.owners
        self._series = Series(history)

    def snapshot(self, *, actions: bool) -> Snapshot:
        """The broker as it stands; ``actions``: whether anybody may change something here."""
        problems = {name: text for name, text in self._health.problems.items() if text}
        about = self._admin.about()
        return Snapshot(
            self._census.kept_in_turns(),
            {
                "at": self._clock.now(),
                "broker": {**about["broker"], "name": self._owners.name},
                "counters": about["counters"],
                "problems": problems,
                "actions": actions,
            },
            self._dying(),
        )

    def brokers(self) -> list[dict[str, Any]]:
        """The brokers on its database, this one included, and those of the last day that fell silent."""
        return self._owners.brokers()

    def series(self, kind: str, name: str, span: str) -> dict[str, Any]:
        """Curves of one subject, for a chart."""
        return self._series.of(kind, name, span, self._clock.now())

    def recent(self, queues: Sequence[str]) -> dict[str, Any]:
        """Small curves of the last hour of these queues."""
        return self._series.recent(queues, self._clock.now())

    def schedules(self) -> list[dict[str, Any]]:
        """All recurring jobs."""
        return list(self._admin.schedule(wire.LIST, {}))

    def streams(self) -> dict[str, Any]:
        """``{streams, subscriptions, routes}``: what is kept, who reads it how far, what becomes jobs."""
        subscriptions = self._streams.subscriptions()
        places = {(each["stream"], each["name"]): each for each in subscriptions}
        return {
            "streams": self._streams.admin.list(),
            "subscriptions": subscriptions,
            "routes": [_route(each, places.get((each.stream, each.name), {})) for each in self._routes],
        }

    def kept(self) -> list[dict[str, Any]]:
        """All queues, from the counts that are kept, in turns of the hub."""
        return self._census.kept_in_turns()

    def devices(self) -> list[dict[str, Any]]:
        """The devices, their doors, and what they hold."""
        return [
            {"name": each.name, **each.describe(), **each.figures(), "counted": each.counted()}
            for each in self._devices
        ]

    def lags(self) -> list[dict[str, Any]]:
        """How far subscriptions are behind, as of the last look."""
        return self._lags.rows

    def counters(self) -> dict[str, int]:
        """What the broker has counted since its start."""
        return dict(self._counters.values)

    def counters_by(self) -> dict[str, list[tuple[str, Mapping[str, int]]]]:
        """The same by label: for each ``queue``, and each ``stream``."""
        return {
            "queue": [(each.name, each.counters.values) for each in self._queues],
            "stream": [(each.name, each.counters.values) for each in self._streams],
        }

    def timings(self) -> dict[Timing, dict[str, Histogram]]:
        """Durations by what splits them."""
        found = {timing: {"": histogram} for timing, histogram in self._counters.timings.items()}
        found[Timing.STATEMENT] = dict(self._counters.statements)
        for queue, histograms in self._counters.timings_by_queue.items():
            for timing, histogram in histograms.items():
                found.setdefault(timing, {})[queue] = histogram
        return found

    def gauges(self) -> dict[str, float]:
        """How the broker stands."""
        return {
            **self._admin.gauges(),
            "sluicemq_ready": float(not any(self._health.problems.values())),
            Gauge.STORE_SILENT: self._store.silent,
            "sluicemq_hub_turns": self._turns.count,
            "sluicemq_hub_busy_seconds": self._turns.busy,
        }


def _route(settings: RouteSettings, stands: Mapping[str, Any]) -> dict[str, Any]:
    lag = {name: stands.get(name) for name in ("behind", "seconds_behind", "holder", "watermark")}
    return {
        "stream": settings.stream,
        "topics": list(settings.topics),
        "queue": settings.queue,
        "subscription": settings.name,
        **lag,
    }
