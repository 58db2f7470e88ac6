"""The supervisor of ``sluicemq work app:tasks``: it starts processes, and starts again what has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec

from sluicemq.app import process
from sluicemq.app.process import Orders, Report
from sluicemq.worker import STOP_TIMEOUT

_LONGEST_PAUSE: Final = 30.0  # seconds until a process that fails again and again is followed by another
_KILL_AFTER: Final = STOP_TIMEOUT + 15.0  # seconds that a process has to stop
_NOT_WATCHED: Final = {"__pycache__", "node_modules", "site-packages"}


class Supervisor:
    """Keeps ``count`` processes at work.

    ``run`` blocks in the main thread, until SIGTERM or SIGINT; the processes get it then, and a second one,
    too. A thread for each process reads its reports, and with ``reload`` one watches files. They only note
    what they see: the main thread alone starts and ends processes.
    """

    def __init__(
        self,
        orders: Orders,
        count: int,
        *,
        reload: bool = False,
        environment: Mapping[str, str] | None = None,
        note: Callable[[str], None] = print,
    ) -> None:
        self._reload = reload
        self._note = note
        self._wake = threading.Event()
        self._signals: list[int] = []
        self._stopping = False
        self._changed = False
        self._failed = False
        self.places = [_Place(orders, dict(environment or {}), self._wake.set) for _ in range(count)]

    @property
    def is_healthy(self) -> bool:
        """Return whether all processes are connected to a broker."""
        return not self._stopping and all(place.report.connected for place in self.places)

    def run(self) -> int:
        """Keep the processes at work; return the exit status: 1 if the app can't be loaded."""
        before = {sig: signal.signal(sig, self._on_signal) for sig in (signal.SIGTERM, signal.SIGINT)}
        try:
            if self._reload:
                threading.Thread(target=self._watch_files, name="sluicemq-reload", daemon=True).start()
            while not (self._stopping and all(place.is_free for place in self.places)):
                self._handle()
                self._wake.wait(min(place.seconds_to_wait for place in self.places))
        finally:
            for place in self.places:
                place.kill()
            for number, handler in before.items():
                signal.signal(number, handler)
        return int(self._failed)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signals.append(number)
        self._wake.set()

    def _handle(self) -> None:
        """Do what the signals, the files, and the ends of processes ask for."""
        self._wake.clear()
        while self._signals:
            self._signals.pop()
            self._stopping = True
            self._end_all()
        if self._changed:
            self._changed = False
            self._note("a file has changed: all processes end, and others begin")
            self._end_all()
        for place in self.places:
            if (status := place.reap()) is not None:
                self._note_end(place, status)
            if not self._stopping:
                place.start_when_due()
            place.kill_when_late()

    def _end_all(self) -> None:
        for place in self.places:
            place.end()

    def _note_end(self, place: _Place, status: int) -> None:
        if status == process.UNUSABLE_STATUS and not self._reload:
            self._failed = self._stopping = True
            self._end_all()
        elif status not in (0, process.RENEW_STATUS) and not self._stopping:
            what = f"signal {-status}" if status < 0 else f"exit status {status}"
            self._note(f"a process ended by {what}, another begins in {place.pause:g} s")

    def _watch_files(self) -> None:
        seen = dict(_files())
        while True:
            # Seconds between two looks at files
            threading.Event().wait(0.5)
            now = dict(_files())
            if now != seen:
                seen, self._changed = now, True
                self._wake.set()


class _Place:
    """A process, and the one after it. ``report`` is the last one of its process."""

    def __init__(self, orders: Orders, environment: Mapping[str, str], on_end: Callable[[], None]) -> None:
        self._orders = orders
        self._environment = environment
        self._on_end = on_end
        self._process: subprocess.Popen[bytes] | None = None
        self._began = self._start_at = 0.0
        self._kill_at: float | None = None
        self._failures = 0
        self._has_ended = threading.Event()
        self.report = Report()

    @property
    def is_free(self) -> bool:
        return self._process is None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def pause(self) -> float:
        """Return the seconds until the next process begins, which grows with its failures."""
        return min(_LONGEST_PAUSE, 2.0 ** (self._failures - 1)) if self._failures else 0.0

    @property
    def seconds_to_wait(self) -> float:
        until = self._start_at if self.is_free else self._kill_at
        return _LONGEST_PAUSE if until is None else max(0.0, until - monotonic())

    def start_when_due(self) -> None:
        if not self.is_free or monotonic() < self._start_at:
            return
        reading, writing = os.pipe()
        orders = msgspec.structs.replace(self._orders, report_to=writing)
        self._began, self._kill_at, self.report = monotonic(), None, Report()
        self._has_ended = threading.Event()
        # In a session of its own: Ctrl-C of the terminal is for the supervisor, which stops it in order.
        self._process = subprocess.Popen(  # noqa: S603 - this module's neighbour
            [sys.executable, "-m", process.__name__, msgspec.json.encode(orders).decode()],
            stdin=subprocess.PIPE, pass_fds=[writing], start_new_session=True,
            env=os.environ | self._environment,
        )  # fmt: skip
        os.close(writing)
        threading.Thread(
            target=self._read, args=(reading, self._process, self._has_ended), daemon=True
        ).start()

    def end(self) -> None:
        """Ask the process to stop."""
        if self._process is not None:
            self._kill_at = self._kill_at or monotonic() + _KILL_AFTER
            self._process.terminate()
        self._failures, self._start_at = 0, 0.0

    def kill_when_late(self) -> None:
        if self._kill_at is not None and monotonic() >= self._kill_at:
            self.kill()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def reap(self) -> int | None:
        """Return the exit status of a process that has ended since."""
        if self._process is None or not self._has_ended.is_set():
            return None
        status = self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process, self._kill_at, self.report = None, None, Report()
        if status in (0, process.RENEW_STATUS):
            self._failures = 0
        else:
            # Seconds that a process lives whose failures count no more
            self._failures = 1 if monotonic() - self._began > 30.0 else self._failures + 1
        self._start_at = monotonic() + self.pause
        return status

    def _read(self, reading: int, running: subprocess.Popen[bytes], ended: threading.Event) -> None:
        """Read reports until the process has ended."""
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                with suppress(msgspec.DecodeError):  # the last one of a process that was killed
                    self.report = msgspec.json.decode(line, type=Report)
        running.wait()
        ended.set()
        self._on_end()


def serve_health(supervisor: Supervisor, port: int) -> ThreadingHTTPServer:
    """Answer every GET at a port, on all addresses: 200 if all processes are connected, else 503."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            processes = [
                {"pid": place.pid, **msgspec.to_builtins(place.report)} for place in supervisor.places
            ]
            body = msgspec.json.encode({"healthy": supervisor.is_healthy, "processes": processes})
            self.send_response(200 if supervisor.is_healthy else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: Any) -> None:
            """Log no requests: a probe asks every few seconds."""

    server = ThreadingHTTPServer(("", port), Answer)
    threading.Thread(target=server.serve_forever, name="sluicemq-health", daemon=True).start()
    return server


def _files() -> Iterator[tuple[str, float]]:
    """Yield the Python files below the current folder, and when they were changed."""
    for folder, folders, names in os.walk(Path.cwd()):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _NOT_WATCHED]
        for name in names:
            if name.endswith(".py"):
                with suppress(OSError):
                    yield f"{folder}/{name}", Path(folder, name).stat().st_mtime
