"""The load of a chaos run: programs that are processes of their own, so that faults can hit each of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, Self

import psutil
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from chaos import features
from chaos.backlog import Backlog
from chaos.books import DRAINING, Book
from chaos.features import configuration
from chaos.life import HOLD, PLACES
from sluicemq import Client, SluiceError

__all__ = ["MAY", "PROGRAMS", "Load", "Program", "Rig", "configuration"]

#: The programs, and which of them one kind has.
PROGRAMS: Final[dict[str, str]] = {
    "producer-1": "producer", "producer-2": "producer", "asker-1": "producer", "plain-producer-1": "producer",
    "worker-1": "worker", "worker-2": "worker", "plain-worker-1": "worker", "plain-worker-2": "worker",
    "publisher-1": "producer", "many-publisher-1": "producer", "operator-1": "producer",
    "reader-1": "reader", "reader-2": "reader",
}  # fmt: skip
#: What may happen to a program; to those left out everything may: kill, freeze, terminate.
MAY: Final[dict[str, frozenset[str]]] = {}

_ROOT: Final = Path(__file__).resolve().parents[2]
_PATH: Final = f"{_ROOT / 'tools'}:{_ROOT / 'tests'}"
#: Seconds between two looks at the memory and open files of the brokers, and at the backlog.
_SAMPLE: Final = 1.0
_LOOK: Final = 0.2
#: Jobs that are not done above which producers wait.
_MOST_BACKLOG: Final = 300
#: Seconds in which something is done, unless all is stuck: while it is, a drain has more time.
_PROGRESS: Final = 60.0


class Rig(Protocol):
    """What the load needs to know of the brokers that it is for."""

    seed: int
    folder: Path
    database: str

    @property
    def endpoints(self) -> list[str]: ...
    @property
    def brokers(self) -> list[Any]: ...
    @property
    def mongo_uri(self) -> str: ...
    def doors(self, broker: int) -> dict[str, str]: ...


class Program:
    """One program of the load, over all its lives."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.lives = 0
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Return its pid; None while it is down."""
        return self._process.pid if self.alive and self._process else None

    @property
    def alive(self) -> bool:
        """Return whether it runs, or is frozen."""
        return self._process is not None and self._process.poll() is None

    @property
    def code(self) -> int | None:
        """Return the exit code of its last life; None: it has not ended."""
        return self._process.poll() if self._process else None

    @property
    def log(self) -> Path:
        """Return the file of what all its lives have said."""
        return self._folder / "programs" / f"{self.name}.log"

    def start(self) -> None:
        """Begin a life; harmless while it has one."""
        if self.alive:
            return
        self.lives += 1
        self.log.parent.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "chaos.program", self.name, str(self.lives), str(self._folder)],
                env={**os.environ, "PYTHONPATH": _PATH},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """``kill -9``, and wait until it is gone; harmless when it is."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def terminate(self) -> None:
        """SIGTERM: it ends what it has begun, and ends; this does not wait."""
        self._signal(signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._process and self.alive:
            self._process.send_signal(number)


class Load:
    """All programs, and what watches the brokers meanwhile; ended, whatever happens, on leaving."""

    def __init__(self, rig: Rig, pace: float = 1.0) -> None:
        self._rig = rig
        self._pace = pace
        self.programs = {name: Program(name, rig.folder) for name in PROGRAMS}
        self._over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="samples", daemon=True)
        self._book = Book(rig.folder / "books", "load")

    def start(self) -> None:
        """Start all programs."""
        rig = self._rig
        places = {
            "endpoints": rig.endpoints,
            "doors": [rig.doors(at) for at in range(len(rig.brokers))],
            "seed": rig.seed,
            "pace": self._pace,
        }
        (rig.folder / PLACES).write_text(json.dumps(places))
        for program in self.programs.values():
            program.start()
        self._sampler.start()

    def drain(self, timeout: float = 120.0) -> bool:
        """Push no more, wait until all jobs are done and all messages read, and end the programs.

        False: something was not done in time, and nothing more was done for a while. Then the checker says
        what. Programs that faults have left down are started once more, since producers have jobs to
        confirm, and jobs need workers.
        """
        deadline = _Deadline(self._rig.folder / "books", timeout)
        for program in self.programs.values():
            program.thaw()
            program.start()
        self._book.note(DRAINING)
        done = self._end("producer", deadline)
        done = self._until("the schedule", self._pause_schedule, deadline) and done
        done = self._until("the jobs", self._jobs_are_done, deadline) and done
        done = self._until("the readers", self._all_is_read, deadline) and done
        last = _Deadline(self._rig.folder / "books", 20.0)
        done = self._end("worker", last) and done
        done = self._end("reader", last) and done
        self._book.note("drained", done=done)
        return done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for program in self.programs.values():
            program.kill()
        if self._sampler.is_alive():
            self._sampler.join(10)

    def _end(self, kind: str, deadline: _Deadline) -> bool:
        """End the programs of one kind; one that does not end in time is killed and noted."""
        chosen = [self.programs[name] for name, of_kind in PROGRAMS.items() if of_kind == kind]
        for program in chosen:
            program.terminate()
        while any(program.alive for program in chosen) and not deadline.is_over():
            time.sleep(_LOOK)
        late = [program for program in chosen if program.alive]
        for program in late:
            program.kill()
            self._book.note("late", id=program.name)
        for program in chosen:
            if program not in late and program.code not in (
                0,
                -signal.SIGTERM,
            ):  # ended before it could catch it
                self._book.note("failed", id=program.name, code=program.code)
        return not late

    def _until(self, what: str, condition: Callable[[], bool], deadline: _Deadline) -> bool:
        while not deadline.is_over():
            with suppress(SluiceError, PyMongoError):
                if condition():
                    return True
            time.sleep(_LOOK)
        self._book.note("late", id=what)
        return False

    def _pause_schedule(self) -> bool:
        with Client(timeout=5.0, endpoint=self._rig.endpoints[0]) as client:
            client.schedules.pause(features.SCHEDULE)
        return True

    def _jobs_are_done(self) -> bool:
        with self._mongo() as mongo:
            database = mongo[self._rig.database]
            return not any(
                database[f"queue.{name}"].find_one({"state": {"$in": states}}, {"_id": 1})
                for name, states in features.UNFINISHED.items()
            )

    def _all_is_read(self) -> bool:
        newest = _newest(self._rig.endpoints[0])
        with Client(timeout=5.0, endpoint=self._rig.endpoints[0]) as client:
            marks = {
                subscription.name: subscription.watermark
                for subscription in client.subscriptions.list(features.STREAM)
            }
        names = [name for name, kind in PROGRAMS.items() if kind == "reader"]
        read = [_last_sequence(self._rig.folder / "books" / f"{name}.jsonl") for name in names]
        return min([*read, *marks.values()], default=0) >= newest

    def _mongo(self) -> MongoClient[dict[str, Any]]:
        return MongoClient(self._rig.mongo_uri, serverSelectionTimeoutMS=5000)

    def _sample(self) -> None:
        """Write memory and open files of each broker, a line a look, until the end."""
        backlog, hold = Backlog(self._rig.folder / "books"), self._rig.folder / HOLD
        with (self._rig.folder / "samples.jsonl").open("a") as file:
            while not self._over.wait(_SAMPLE):
                if backlog.count() > _MOST_BACKLOG:
                    hold.touch()
                else:
                    hold.unlink(missing_ok=True)
                for number, broker in enumerate(self._rig.brokers, 1):
                    with suppress(psutil.Error, AssertionError, AttributeError):
                        process = psutil.Process(broker.pid)
                        figures = [process.pid, process.memory_info().rss, process.num_fds()]
                        file.write(json.dumps([time.monotonic(), number, *figures]) + "\n")
                file.flush()


class _Deadline:
    """The end of a time that lasts on while the books grow, up to four times as long."""

    def __init__(self, books: Path, timeout: float) -> None:
        self._books = books
        self._size, self._grew = 0, time.monotonic()
        self._end, self._last = self._grew + timeout, self._grew + 4 * timeout

    def is_over(self) -> bool:
        """Return whether the time is over."""
        now, size = time.monotonic(), sum(path.stat().st_size for path in self._books.glob("*.jsonl"))
        if size > self._size:
            self._size, self._grew = size, now
        return now > self._end and (now > self._grew + _PROGRESS or now > self._last)


def _newest(endpoint: str) -> int:
    with Client(timeout=5.0, endpoint=endpoint) as client:
        return int(client.streams.get(features.STREAM).last)


def _last_sequence(book: Path) -> int:
    """Return the number in the last line of a reader's book that has one."""
    if book.exists():
        for line in reversed(book.read_text().splitlines()[-200:]):
            _, what, *rest = json.loads(line)
            if what == "read":
                return int(rest[-1]["sequence"])
    return 0
