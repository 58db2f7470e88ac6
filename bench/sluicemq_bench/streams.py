"""The scenario stream: streams beside queues, in one run against a broker of the bench's own."""

from __future__ import annotations

import multiprocessing
import re
import secrets
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import zmq

from sluicemq.producer import Producer
from sluicemq.publisher import Publisher
from sluicemq.reader import Reader
from sluicemq.worker import Worker
from sluicemq_bench.measure import Watch
from sluicemq_bench.plan import Plan
from sluicemq_bench.processes import BenchFailed
from sluicemq_bench.subscribers import listen
from sluicemq_bench.task import Site

_QUEUE: Final = "bench"
_STREAM: Final = "bench-stream"
_TOPIC: Final = "a.topic"
#: One after the other, each these seconds behind the last: the stream is idle in between.
_ROUNDS: Final = 200
_PAUSE: Final = 0.02
_TIMEOUT: Final = 60.0
#: Seconds without a message after which a subscriber has had all that it gets.
_SILENCE: Final = 10.0
_PROBE: Final = b"probe"
_MS: Final = 1000


class Figure(NamedTuple):
    """One line: a rate, a time, or a ratio; ``wanted``: at least, or at most (<)."""

    key: str
    text: str
    value: float
    unit: str
    wanted: str = ""


@dataclass(frozen=True)
class StreamOutcome:
    """The results of a run."""

    plan: Plan
    figures: list[Figure]

    def as_json(self) -> dict[str, Any]:
        """Return all figures, with units in the names."""
        return {**self.plan.described(), **{figure.key: round(figure.value, 4) for figure in self.figures}}

    def rows(self) -> list[dict[str, Any]]:
        """Return a line for each figure."""
        return [
            {
                "figure": figure.text,
                "value": f"{figure.value:,.0f}" if figure.value >= _MS else f"{figure.value:,.3g}",
                "": figure.unit,
                "wanted": figure.wanted,
            }
            for figure in self.figures
        ]


def run_streams(plan: Plan, site: Site, watch: Watch) -> StreamOutcome:
    """Publish, push, replay, drain, deliver to SUB sockets, and one message at a time on an idle stream."""
    run = _Run(plan, site)
    steps: dict[str, Callable[[], float]] = {
        "publish_per_s": run.publish,
        "push_per_s": run.push,
        "replay_per_s": run.replay,
        "drain_per_s": run.drain,
        "to_1_sub_per_s": lambda: run.deliver(1),
        "to_10_subs_per_s": lambda: run.deliver(10),
    }
    found: dict[str, float] = {}
    for key, step in steps.items():
        watch.phase(key.removesuffix("_per_s").replace("_", " "), None)
        found[key] = step()
    watch.phase("one at a time", _ROUNDS)
    way, insert = run.one_at_a_time(watch)
    return StreamOutcome(plan, _figures(found, way, insert))


def _figures(found: dict[str, float], way: float, insert: float) -> list[Figure]:
    def rate(key: str, text: str) -> Figure:
        return Figure(key, text, found[key], "/s")

    def times(key: str, text: str, value: float, wanted: str) -> Figure:
        return Figure(key, text, value, "x", wanted)

    publish, push = found["publish_per_s"], found["push_per_s"]
    replay, drain = found["replay_per_s"], found["drain_per_s"]
    one, ten = found["to_1_sub_per_s"], found["to_10_subs_per_s"]
    return [
        rate("publish_per_s", "published, confirmed, pipelined"),
        rate("push_per_s", "jobs pushed, confirmed, pipelined"),
        times("publish_of_push", "published over pushed", publish / push, "2"),
        rate("replay_per_s", "replayed by one reader"),
        rate("drain_per_s", "jobs drained by one worker"),
        times("replay_of_drain", "replayed over drained", replay / drain, "5"),
        rate("to_1_sub_per_s", "delivered to 1 SUB socket"),
        rate("to_10_subs_per_s", "delivered to 10 SUB sockets"),
        times("ten_of_one", "to 10 over to 1", ten / one, "5"),
        Figure("pub_to_sub_ms", "PUB to SUB on an idle stream, p50", way, "ms"),
        Figure("insert_ms", "an insert of such a message, at the broker, mean", insert, "ms"),
        times("pub_to_sub_of_insert", "PUB to SUB over an insert", way / insert, "< 1.3"),
    ]


class _Run:
    """``plan.jobs`` messages, and a quarter as many jobs, of ``plan.size`` bytes."""

    def __init__(self, plan: Plan, site: Site) -> None:
        self._messages = plan.jobs
        self._jobs = max(1, plan.jobs // 4)
        self._payload = secrets.token_bytes(plan.size)
        self._site = site
        self._context: zmq.Context[Any] = zmq.Context.instance()

    def publish(self) -> float:
        began = time.perf_counter()
        with Publisher(endpoint=self._site.endpoint) as publisher:
            for _ in range(self._messages):
                publisher.publish(_STREAM, _TOPIC, self._payload)
        return self._messages / (time.perf_counter() - began)

    def push(self) -> float:
        began = time.perf_counter()
        with Producer(endpoint=self._site.endpoint) as producer:
            for _ in range(self._jobs):
                producer.push(_QUEUE, self._payload)
        return self._jobs / (time.perf_counter() - began)

    def replay(self) -> float:
        began = time.perf_counter()
        with Reader(_STREAM, endpoint=self._site.endpoint) as reader:
            read = sum(1 for _ in reader)
        if read != self._messages:
            raise BenchFailed(f"{read} of {self._messages} messages were read")
        return self._messages / (time.perf_counter() - began)

    def drain(self) -> float:
        left, over = [self._jobs], threading.Event()

        def handler(_job: object) -> None:
            left[0] -= 1
            if not left[0]:
                over.set()

        began = time.perf_counter()
        with Worker(_QUEUE, handler, prefetch=1000, endpoint=self._site.endpoint):
            if not over.wait(_TIMEOUT + self._jobs / 1000):
                raise BenchFailed(f"{left[0]} jobs are left")
        return self._jobs / (time.perf_counter() - began)

    def deliver(self, subscribers: int) -> float:
        """Return messages a second to all of them together, in one process that only counts; none is lost."""
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        arguments = (self._site.backend, subscribers, self._jobs, _PROBE, _SILENCE, theirs)
        process = spawn.Process(target=listen, args=arguments, daemon=True)
        pub = self._context.socket(zmq.PUB)
        try:
            pub.sndhwm = 0
            pub.connect(self._site.frontend)
            process.start()
            theirs.close()  # so that it notices its end
            until = time.monotonic() + _TIMEOUT
            while not ours.poll(0.02):
                pub.send_multipart([_PROBE, b""])
                if time.monotonic() > until:
                    raise BenchFailed("the SUB sockets receive nothing")
            ours.recv()
            began = time.monotonic()
            for _ in range(self._jobs):
                pub.send_multipart([b"t", self._payload])
            got, ended = ours.recv()
            return float(got / (ended - began))
        except EOFError:
            raise BenchFailed("the SUB sockets have ended: the broker has hung up on them") from None
        finally:
            pub.close(0)
            process.terminate()
            process.join()

    def one_at_a_time(self, watch: Watch) -> tuple[float, float]:
        """Return the milliseconds from PUB to SUB (median), and of the inserts meanwhile (mean)."""
        ways: list[float] = []
        with self._pair() as (pub, sub):
            seconds, inserts = self._inserts()
            for turn in range(_ROUNDS):
                began = time.perf_counter()
                pub.send_multipart([b"t", self._payload])
                if not sub.poll(int(_TIMEOUT * _MS)):
                    raise BenchFailed("a message did not come")
                sub.recv_multipart()
                ways.append(time.perf_counter() - began)
                watch.at(turn)
                time.sleep(_PAUSE)
            seconds_then, inserts_then = self._inserts()
        mean = (seconds_then - seconds) / max(1.0, inserts_then - inserts)
        return statistics.median(ways) * _MS, mean * _MS

    def _inserts(self) -> tuple[float, float]:
        """Return the seconds of all inserts of the broker so far, and their number."""
        with urllib.request.urlopen(f"http://{self._site.http}/metrics") as answer:
            text = answer.read().decode()

        def value(of: str) -> float:
            name = f'sluicemq_mongodb_statement_seconds_{of}{{command="insert"}} '
            found = re.search(re.escape(name) + r"(\S+)", text)
            return float(found[1]) if found else 0.0

        return value("sum"), value("count")

    @contextmanager
    def _pair(self) -> Iterator[tuple[Any, Any]]:
        """Return a PUB socket, and a SUB socket that receives from it."""
        with self._context.socket(zmq.PUB) as pub, self._context.socket(zmq.SUB) as sub:
            pub.connect(self._site.frontend)
            sub.connect(self._site.backend)
            sub.subscribe(b"")
            until = time.monotonic() + _TIMEOUT
            while not sub.poll(20):
                pub.send_multipart([_PROBE, b""])
                if time.monotonic() > until:
                    raise BenchFailed("the SUB socket receives nothing")
            while sub.poll(300):
                sub.recv_multipart()
            yield pub, sub
