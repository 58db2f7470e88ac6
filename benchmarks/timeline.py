"""Where the time of one job goes at an idle queue: ``python benchmarks/timeline.py``.

A producer pushes a job every 10 ms to a broker with an embedded MongoDB, a worker takes them. Each of
the three processes notes when a job passes certain points (all share the machine's monotonic clock);
printed is the median time from each point to the next. The notes themselves take a microsecond each.
"""

# ruff: noqa: PLC0415 - each process imports its part only, and the broker's patches before that

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

PERIOD = 0.01  # seconds from job to job
QUEUE = "default"
#: What a job passes, in this order, and who notes it.
POINTS = {
    "pushed": "the producer calls push()",
    "sent": "the library's thread gives it to ZeroMQ",
    "read": "the broker reads it",
    "insert": "the broker calls its driver",
    "asked": "the driver sends the insert",
    "answered": "MongoDB has answered: it is durable",
    "inserted": "the driver returns",
    "delivered": "the broker gives it to the worker's connection",
    "received": "the library's thread has it",
    "taken": "the handler is called",
}

Notes = list[tuple[str, int]]
notes: Notes = []


def note(name: str) -> None:
    """Now, a job passes this point."""
    notes.append((name, time.perf_counter_ns()))


def noting(
    owner: Any, name: str, before: str = "", after: str = "", when: Callable[..., bool] = lambda *_: True
) -> None:
    """Have a function note when it is called, or has returned."""
    function = getattr(owner, name)

    def noted(*args: Any, **settings: Any) -> Any:
        if before and when(*args):
            note(before)
        answer = function(*args, **settings)
        if after and when(*args, answer):
            note(after)
        return answer

    setattr(owner, name, noted)


def produce(endpoint: str, jobs: int) -> None:
    """Push on time, whatever became of those before."""
    from sluicemq import Producer
    from sluicemq.transport.link import Link

    noting(Link, "send", before="sent", when=lambda _link, frames, *_: frames[1] == b"PUSH")
    with Producer(endpoint=endpoint) as producer:
        producer.push(QUEUE, b"the first pays for the imports").wait(10)
        notes.clear()
        start = time.perf_counter() + PERIOD
        for number in range(jobs):
            time.sleep(max(0.0, start + number * PERIOD - time.perf_counter()))
            note("pushed")
            producer.push(QUEUE, bytes(200))


def work(endpoint: str, jobs: int) -> None:
    """Take that many and the first."""
    from sluicemq import Worker
    from sluicemq.transport.link import Link

    def came(_link: Link, messages: list[list[bytes]] | None = None) -> bool:
        return any(frames[1] == b"DELIVER" for frames in messages or ())

    noting(Link, "receive", after="received", when=came)
    with Worker(QUEUE, lambda _job: note("taken"), prefetch=10, endpoint=endpoint):
        print("ready", flush=True)
        while sum(name == "taken" for name, _ in notes) <= jobs:
            time.sleep(0.05)


def serve(arguments: list[str]) -> None:
    """The broker."""
    from gevent import monkey

    monkey.patch_all()
    import pymongo.network_layer
    import pymongo.synchronous.pool

    from sluicemq_broker.command import main as serve_broker
    from sluicemq_broker.store.jobs.numbered_inserts import Insert
    from sluicemq_devices.sockets.connection import Connection
    from sluicemq_devices.sockets.outbox import Outbox

    noting(Connection, "_readable", before="read")
    noting(Insert, "send", before="insert", after="inserted")
    noting(pymongo.synchronous.pool, "sendall", before="asked")
    noting(pymongo.network_layer, "sendall", before="asked")
    noting(pymongo.synchronous.pool, "receive_message", after="answered")
    noting(Outbox, "send", before="delivered", when=lambda _box, frames, *_: frames[1] == b"DELIVER")
    serve_broker(arguments)


def main() -> int:
    """Run all three and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--jobs", type=int, default=400)
    jobs = parser.parse_args().jobs
    with tempfile.TemporaryDirectory(prefix="sluicemq-timeline-") as folder:
        found = _run(Path(folder), jobs)
    rows = [row for row in map(_row, *_by_job(found, jobs)) if row]
    print(f"{len(rows)} of {jobs} jobs whose way was free; medians, in us\n")
    for at, (name, what) in enumerate(POINTS.items()):
        step = statistics.median(row[at] - row[max(0, at - 1)] for row in rows) / 1000
        whole = statistics.median(row[at] - row[0] for row in rows) / 1000
        print(f"{name:10} {step:8,.0f} {whole:8,.0f}   {what}")
    return 0


def _run(folder: Path, jobs: int) -> dict[str, Notes]:
    ready = folder / "ready"
    endpoint = "tcp://127.0.0.1:5550"
    with ExitStack() as ending:
        broker = _start(
            ending, folder, "serve", "--data-dir", str(folder / "data"), "--ready-file", str(ready)
        )
        while not ready.exists():
            if broker.poll() is not None:
                raise SystemExit("the broker does not start: is another one running?")
            time.sleep(0.05)
        worker = _start(ending, folder, "work", endpoint, str(jobs))
        _first_line(worker)
        _start(ending, folder, "produce", endpoint, str(jobs)).wait(60)
        worker.wait(60)
    return {role: json.loads((folder / role).read_text()) for role in ("serve", "work", "produce")}


def _start(ending: ExitStack, folder: Path, role: str, *arguments: str) -> subprocess.Popen[str]:
    roots = os.pathsep.join(
        str(Path(__file__).parents[1] / root) for root in ("broker", "devices", "clients")
    )
    environment = {**os.environ, "PYTHONPATH": roots, "TIMELINE": str(folder / role)}
    quiet = subprocess.DEVNULL if role == "serve" else None
    command = [sys.executable, __file__, role, *arguments]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=quiet, text=True)
    ending.callback(process.wait, 60)
    ending.callback(process.terminate)
    return process


def _first_line(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline() if process.stdout else ""


def _by_job(found: dict[str, Notes], jobs: int) -> tuple[list[Notes], ...]:
    """For each job what each process has noted from its push on, up to the next one."""
    starts = [when for name, when in found["produce"] if name == "pushed"] + [sys.maxsize]
    return tuple(
        [[entry for entry in seen if starts[job] <= entry[1] < starts[job + 1]] for job in range(jobs)]
        for seen in found.values()
    )


def _row(*seen: Notes) -> list[int] | None:
    """When the job has passed each point, if it has passed them in order."""
    row: list[int] = []
    for name in POINTS:
        later = [
            when for points in seen for point, when in points if point == name and when >= (row or [0])[-1]
        ]
        if not later:
            return None
        row.append(min(later))
    return row


def _play(role: str, arguments: list[str]) -> None:
    try:
        if role == "serve":
            serve(arguments)
        else:
            endpoint, jobs = arguments
            {"work": work, "produce": produce}[role](endpoint, int(jobs))
    finally:
        Path(os.environ["TIMELINE"]).write_text(json.dumps(notes))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in ("serve", "work", "produce"):
        _play(sys.argv[1], sys.argv[2:])
    else:
        sys.exit(main())
