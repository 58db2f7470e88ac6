"""Books: what each program of the load has done, a line a fact, written before the program goes on.

A line is handed to the kernel by one write, so ``kill -9`` of the program loses none, and tears none.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple

#: Facts of every program: it begins a life, it ends one by itself.
STARTED, STOPPED = "started", "stopped"
#: A fact of the load: producers are about to end.
DRAINING = "draining"
#: Facts of producers: about to push, the broker has confirmed, or refused.
PUSHED, CONFIRMED, REFUSED = "pushed", "confirmed", "refused"
#: Facts of those that give orders about a job: about to cancel or change it, it was cancelled, there is none.
ORDERED, CANCELLED, MISSED = "ordered", "cancelled", "missed"
#: Facts of those that wait for a result; ``CALLED`` says how long a call took.
ANSWERED, CALLED = "answered", "called"
#: Facts of workers: a handler begins, it is about to give its verdict, the broker has confirmed the verdict.
BEGUN, ENDED, ACKNOWLEDGED = "begun", "ended", "acknowledged"
#: Facts of streams: about to publish, stored under a number, read, a batch of a subscription.
PUBLISHED, STORED, READ, BATCH = "published", "stored", "read", "batch"

#: Verdicts of ``ENDED``.
COMMIT, REJECT, ROLLBACK, FORWARD, FANOUT = "commit", "reject", "rollback", "forward", "fanout"


class Fact(NamedTuple):
    """One line of a book; ``at``: monotonic seconds, which all programs of one machine share."""

    at: float
    program: str
    what: str
    queue: str
    id: str
    about: dict[str, Any]

    def __str__(self) -> str:
        more = "".join(f" {name}={value}" for name, value in self.about.items())
        return f"{self.at:.3f} {self.program} {self.what} {self.queue} {self.id}{more}"


class Book:
    """The book of one program, to which each of its lives adds."""

    def __init__(self, folder: Path, program: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / f"{program}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.note(STARTED, pid=os.getpid())

    def note(self, what: str, queue: str = "", id: str = "", **about: Any) -> None:  # noqa: A002
        """Write one fact."""
        line = [time.monotonic(), what, queue, id, *([about] if about else [])]
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def read(folder: Path) -> list[Fact]:
    """Read all books of a folder, in the order of time."""
    facts = [fact for path in sorted(folder.glob("*.jsonl")) for fact in _lines(path)]
    facts.sort(key=lambda fact: fact.at)
    return facts


def _lines(path: Path) -> Iterator[Fact]:
    program = intern(path.stem)
    with path.open() as lines:
        for line in lines:
            at, what, queue, id_, *about = json.loads(line)
            yield Fact(at, program, intern(what), intern(queue), id_, about[0] if about else _NOTHING)


_NOTHING: dict[str, Any] = {}
