"""One process of ``sluicemq work app:tasks``; :mod:`~sluicemq.app.supervisor` starts it.

Its argument is :class:`Orders` as JSON. It writes :class:`Report` as lines of JSON to the file that the
orders name. Its stdin ends with the supervisor, however that ends: then it stops too.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec

from sluicemq.app.app import App
from sluicemq.app.middleware import Middleware
from sluicemq.app.run import TaskRun, current
from sluicemq.app.worker import AsyncTaskWorker, TaskWorker
from sluicemq.protocol.errors import Reject, Requeue, Retry
from sluicemq.time_limits import HardTimeLimitError
from sluicemq.worker import STOP_TIMEOUT

#: Exit statuses: another one is to begin; the app can't be loaded.
RENEW_STATUS: Final = 75
UNUSABLE_STATUS: Final = 78
_EACH: Final = 1.0  # seconds between two reports, and two looks at the memory
_log: Final = logging.getLogger("sluicemq.work")


class Orders(msgspec.Struct):
    """The duties of a process. ``report_to``: the number of an open file. ``memory``: bytes, 0: no limit."""

    target: str
    queues: dict[str, int] = {}
    concurrency: int = 1
    prefetch: int = 1
    max_jobs: int = 0
    memory: int = 0
    report_to: int = -1


class Report(msgspec.Struct):
    """How a process is: jobs that it has done, and those it is at."""

    connected: bool = False
    done: int = 0
    running: int = 0


class Lifetime(Middleware):
    """Counts jobs, and stops the worker after ``max_jobs`` of them, or with too much memory."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._change = threading.Lock()
        self.worker: TaskWorker | AsyncTaskWorker | None = None
        self.report = Report()
        self.is_over = False

    def before(self, run: TaskRun) -> None:  # noqa: ARG002 - the hook's
        """Count a job that begins."""
        with self._change:
            self.report.running += 1

    def after(self, run: TaskRun, result: Any) -> None:  # noqa: ARG002 - the hook's
        """Count a job that is done."""
        _log.info("done")
        self._count()

    def on_error(self, run: TaskRun, error: BaseException) -> None:  # noqa: ARG002 - the hook's
        """Count a job that has failed; the worker logs all but what a task wants so."""
        if isinstance(error, Reject | Requeue | Retry):
            _log.info("ended by %s: %s", type(error).__name__, error)
        self._count()

    def _count(self) -> None:
        with self._change:
            self.report.running -= 1
            self.report.done += 1
        if self._orders.max_jobs and self.report.done >= self._orders.max_jobs:
            self._end(f"it has done {self.report.done} jobs")

    def watch(self, stop: threading.Event) -> None:
        """Report, and look at the memory, until ``stop`` is set."""
        while not stop.wait(_EACH):
            self.send()
            used = _resident()
            if self._orders.memory and used > self._orders.memory:
                self._end(f"it uses {used >> 20} MiB of memory")

    def send(self) -> None:
        """Write a report."""
        if self.worker is not None:
            self.report.connected = self.worker.is_connected
        if self._orders.report_to >= 0:
            os.write(self._orders.report_to, msgspec.json.encode(self.report) + b"\n")

    def _end(self, why: str) -> None:
        if self.worker is not None and not self.is_over:
            self.is_over = True
            _log.info("this process ends, and another one begins: %s", why)
            self.worker.stop_soon()


class _JobNames(logging.Formatter):
    """Puts the id and the kind of the job before each line that its handler logs."""

    def format(self, record: logging.LogRecord) -> str:
        run = current.get()
        record.run = "" if run is None else f"[{run.task.kind} {run.job.id}] "
        return super().format(record)


def load(target: str) -> App:
    """Return the app ``module:name``; raises what the module raises, and TypeError if it has no such app."""
    module, _, name = target.partition(":")
    found: Any = import_module(module)
    for part in (name or "app").split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        raise TypeError(f"{target} is no App: write module:name, as in tasks:app")
    return found


def main() -> int:
    """Work until a signal, or the end of the supervisor; return the exit status."""
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    handler = logging.StreamHandler()
    handler.setFormatter(_JobNames("%(asctime)s %(process)d %(levelname)s %(name)s: %(run)s%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    sys.path.insert(0, str(Path.cwd()))
    lifetime = Lifetime(orders)
    try:
        app = load(orders.target)
        app.middleware.insert(0, lifetime)
        # Threads alone are faster, where no coroutine needs the event loop.
        make = app.aworker if any(task.is_coroutine for task in app.tasks.values()) else app.worker
        worker = make(
            orders.queues or None,
            concurrency=orders.concurrency,
            prefetch=orders.prefetch,
            stop_timeout=STOP_TIMEOUT,
        )
    except Exception:  # noqa: BLE001 - whatever the module raises
        _log.exception("%s can't be loaded", orders.target)
        return UNUSABLE_STATUS
    lifetime.worker = worker
    return _work(app, worker, lifetime)


def _work(app: App, worker: TaskWorker | AsyncTaskWorker, lifetime: Lifetime) -> int:
    ended = threading.Event()
    threading.Thread(target=lifetime.watch, args=(ended,), name="sluicemq-reports", daemon=True).start()
    threading.Thread(
        target=_stop_with_supervisor, args=(worker,), name="sluicemq-supervisor", daemon=True
    ).start()
    try:
        worker.run_tasks()
    except HardTimeLimitError:
        return RENEW_STATUS
    finally:
        ended.set()
        app.close()
    return RENEW_STATUS if lifetime.is_over else 0


def _stop_with_supervisor(worker: TaskWorker | AsyncTaskWorker) -> None:
    while os.read(0, 1024):
        pass
    worker.stop_soon()


def _resident() -> int:
    """Return the bytes of memory that this process has."""
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
