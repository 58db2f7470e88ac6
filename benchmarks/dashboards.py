"""What the dashboard costs: ``python benchmarks/dashboards.py [--queues N] [--dead N] [--part find]``.

A broker with an embedded MongoDB has so many queues that hold a job each, each of a kind of its own, and so
many dead letters in one.
First each page's questions are asked 10 times: what one takes, in milliseconds, and how many bytes come; and
the same again when broker and MongoDB have been started anew, with nothing in their caches. Beside it the
processor time of broker and mongod for a whole page: where others use the machine that tells more. Then
jobs go from push to done with nobody looking and with a scrape a second and ten dashboards open, in turn:
jobs a second, and the processor time that broker and mongod take for 1,000 jobs. Last, a broker that does
nothing else is scraped and looked at: the share of a processor that this costs. Part ``find``: how long a
search of all jobs takes, and what one that never ends does to push to done. What is promised is that
share, of what push to done takes when nobody looks: with a thousand queues at rest a rate that falls, as the
programs that watch share the processors, makes each job dearer by itself.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from pymongo import MongoClient

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests"))

from benchmarks.seeing import cpu_seconds

from sluicemq import Client, Producer, Worker
from support.broker_process import BrokerProcess

TIMES, DASHBOARDS, ROUNDS = 10, 10, 3
PARTS = ("pages", "flow", "idle", "find")
#: What is promised: milliseconds for a page, kilobytes that it moves, and the share of a processor.
MILLISECONDS, KILOBYTES, SHARE = 300, 64, 0.02
V1 = "/api/v1"
#: When the first dead letter died: a month ago.
DIED = int(time.time()) - 30 * 86_400
_DEAD = f"{V1}/queues/letters/dead"
_FIFTY = ",".join(f"q-{number:04}" for number in range(50))
#: Searches of all jobs, which find nothing.
SEARCHES = {"error": f"{V1}/find?error=nowhere", "text": f"{V1}/find?text=nowhere"}
#: The questions of each page, as the dashboard asks them.
PAGES = {
    "overview": [
        *(f"{V1}/overview?sort=in&limit=8", f"{V1}/series/broker/*?span=month", f"{V1}/incidents?span=month"),
        f"{V1}/brokers",
    ],
    "queues": [f"{V1}/overview?sort=ready&limit=50", f"{V1}/recent?queue={_FIFTY}"],
    "queue": [
        *(f"{V1}/overview?only=letters&limit=1", f"{V1}/queues/letters/jobs?state=dead&limit=25"),
        *(f"{V1}/queues/letters/backlog", f"{V1}/queues/letters/settings", f"{V1}/series/queue/letters"),
        *(f"{V1}/kinds?queue=letters", f"{V1}/workers?queue=letters"),
    ],
    "kinds": [f"{V1}/kinds?limit=100"],
    "job": [f"{V1}/queues/letters/jobs/d-0001500?payload=65536"],
    "jobs of a queue by id": [f"{V1}/queues/letters/jobs?id=d-00&limit=50"],
    "find by id": [f"{V1}/find?id=d-0001500"],
    "find by error": [f"{V1}/find?error=rare"],
    "find by text": [f"{V1}/find?text=nowhere"],
    "find a kind that is ready": [f"{V1}/find?kind=kind-7&state=ready"],
    "dead": [f"{_DEAD}?limit=25", f"{_DEAD}/count", f"{_DEAD}/reasons"],
    "dead, far behind": [f"{_DEAD}?limit=25&until={DIED + 100}"],
    "dead by reason": [f"{_DEAD}?limit=25&reason=rare", f"{_DEAD}/count?reason=rare"],
    "workers": [f"{V1}/workers"],
    "streams": [f"{V1}/streams"],
    "schedules, operations, storage": [f"{V1}/schedules", f"{V1}/operations", f"{V1}/kept"],
    "the page itself": ["/", "/dashboard/app.js", "/dashboard/style.css", "/dashboard/uplot.min.js"],
}  # fmt: skip


def main() -> int:
    """Measure, print, and return 1 if a page is above its bounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--dead", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--part", choices=PARTS, action="append", help="by default all four")
    parser.add_argument("--folder", type=Path, help="where all of it is kept, and found again the next time")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--watch", help=argparse.SUPPRESS)
    parser.add_argument("--dashboards", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--scrapes", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--search", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.search:
        while True:
            _search(options.watch, SEARCHES[options.search])
    if options.watch:
        _watch(options.watch, options.dashboards, scrapes=options.scrapes)
    config = {
        "broker": {"max_queues": options.queues + 10, "log_level": "warning", "http": "127.0.0.1:0"},
        "queues": {
            **{f"q-{number:04}": {} for number in range(options.queues)},  # pushes make ten a second
            "letters": {"dead_retention": 3650 * 86_400.0, "max_dead": 2 * options.dead},
        },
    }
    folder: Path | None = options.folder
    is_filled = folder is not None and folder.exists()
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    with BrokerProcess(config=config, folder=folder) as broker:
        if not is_filled:
            _fill(broker, options.queues, options.dead)
        _push_kinds(broker, options.queues)
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "pages": lambda: _pages(broker),
            "flow": lambda: _flow(broker, options.seconds),
            "idle": lambda: _idle(broker, options.seconds),
            "find": lambda: _find(broker, options.seconds),
        }
        found = {name: part() for name, part in parts.items() if name in (options.part or PARTS)}
    _show(found, as_json=options.json)
    slow = [
        name
        for name, page in found.get("pages", {}).items()
        if page["most_ms"] > MILLISECONDS or ("the page itself" not in name and page["kb"] > KILOBYTES)
    ]
    for name in slow:
        print(f"MISSED: {name}: {MILLISECONDS} ms and {KILOBYTES} KB are promised")
    return int(bool(slow) or _costs_too_much(found))


def _costs_too_much(found: dict[str, Any]) -> bool:
    """What watching takes of a processor, of what broker and mongod take for push to done."""
    if not {"flow", "idle"} <= found.keys():
        return False
    alone = found["flow"]["alone"]
    whole = alone["jobs_s"] * (alone["broker_ms_1000"] + alone["mongod_ms_1000"]) / 1e6
    lost = found["idle"]["share"] / whole
    print(
        f"verdict: {'kept' if lost <= SHARE else 'MISSED'}: {lost:.2%} of push to done, promised {SHARE:.0%}"
    )
    return bool(lost > SHARE)


def _fill(broker: BrokerProcess, queues: int, dead: int) -> None:
    endpoint = broker.doors["smq"]
    with Producer(endpoint=endpoint) as producer, Client(timeout=60, endpoint=endpoint) as client:
        for number in range(queues):
            producer.push(f"q-{number:04}", b"one")
        producer.push("letters", b"one")
        producer.flush(600)
        _kill(broker, dead)
        while any(row.counted_ago is None for row in client.queues.list()):
            time.sleep(0.5)


def _push_kinds(broker: BrokerProcess, queues: int) -> None:
    """Push jobs of as many kinds as there are queues: they are counted since the broker's start."""
    with Producer(endpoint=broker.doors["smq"]) as producer:
        for number in range(queues):
            producer.push(f"q-{number:04}", b"one", kind=f"kind-{number}")
        producer.flush(600)


def _kill(broker: BrokerProcess, dead: int) -> None:
    """As they lie after so many deaths; a thousand of them have a reason of their own, far behind."""
    client: MongoClient[dict[str, Any]] = MongoClient(broker.embedded_uri)
    jobs, began = client["sluicemq"]["queue.letters"], datetime.fromtimestamp(DIED, UTC)
    for first in range(0, dead, 5000):
        jobs.insert_many(
            [_letter(number, began) for number in range(first, min(first + 5000, dead))], ordered=False
        )
    client.close()


def _letter(number: int, began: datetime) -> dict[str, Any]:
    at = began + timedelta(milliseconds=number // 3)
    reason = "a rare one" if number < 1000 else f"error {number % 7}"
    return {
        "_id": f"d-{number:07}", "state": "dead", "priority": 0, "eligible_at": at, "seq": number,
        "attempts": 5, "created_at": at, "payload": b"x" * 200, "ended_at": at,
        "errors": [{"at": at, "attempt": 5, "reason": reason, "worker": "one host:1"}],
    }  # fmt: skip


def _pages(broker: BrokerProcess) -> dict[str, dict[str, float]]:
    """The dead letters are asked for first when all has been started anew."""
    running = {name: _page(broker, paths) for name, paths in PAGES.items()}
    broker.terminate()
    broker.restart()
    anew = sorted(PAGES.items(), key=lambda page: "dead" not in page[0])
    return {**running, **{f"{name}, anew": _page(broker, paths) for name, paths in anew}}


def _page(broker: BrokerProcess, paths: list[str]) -> dict[str, float]:
    """The worst and the median of its slowest question; what all of them move, and take of processors."""
    slowest: list[float] = []
    used: list[list[float]] = []
    pids = (broker.pid, broker.mongod_pid)
    for _ in range(TIMES):
        before = cpu_seconds(pids)
        took, moved = zip(*(_ask(broker.http, path) for path in paths), strict=True)
        used.append([b - a for a, b in zip(before, cpu_seconds(pids), strict=True)])
        slowest.append(max(took) * 1000)
    ours, mongod = (1000 * statistics.median(seconds) for seconds in zip(*used, strict=True))
    return {
        "median_ms": round(statistics.median(slowest), 1),
        "most_ms": round(max(slowest), 1),
        "broker_cpu_ms": round(ours, 1),
        "mongod_cpu_ms": round(mongod, 1),
        "most_cpu_ms": round(1000 * max(map(sum, used)), 1),
        "kb": round(sum(moved) / 1024, 1),
    }


def _ask(address: str, path: str) -> tuple[float, int]:
    began = time.monotonic()
    size = len(_answer(address, path))
    return time.monotonic() - began, size


def _answer(address: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", path)
    response = connection.getresponse()
    text = response.read()
    assert response.status == 200, (path, text[:500])
    connection.close()
    return text


class Rate(NamedTuple):
    """Jobs a second from push to done; processor time of broker and mongod for each second of them."""

    jobs: float
    broker: float
    mongod: float


def _flow(broker: BrokerProcess, seconds: float) -> dict[str, Any]:
    """Push to done with nobody looking and with all of them, in turn: A B A B."""
    rates: dict[str, list[Rate]] = {"alone": [], "watched": []}
    for _ in range(ROUNDS):
        rates["alone"].append(_push_to_done(broker, seconds))
        with _watchers(broker.http):
            rates["watched"].append(_push_to_done(broker, seconds))
    found: dict[str, Any] = {name: _medians(of_window) for name, of_window in rates.items()}
    return found


def _find(broker: BrokerProcess, seconds: float) -> dict[str, Any]:
    """Each search by itself, and push to done with none and with one that begins again and again."""
    found: dict[str, Any] = {name: _search(broker.http, path) for name, path in SEARCHES.items()}
    rates: dict[str, list[Rate]] = {"alone": [], **{name: [] for name in SEARCHES}}
    for _ in range(ROUNDS):
        rates["alone"].append(_push_to_done(broker, seconds))
        for name in SEARCHES:
            command = [sys.executable, __file__, "--watch", broker.http, "--search", name]
            with subprocess.Popen(command) as process:
                time.sleep(1)
                rates[name].append(_push_to_done(broker, seconds))
                process.terminate()
    return {"searches": found, "flow": {name: _medians(of_window) for name, of_window in rates.items()}}


def _search(address: str, path: str) -> dict[str, float]:
    """Search all jobs; returns the seconds, and how long its requests took."""
    took: list[float] = []
    after: str | None = ""
    while after is not None:
        began = time.monotonic()
        answer = _answer(address, f"{path}&after={quote(after)}" if after else path)
        took.append(time.monotonic() - began)
        page = json.loads(answer)
        after = page.get("next")
    return {
        "seconds": round(sum(took), 2),
        "jobs": page["searched"],
        "requests": len(took),
        "most_ms": round(1000 * max(took), 1),
    }


def _medians(rates: list[Rate]) -> dict[str, float]:
    return {
        "jobs_s": round(statistics.median(rate.jobs for rate in rates)),
        "broker_ms_1000": round(statistics.median(rate.broker / rate.jobs * 1e6 for rate in rates), 2),
        "mongod_ms_1000": round(statistics.median(rate.mongod / rate.jobs * 1e6 for rate in rates), 2),
    }


def _push_to_done(broker: BrokerProcess, seconds: float) -> Rate:
    done = 0

    def handler(_job: object) -> None:
        nonlocal done
        done += 1

    endpoint, pids = broker.doors["smq"], (broker.pid, broker.mongod_pid)
    with Producer(endpoint=endpoint) as producer, Worker("flow", handler, prefetch=1000, endpoint=endpoint):
        _push_for(producer, 1.0)
        began, before, cpu = time.monotonic(), done, cpu_seconds(pids)
        _push_for(producer, seconds)
        took, count = time.monotonic() - began, done - before
        used = [(b - a) / took for a, b in zip(cpu, cpu_seconds(pids), strict=True)]
        producer.flush(60)
    return Rate(count / took, *used)


def _push_for(producer: Producer, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        producer.push_many("flow", [b"x" * 200] * 256)


def _idle(broker: BrokerProcess, seconds: float) -> dict[str, float]:
    """Of one processor, what the broker takes for a scrape a second, and for ten dashboards."""

    def share() -> float:
        (before,), began = cpu_seconds((broker.pid,)), time.monotonic()
        time.sleep(seconds)
        return (cpu_seconds((broker.pid,))[0] - before) / (time.monotonic() - began)

    time.sleep(10)  # until what the load has left is done
    scraped, watched = [], []
    for _ in range(2 * ROUNDS):
        with _watchers(broker.http, dashboards=0):
            scraped.append(share())
        rest = share()
        with _watchers(broker.http, scrapes=False):
            watched.append(share() - rest)
        scraped[-1] -= rest
    scrapes, dashboards = statistics.median(scraped), statistics.median(watched)
    return {
        "scrapes": round(scrapes, 4),
        "dashboards": round(dashboards, 4),
        "share": round(scrapes + dashboards, 4),
    }


@contextmanager
def _watchers(address: str, *, scrapes: bool = True, dashboards: int = DASHBOARDS) -> Iterator[None]:
    """A scrape a second, and ten dashboards, in a process of their own."""
    command = [sys.executable, __file__, "--watch", address, "--dashboards", str(dashboards)]
    command += ["--scrapes"] if scrapes else []
    with subprocess.Popen(command) as process:
        time.sleep(3)
        try:
            yield
        finally:
            process.terminate()


def _watch(address: str, dashboards: int, *, scrapes: bool) -> None:
    """Half of them look at the overview, half at a page of queues."""
    views = ["sort=in&limit=8", "sort=ready&limit=50"] * (dashboards // 2)
    for view in views:
        threading.Thread(target=_look, args=(address, view), daemon=True).start()
    while True:
        time.sleep(1.0)
        if scrapes:
            _ask(address, "/metrics")


def _look(address: str, view: str) -> None:
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", f"{V1}/live?{view}")
    response = connection.getresponse()
    while response.readline():
        pass


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    for name, page in found.get("pages", {}).items():
        times = f"median {page['median_ms']:7.1f}  most {page['most_ms']:7.1f}"
        of = f"broker {page['broker_cpu_ms']:5.1f}, mongod {page['mongod_cpu_ms']:5.1f}"
        print(f"{name:24} ms: {times}  CPU: {of}, most {page['most_cpu_ms']:6.1f}  KB {page['kb']:5.1f}")
    for name in ("alone", "watched") if "flow" in found else ():
        flow = found["flow"][name]
        cpu = f"broker {flow['broker_ms_1000']:6.2f} ms, mongod {flow['mongod_ms_1000']:6.2f} ms"
        print(f"push to done, {name:8} {flow['jobs_s']:7} jobs/s   CPU of 1,000: {cpu}")
    if "find" in found:
        _show_searches(found["find"])
    if "idle" in found:
        idle = {name: f"{share * 100:.2f} %" for name, share in found["idle"].items()}
        idle_shares = f"a scrape a second {idle['scrapes']}, dashboards {idle['dashboards']}"
        print(f"of a processor: {idle_shares}, both {idle['share']}")


def _show_searches(found: dict[str, Any]) -> None:
    for name, search in found["searches"].items():
        requests = f"{search['requests']} requests, the longest {search['most_ms']} ms"
        print(f"search by {name}: {search['jobs']:,} jobs in {search['seconds']} s, {requests}")
    for name, flow in found["flow"].items():
        cpu = f"broker {flow['broker_ms_1000']:6.2f} ms, mongod {flow['mongod_ms_1000']:6.2f} ms"
        print(f"push to done, search: {name:6} {flow['jobs_s']:7} jobs/s   CPU of 1,000: {cpu}")


if __name__ == "__main__":
    sys.exit(main())
