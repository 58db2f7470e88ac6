"""The books of all programs, put together: what became of each job, and what was disturbed when."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from chaos import books
from chaos.books import Fact

#: A job: its queue and its id.
Key: TypeAlias = tuple[str, str]

#: Faults after which something that was on its way may arrive late: all but those that end a process.
_ENDING: Final = ("kill", "term", "restart")
#: Seconds after the end of such a fault in which what was held arrives.
_SETTLING: Final = 10.0


@dataclass(slots=True)
class Run:
    """One run of a job: a handler has begun it, and may have come to its verdict."""

    begun: Fact
    ended: Fact | None = None

    @property
    def verdict(self) -> str:
        """Return its verdict; empty if its program died with it."""
        return str(self.ended.about["verdict"]) if self.ended else ""


class Disturbance(NamedTuple):
    """A fault, and from when to when it lasted."""

    name: str
    victim: str
    begin: float
    end: float

    @property
    def delays(self) -> bool:
        """Return whether something may arrive late by it: it stops or cuts off, and kills nothing."""
        return not any(word in self.name.lower() for word in _ENDING)


@dataclass(slots=True)
class Ledger:
    """All facts, and the most asked views of them."""

    facts: list[Fact]
    disturbances: list[Disturbance] = field(default_factory=list)
    pushed: dict[Key, Fact] = field(default_factory=dict)
    confirmed: dict[Key, Fact] = field(default_factory=dict)
    settled: dict[Key, Fact] = field(default_factory=dict)
    #: Jobs that were cancelled, or may have been: nobody knows of an order without an answer.
    cancelled: dict[Key, Fact] = field(default_factory=dict)
    runs: dict[Key, list[Run]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, facts: list[Fact], disturbances: Iterable[Disturbance] = ()) -> Ledger:
        """Return the ledger of facts that are in the order of time."""
        it = cls(facts, list(disturbances))
        running: dict[str, dict[Key, Run]] = defaultdict(dict)
        for fact in facts:
            key = (fact.queue, fact.id)
            it._enter(key, fact)
            match fact.what:
                case books.STARTED:
                    running[fact.program].clear()
                case books.BEGUN:
                    run = running[fact.program][key] = Run(fact)
                    it.runs[key].append(run)
                case books.ENDED:
                    if key in running[fact.program]:
                        running[fact.program].pop(key).ended = fact
        return it

    def _enter(self, key: Key, fact: Fact) -> None:
        """Keep what those have booked who push, commit and cancel."""
        match fact.what:
            case books.PUSHED:
                self.pushed.setdefault(key, fact)
            case books.CONFIRMED:
                self.confirmed.setdefault(key, fact)
            case books.ANSWERED | books.ACKNOWLEDGED:
                self.settled.setdefault(key, fact)
            case books.ORDERED if fact.about["order"] != "change":
                self.cancelled[key] = fact
            case books.CANCELLED if fact.about["order"] == "cancel":  # one that runs may begin meanwhile
                self.settled.setdefault(key, fact)
            case books.MISSED:
                self.cancelled.pop(key, None)

    @classmethod
    def read(cls, folder: Path) -> Ledger:
        """Return the ledger of a run."""
        return cls.of(books.read(folder / "books"), disturbances(folder))

    def first_end(self, key: Key, *verdicts: str) -> float | None:
        """Return when a run of a job has first ended with one of these verdicts."""
        ends = [run.ended.at for run in self.runs.get(key, ()) if run.ended and run.verdict in verdicts]
        return min(ends, default=None)

    def may_be_late(self, since: float, until: float) -> Disturbance | None:
        """Return a fault by which what was sent before ``since`` may have arrived as late as ``until``."""
        for disturbance in self.disturbances:
            if disturbance.delays and disturbance.begin <= since and until <= disturbance.end + _SETTLING:
                return disturbance
        return None

    def is_calm(self, since: float, until: float) -> bool:
        """Return whether no fault was there in this time."""
        return not any(fault.begin <= until and since <= fault.end for fault in self.disturbances)

    def story(self, key: Key) -> list[str]:
        """Return all lines about a job, in any queue, as evidence."""
        return [str(fact) for fact in self.facts if fact.id == key[1]]


def disturbances(folder: Path) -> list[Disturbance]:
    """Return the faults of a run; one that has no end lasts for ever."""
    path = folder / "events.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    found: list[Disturbance] = []
    for at, line in enumerate(lines):
        if line["what"] == "begin":
            ends = (
                entry["at"]
                for entry in lines[at:]
                if entry["what"] == "end" and all(entry.get(k) == line[k] for k in ("fault", "victim"))
            )
            found.append(Disturbance(line["fault"], line["victim"], line["at"], next(ends, float("inf"))))
    return found
