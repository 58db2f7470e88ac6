"""``/metrics``: the broker's figures for Prometheus, made from the tables of figures.

Names follow Prometheus' conventions: ``sluicemq_``, the figure, its base unit, ``_total`` for counters. The
label ``queue`` has :data:`MOST_QUEUES` values at most; counts of other queues, and of none, are under
``queue="*"``, so that the sum over all queues is the broker's count. A histogram of a queue has 60 lines in a
scrape, so :data:`MOST_TIMED` queues have their own. The setting ``metrics_detail`` leaves out more.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any, Final

import falcon
from gevent.lock import BoundedSemaphore
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Sample,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.registry import Collector

from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rows import DeviceRow, QueueRow
from sluicemq_broker import __version__
from sluicemq_broker.admin import Figures
from sluicemq_broker.http.exposition import Form, form_for, written
from sluicemq_broker.runtime import BOUNDS, OTHERS, Count, Gauge, Histogram, KindCounters, Timing
from sluicemq_broker.security import Caller, visible
from sluicemq_broker.store import SHOWN_STATES
from sluicemq_devices.hub import DeviceCount, Latest, Metric, Mishap, let_others_run

#: Queues with figures of their own.
MOST_QUEUES: Final = 1000
#: Queues with histograms of their own.
MOST_TIMED: Final = 50
#: Kinds with figures of their own.
MOST_KINDS: Final = 500
_PREFIX: Final = "sluicemq_"

#: Patterns of the queues that a caller may read, and of the streams; None: it sees all figures.
_Sight = tuple[tuple[str, ...], tuple[str, ...]] | None
_Asked = tuple[Form, _Sight]
#: Figures that would have the name of another one.
_NAMES: Final[dict[Metric, str]] = {Count.JOBS_REFUSED: "push_jobs_refused", Gauge.FULL: "is_full"}
_OF_NO_JOB: Final = {Timing.STATEMENT: "mongodb_statement", Timing.HUB_DELAY: str(Timing.HUB_DELAY)}
_STATES: Final = frozenset(SHOWN_STATES)


class Detail(StrEnum):
    """Figures that are split by queue and stream: none; counts and gauges; the durations of jobs, too."""

    BROKER = "broker"
    QUEUES = "queues"
    HISTOGRAMS = "histograms"


def _all_details() -> Detail:
    return Detail.HISTOGRAMS


class Metrics:
    """The resource ``/metrics``. ``detail()``: the setting now. ``now``: monotonic seconds."""

    def __init__(
        self,
        figures: Figures,
        detail: Callable[[], Detail] = _all_details,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(BrokerCollector(figures, detail))
        ProcessCollector(registry=self._registry)
        self._now = now
        # With the time until which each is served: in two forms, for callers that see different queues
        self._latest: Latest[_Asked, tuple[float, bytes]] = Latest(20)
        self._turn = BoundedSemaphore()

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        """Answer all figures: as OpenMetrics for a client that accepts it, else in the older form.

        Without ``operate``: those of queues and streams that the caller may see.
        """
        form = form_for(request.get_header("Accept") or "")
        response.content_type = form.content_type
        with self._turn:  # two scrapes at one time get one answer
            response.data = self._text(form, request.context.caller)

    def _text(self, form: Form, caller: Caller) -> bytes:
        caller = caller.as_now()
        asked = form, _sight(caller)
        until, text = self._latest.get(asked, (float("-inf"), b""))
        if self._now() >= until:
            began = time.thread_time()
            families = self._registry.collect()
            text = written(families if asked[1] is None else _visible(families, caller), form)
            # One answer serves all scrapes meanwhile: with many queues they take a 200th of the CPU time
            until = self._now() + max(0.5, min(10.0, 200 * (time.thread_time() - began)))
        self._latest[asked] = until, text
        return text


def _sight(caller: Caller) -> _Sight:
    """Return what decides which figures a caller sees; None: it sees all."""
    if caller.may(Action.OPERATE):
        return None
    permissions = caller.principal.permissions
    return permissions.patterns(Action.READ), permissions.patterns(Action.SUBSCRIBE)


def _visible(families: Iterable[Family], caller: Caller) -> Iterator[Family]:
    """Yield the series that have the name of a queue or stream that the caller may see."""
    may = {"queue": visible.names(caller, Action.READ), "stream": visible.names(caller, Action.SUBSCRIBE)}
    for family in families:
        family.samples = [sample for sample in family.samples if _is_visible(sample.labels, may)]
        if family.samples:
            yield family


def _is_visible(labels: Mapping[str, str], may: Mapping[str, Callable[[str], bool]]) -> bool:
    name = next((label for label in labels if label in may), None)
    return name is not None and "device" not in labels and labels[name] != OTHERS and may[name](labels[name])


def name_of(figure: Metric) -> str:
    """Return the name of a figure in ``/metrics``, without the suffix of its type."""
    name = _NAMES.get(figure, str(figure))
    if isinstance(figure, DeviceCount):
        name = f"device_{name}" + ("_messages" if figure.unit == "messages" else "")
        return _PREFIX + name + ("_seconds" if figure.unit == "ms" else "")
    if figure.unit in ("jobs", "ms") and "jobs" not in name:
        name = f"jobs_{name}"
    if isinstance(figure, Timing):
        name = _OF_NO_JOB.get(figure, f"job_{name}")
    if isinstance(figure, Gauge) and figure.labels:
        name = f"queue_{name}"
    return _PREFIX + name + ("_seconds" if figure.unit in ("s", "ms") else "")


class BrokerCollector(Collector):
    """Yields family after family; after some of them the hub has a turn."""

    def __init__(self, figures: Figures, detail: Callable[[], Detail] = _all_details) -> None:
        self._figures = figures
        self._detail = detail

    def collect(self) -> Iterator[Family]:
        """Yield every family; after some of them the hub has a turn."""
        figures, detail, rendered = self._figures, self._detail(), 0
        named = 0 if detail is Detail.BROKER else MOST_QUEUES
        timed = MOST_TIMED if detail is Detail.HISTOGRAMS else 0
        yield InfoMetricFamily(f"{_PREFIX}broker", "the broker's version", {"version": __version__})
        for families in (
            _counted(figures.counters(), figures.counters_by(), named),
            _timed(figures.timings(), timed),
            _gauges(figures.gauges()),
            _queues(figures.queues(), named),
            _kinds(figures.kinds() if named else ()),
            _devices(figures.devices()),
            (_gauge(*figure) for figure in figures.labelled() if named),
        ):
            for family in families:
                yield family
                rendered += len(family.samples)
                if rendered >= 500:  # some milliseconds
                    rendered = 0
                    let_others_run()


def _counted(
    whole: dict[str, int], parts: dict[str, list[tuple[str, Mapping[str, int]]]], most: int
) -> Iterator[Family]:
    for figure in (*Count, *Mishap):
        total = whole.get(figure, 0)
        if not figure.labels:
            family = CounterMetricFamily(name_of(figure), figure.text)
            family.add_metric([], _in_base_units(figure, total))
            yield family
            continue
        family = CounterMetricFamily(name_of(figure), figure.text, labels=figure.labels)
        (label,) = figure.labels
        sample = f"{family.name}_total"
        for name, values in parts.get(label, [])[:most]:
            # Also a count of 0: a series that begins with its first event shows no increase.
            count = values.get(figure, 0)
            family.samples.append(Sample(sample, {label: name}, _in_base_units(figure, count)))
            total -= count
        family.add_metric([OTHERS], _in_base_units(figure, max(0, total)))
        yield family


def _in_base_units(figure: Metric, value: float) -> float:
    return value / 1000 if figure.unit == "ms" else value


def _timed(timings: dict[Timing, dict[str, Histogram]], most: int) -> Iterator[Family]:
    for timing, histograms in timings.items():
        family = HistogramMetricFamily(name_of(timing), timing.text, labels=timing.labels, unit="seconds")
        shown = _first(histograms, most) if timing.labels == ("queue",) else histograms
        for label, histogram in shown.items():
            family.add_metric([label] if timing.labels else [], list(_buckets(histogram)), histogram.sum)
        yield family


def _first(histograms: dict[str, Histogram], most: int) -> dict[str, Histogram]:
    """Return the first histograms, and the sum of the others."""
    shown = dict(
        islice(((name, histogram) for name, histogram in histograms.items() if name != OTHERS), most)
    )
    others = [histogram for name, histogram in histograms.items() if name not in shown]
    if others:
        rest = Histogram()
        rest.counts = [sum(counts) for counts in zip(*(other.counts for other in others), strict=True)]
        rest.sum = sum(other.sum for other in others)
        shown[OTHERS] = rest
    return shown


def _buckets(histogram: Histogram) -> Iterator[tuple[str, float]]:
    within = 0
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), histogram.counts, strict=True):
        within += count
        yield bound, within


def _gauges(values: dict[str, float]) -> Iterator[Family]:
    for figure in Gauge:
        if not figure.labels and figure in values:
            yield GaugeMetricFamily(name_of(figure), figure.text, value=values[figure])
    for name, (text, kind) in MORE.items():
        yield kind(name, text, value=values[name])


#: Figures of the process that are in no table, for ``sluicemq stats`` would show those.
MORE: Final[dict[str, tuple[str, Any]]] = {
    "sluicemq_ready": ("1 if the broker can take and hand out jobs, as /readyz says", GaugeMetricFamily),
    "sluicemq_hub_turns": ("turns of the hub", CounterMetricFamily),
    "sluicemq_hub_busy_seconds": ("time that the hub was busy", CounterMetricFamily),
}


def _queues(rows: list[QueueRow], most: int) -> Iterator[Family]:
    shown = rows[:most]
    jobs = [((row.name, state), getattr(row, state)) for row in shown for state in SHOWN_STATES]
    jobs += [((OTHERS, state), sum(getattr(row, state) for row in rows[most:])) for state in SHOWN_STATES]
    yield _gauge("queue_jobs", "jobs in MongoDB by state", ("queue", "state"), jobs)
    for figure in (gauge for gauge in Gauge if gauge.labels and gauge not in _STATES):
        values = [((row.name,), getattr(row, figure) or 0) for row in shown]
        yield _gauge(name_of(figure).removeprefix(_PREFIX), figure.text, figure.labels, values)
    paused = [((row.name, what), 1) for row in shown for what in row.paused]
    yield _gauge("queue_paused", "1 while it is paused", ("queue", "what"), paused)


def _kinds(kinds: Iterable[tuple[str, str, KindCounters]]) -> Iterator[Family]:
    """Yield what was counted by kind; kinds behind the first :data:`MOST_KINDS` share a label per broker."""
    rows = list(kinds)
    for figure, text in OF_KINDS.items():
        sums: Counter[tuple[str, str]] = Counter()
        for place, (queue, kind, counters) in enumerate(rows):
            label = (queue, kind) if place < MOST_KINDS else (OTHERS, OTHERS)
            sums[label] += counters.values[figure]
        name = name_of(figure).removeprefix(_PREFIX).removeprefix("jobs_")
        counted = CounterMetricFamily(f"{_PREFIX}kind_{name}", text, labels=("queue", "kind"))
        for labels, count in sums.items():
            counted.add_metric(labels, _in_base_units(figure, count))
        yield counted


#: Figures of kinds, with what they count.
OF_KINDS: Final = {
    Count.PUSHED: "jobs of a kind that were stored",
    Count.COMMITTED: "jobs of a kind that are done",
    Count.ROLLED_BACK: "attempts of a kind that failed",
    Count.REJECTED: "jobs of a kind that a worker sent to the dead letters",
    Count.DEAD: "jobs of a kind that became dead letters",
    Count.WORKED: "time that jobs of a kind were at workers",
}


def _devices(rows: Sequence[DeviceRow]) -> Iterator[Family]:
    labels = [(str(number), row.kind, row.queue) for number, row in enumerate(rows)]
    for key, (name, text) in OF_DEVICES.items():
        values = [(label, getattr(row, key)) for label, row in zip(labels, rows, strict=True)]
        yield _gauge(f"device_{name}", text, ("device", "kind", "queue"), values)
    for figure in DeviceCount:
        counted = CounterMetricFamily(name_of(figure), figure.text, labels=figure.labels)
        for label, row in zip(labels, rows, strict=True):
            counted.add_metric(label, _in_base_units(figure, getattr(row.counted, figure)))
        yield counted


OF_DEVICES: Final = {
    "connections": ("connections", "open connections"),
    "held": ("held_messages", "messages on their way to MongoDB or to subscribers"),
    "held_bytes": ("held_bytes", "bytes of messages on their way to MongoDB or to subscribers"),
    "unsettled": ("unsettled_jobs", "jobs at workers without a verdict"),
    "shut": ("shut", "1 while producers are not read"),
}


def _gauge(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> Family:
    family = GaugeMetricFamily(_PREFIX + name, text, labels=labels)
    for label, value in values:
        family.add_metric(label, value)
    return family
