"""``/metrics``: the figures are there, in the forms of Prometheus, by its conventions."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from sluicemq import Publisher, Worker
from sluicemq.protocol.rows import DeviceRow, QueueRow, from_document
from sluicemq_broker.admin import Figures
from sluicemq_broker.http import metrics
from sluicemq_broker.http.exposition import form_for, written
from sluicemq_broker.http.metrics import MOST_QUEUES, Detail, name_of
from sluicemq_broker.parts import kept as kept_part
from sluicemq_broker.parts.streams import part as streams_part
from sluicemq_broker.runtime import (
    OTHERS,
    Count,
    Counters,
    Gauge,
    Histogram,
    KindCounters,
    LabelledGauge,
    QueueCounters,
    Timing,
)
from sluicemq_broker.runtime.counters import MOST_TIMED
from sluicemq_broker.store import SHOWN_STATES
from sluicemq_devices.hub import DeviceCount, Mishap
from support.http_reader import Web
from support.own_queue import OwnQueue
from support.waiting import wait_until

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Scrape:
    """What one scrape has brought."""

    def __init__(self, families: Iterator[Any]) -> None:
        self.families = {family.name: family for family in families}

    def value(self, sample: str, **labels: str) -> float:
        """The one sample of this name with these labels; NaN if there is none."""
        found = (
            float(reading.value)
            for family in self.families.values()
            for reading in family.samples
            if reading.name == sample and reading.labels == labels
        )
        return next(found, math.nan)


def scrape(web: Web) -> Scrape:
    answer = web.get("/metrics", Accept=OPENMETRICS)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    return Scrape(openmetrics.text_string_to_metric_families(answer.body.decode()))  # type: ignore[no-untyped-call]


def test_a_job_is_counted_from_its_push_to_its_commit(web: Web, jobs: OwnQueue) -> None:
    for _ in range(3):
        jobs.push()
    with Worker(jobs.queue, lambda _job: None, endpoint=jobs.endpoint):
        wait_until(lambda: not ((now := jobs.counts())["reserved"] + now["ready"]), what="the work")
    seen = wait_until(
        lambda: (found := scrape(web)).value("sluicemq_jobs_committed_total", queue=jobs.queue) == 3 and found
    )
    assert seen.value("sluicemq_jobs_pushed_total", queue=jobs.queue) == 3
    assert seen.value("sluicemq_jobs_delivered_total", queue=jobs.queue) >= 3
    for timing, count in (("time_in_queue", 3), ("time_at_worker", 3), ("push_confirmation", 1)):
        name = f"sluicemq_job_{timing}_seconds_count"
        own = seen.value(name, queue=jobs.queue)  # or it came after the first fifty
        assert (seen.value(name, queue=OTHERS) if math.isnan(own) else own) >= count
    assert seen.value("sluicemq_mongodb_statement_seconds_count", command="insert") >= 1
    assert seen.value("sluicemq_jobs_waited_seconds_total", queue=jobs.queue) >= 0


def test_a_queue_has_its_series_at_0_before_anything_happened_to_it(web: Web, jobs: OwnQueue) -> None:
    jobs.push(delay=1000)
    seen = wait_until(
        lambda: (found := scrape(web)).value("sluicemq_jobs_pushed_total", queue=jobs.queue) == 1 and found
    )
    counters = [name_of(count) for count in Count if count.labels == ("queue",) and count is not Count.PUSHED]
    at_0 = {name: seen.value(f"{name}_total", queue=jobs.queue) for name in counters}
    assert at_0 == dict.fromkeys(counters, 0)


def test_how_the_broker_its_queues_and_its_devices_stand_is_told(web: Web, jobs: OwnQueue) -> None:
    jobs.push(delay=1000)
    jobs.counts()
    wait_until(
        lambda: scrape(web).value("sluicemq_queue_jobs", queue=jobs.queue, state="scheduled") == 1,
        what="the delayed job",
    )
    seen = wait_until(
        lambda: (found := scrape(web)).value("sluicemq_hub_delay_seconds_count") > 0 and found,
        what="the first look at the hub's timers",
    )
    assert seen.value("sluicemq_ready") == 1
    assert seen.value("sluicemq_brokers") >= 1
    assert seen.value("sluicemq_connections") >= 1
    assert seen.value("sluicemq_hub_turns_total") > 0
    assert seen.value("process_resident_memory_bytes") > 0
    assert seen.value("process_open_fds") > 0
    assert seen.value("sluicemq_device_connections", device="0", kind="queue", queue="serves") == 2


@pytest.mark.full
def test_streams_count_and_subscriptions_tell_how_far_they_are_behind(web: Web, jobs: OwnQueue) -> None:
    stream = f"stream-{jobs.queue}"
    with Publisher(endpoint=jobs.endpoint) as publisher:
        for _ in range(5):
            publisher.publish(stream, "a", b"message")
    jobs.client.subscriptions.seek(stream, "sums", 2)
    behind = {"stream": stream, "subscription": "sums"}
    seen = wait_until(
        lambda: (
            (found := scrape(web)).value("sluicemq_subscription_behind_messages", **behind) == 3 and found
        ),
        what="a look",
    )
    assert seen.value("sluicemq_subscription_behind_seconds", **behind) > 0
    assert seen.value("sluicemq_subscription_held", **behind) == 0
    assert seen.value("sluicemq_published_total", stream=stream) == 5
    assert seen.value("sluicemq_published_bytes_total", stream=stream) >= 5 * len(b"message")
    # And once it has read all
    jobs.client.subscriptions.seek(stream, "sums", 5)
    wait_until(lambda: scrape(web).value("sluicemq_subscription_behind_messages", **behind) == 0)
    jobs.client.subscriptions.delete(stream, "sums")


def test_the_older_form_is_given_to_whoever_does_not_ask_for_the_new_one(web: Web) -> None:
    answer = web.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    found = {family.name for family in text_string_to_metric_families(answer.body.decode())}
    assert "sluicemq_jobs_pushed" in found


# -------------------------------------------------------------------- conventions


@pytest.fixture(scope="module")
def everything() -> Scrape:
    """All figures of a broker that has counted each, in the new form."""
    registry = CollectorRegistry()
    registry.register(metrics.BrokerCollector(Everything(queues=3)))
    text = written(registry.collect(), form_for(OPENMETRICS)).decode()
    return Scrape(openmetrics.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]


SUBSCRIPTIONS = tuple(streams_part.GAUGES.values())


class Everything(Figures):
    """A broker in which everything has happened once, with so many queues."""

    def __init__(self, queues: int, prefix: str = "queue-") -> None:
        self.names = [f"{prefix}{number}" for number in range(queues)]
        self.once = {str(count): 1 for count in (*Count, *Mishap)}

    def counters(self) -> dict[str, int]:
        return dict.fromkeys(self.once, len(self.names) + 1)

    def counters_by(self) -> dict[str, list[tuple[str, Mapping[str, int]]]]:
        return {"queue": [(name, self.once) for name in self.names], "stream": [("prices", self.once)]}

    def timings(self) -> dict[Timing, dict[str, Histogram]]:
        return {timing: {"insert" if timing.labels else "": Histogram()} for timing in Timing}

    def gauges(self) -> dict[str, float]:
        return dict.fromkeys([*map(str, Gauge), *metrics.MORE], 1.0)

    def queues(self) -> list[QueueRow]:
        gauges = dict.fromkeys(map(str, Gauge), 1)
        rows = ({"name": name, "paused": ["intake"], **gauges} for name in self.names)
        return [from_document(QueueRow, row) for row in rows]

    def kinds(self) -> Iterator[tuple[str, str, KindCounters]]:
        counters = KindCounters(0.0)
        counters.values.update(self.once)
        yield from ((name, "receipt", counters) for name in self.names)

    def labelled(self) -> list[LabelledGauge]:
        labels, row = ("stream", "subscription"), (("prices", "sums"), 1.0)
        found = [LabelledGauge(f"subscription_{name}", text, labels, [row]) for name, text in SUBSCRIPTIONS]
        kept = (("dead letters", "mail"), 0.5)
        return found + [
            LabelledGauge(*about, ("kind", "name"), [kept]) for about in kept_part.GAUGES.values()
        ]

    def devices(self) -> tuple[DeviceRow, ...]:
        counted = {str(count): 1 for count in DeviceCount}
        held = {**dict.fromkeys(metrics.OF_DEVICES, 1), "shut": True}
        about = {"kind": "queue", "queue": "mail", "counted": counted}
        return (from_document(DeviceRow, {**about, **held}),)


_LABELS = (
    "le", "queue", "stream", "subscription", "state", "command", "what", "device", "kind", "version",
    "name",
)  # fmt: skip


def test_names_are_as_promtool_wants_them(everything: Scrape) -> None:
    """The rules of ``promtool check metrics``, which no package brings."""
    wrong = []
    for name, family in everything.families.items():
        if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
            wrong.append(f"{name}: not lower case with underscores")
        if not family.documentation:
            wrong.append(f"{name}: no help")
        if family.type == "counter" and not all(sample.name.endswith("_total") for sample in family.samples):
            wrong.append(f"{name}: a counter ends in _total")
        if family.type != "counter" and name.endswith(("_total", "_count", "_sum", "_bucket")):
            wrong.append(f"{name}: this ending is of another type")
        if re.search(r"_(gauge|counter|histogram|summary)(_|$)", name):
            wrong.append(f"{name}: the type stands in the name")
        if re.search(r"_(ms|milliseconds|minutes|hours|kb|mb|kilobytes|megabytes|percent)(_|$)", name):
            wrong.append(f"{name}: not a base unit")
        wrong += [
            f"{name}: label {label} repeats the name or is no word"
            for sample in family.samples
            for label in sample.labels
            if label not in _LABELS
        ]
    assert wrong == []


def test_every_figure_of_the_tables_is_there(everything: Scrape) -> None:
    shown = set(everything.families)
    told_otherwise = {*SHOWN_STATES, Gauge.LONGEST_TURN, Gauge.LONGEST_TURN_CPU}
    figures = [
        *Count,
        *DeviceCount,
        *Mishap,
        *Timing,
        *(gauge for gauge in Gauge if gauge not in told_otherwise),
    ]
    assert {name_of(figure) for figure in figures} - shown == set()


def test_no_two_figures_have_one_name() -> None:
    names = [name_of(count) for count in (*Count, *DeviceCount, *Mishap, *Timing)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("accept", [OPENMETRICS, "text/plain"])
def test_what_is_written_is_what_prometheus_own_library_would_write(accept: str) -> None:
    registry = CollectorRegistry()
    registry.register(metrics.BrokerCollector(Everything(queues=3, prefix='odd "name"\\\n')))
    assert written(registry.collect(), form_for(accept)) == choose_encoder(accept)[0](registry)


def test_the_first_queues_have_histograms_of_their_own_and_the_others_share_one() -> None:
    counters = Counters()
    queues = [QueueCounters(counters, queue=f"queue-{number}") for number in range(MOST_TIMED + 2)]
    for queue in queues:
        queue.took(Timing.TIME_AT_WORKER, [0.1])
        queue.took(Timing.TIME_AT_WORKER, [0.2])
    counts = {
        queue: sum(timings[Timing.TIME_AT_WORKER].counts)
        for queue, timings in counters.timings_by_queue.items()
    }
    assert counts == {**{f"queue-{number}": 2 for number in range(MOST_TIMED)}, OTHERS: 4}


def test_the_sum_over_all_queues_is_that_of_the_broker(everything: Scrape) -> None:
    pushed = everything.families["sluicemq_jobs_pushed"].samples
    assert sum(job.value for job in pushed) == 4
    assert {job.labels["queue"] for job in pushed} == {"queue-0", "queue-1", "queue-2", OTHERS}


@pytest.mark.parametrize(
    ("detail", "names", "histograms"),
    [("broker", set(), 0), ("queues", {"mail"}, 0), ("histograms", {"mail"}, 50)],
)
def test_the_setting_leaves_out_splits_by_queue(detail: str, names: set[str], histograms: int) -> None:
    # Given: 60 queues with a duration
    counters = Counters()
    for number in range(60):
        QueueCounters(counters, queue=f"queue-{number}").took(Timing.TIME_AT_WORKER, [0.1])
    figures = Everything(queues=1, prefix="mail")
    figures.names = ["mail"]
    figures.timings = lambda: {  # type: ignore[method-assign]
        Timing.TIME_AT_WORKER: {
            name: timings[Timing.TIME_AT_WORKER] for name, timings in counters.timings_by_queue.items()
        }
    }
    families = {
        figure.name: figure for figure in metrics.BrokerCollector(figures, lambda: Detail(detail)).collect()
    }
    pushed = families["sluicemq_jobs_pushed"].samples
    assert {job.labels["queue"] for job in pushed} == names | {OTHERS}
    assert sum(job.value for job in pushed) == 2
    timed = families["sluicemq_job_time_at_worker_seconds"].samples
    counts = {sample.labels["queue"]: sample.value for sample in timed if sample.name.endswith("_count")}
    assert len(counts) == histograms + 1
    assert sum(counts.values()) == 60


def test_there_are_no_more_series_than_for_so_many_queues() -> None:
    families = list(metrics.BrokerCollector(Everything(queues=MOST_QUEUES + 50)).collect())
    for family in families:
        names = {sample.labels["queue"] for sample in family.samples if "queue" in sample.labels}
        assert len(names) <= MOST_QUEUES + 1
    (jobs,) = (found for found in families if found.name == "sluicemq_queue_jobs")
    others = [sample.value for sample in jobs.samples if sample.labels == {"queue": OTHERS, "state": "ready"}]
    assert others == [50]
