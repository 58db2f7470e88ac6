"""Figures of a chaos run, second by second: what was confirmed and done, and how long that took."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

from chaos import books, features
from chaos.ledger import Disturbance, Ledger

#: Queues whose jobs wait for nothing but a worker: no limit, no group, nothing before them.
_DIRECT: Final = (features.SHORT, features.PULLED, features.RECEIVED, features.ASKED, features.ANSWERS)


@dataclass(slots=True)
class Figures:
    """A value for each second from ``began`` on; latencies in milliseconds, None where nothing was done."""

    began: float
    confirmed: list[int]
    done: list[int]
    median: list[float | None]
    slowest: list[float | None]
    memory: dict[str, list[tuple[float, float]]]

    @property
    def seconds(self) -> int:
        """Return for how many seconds there are values."""
        return len(self.done)

    @property
    def longest_rest(self) -> tuple[int, int]:
        """Return the longest time in which nothing was done, in seconds, and when that began."""
        best, since = (0, 0), 0
        for at, count in enumerate(self.done):
            if count:
                since = at + 1
            best = max(best, (at + 1 - since, since))
        return best


def figures(ledger: Ledger, folder: Path) -> Figures:
    """Return the figures from the first push to the last end of a job."""
    began = min((fact.at for fact in ledger.pushed.values()), default=0.0)
    ends = {
        key: min(run.ended.at for run in runs if run.ended) for key, runs in ledger.runs.items() if _any(runs)
    }
    seconds = max((int(at - began) for at in ends.values()), default=0) + 1
    confirmed = [
        fact.at for key in ledger.confirmed.keys() | ledger.settled.keys() if (fact := _sure(ledger, key))
    ]
    waits: dict[int, list[float]] = defaultdict(list)
    for key, end in ends.items():
        if key[0] in _DIRECT and key in ledger.pushed:
            waits[int(end - began)].append(1000 * (end - ledger.pushed[key].at))
    return Figures(
        began,
        _each_second(confirmed, began, seconds),
        _each_second(list(ends.values()), began, seconds),
        [_percentile(waits[at], 50) for at in range(seconds)],
        [_percentile(waits[at], 99) for at in range(seconds)],
        _memory(folder / "samples.jsonl", began, began + seconds),
    )


def faults(ledger: Ledger, began: float, seconds: float) -> list[Disturbance]:
    """Return the faults in seconds from the begin, cut at the end."""
    return [
        disturbance._replace(
            begin=max(0.0, disturbance.begin - began), end=min(seconds, disturbance.end - began)
        )
        for disturbance in ledger.disturbances
    ]


def healed(folder: Path, began: float) -> float | None:
    """Return how many seconds after the begin all faults had been ended."""
    return next((event["at"] - began for event in _events(folder, "calm")), None)


def packs(folder: Path) -> dict[str, int]:
    """Return how many jobs lay in packs, and how many were lifted out; nothing if the run has not ended."""
    found = next(_events(folder, "packed"), {})
    return {name: found[name] for name in ("jobs", "lifted") if name in found}


def _events(folder: Path, what: str) -> Iterator[dict[str, Any]]:
    path = folder / "events.jsonl"
    events = map(json.loads, path.read_text().splitlines() if path.exists() else [])
    return (event for event in events if event["what"] == what)


def _any(runs: Sequence[object]) -> bool:
    return any(getattr(run, "ended", None) for run in runs)


def _sure(ledger: Ledger, key: tuple[str, str]) -> books.Fact | None:
    return ledger.confirmed.get(key) or ledger.settled.get(key)


def _each_second(moments: Sequence[float], began: float, seconds: int) -> list[int]:
    counts = [0] * seconds
    for at in moments:
        if 0 <= at - began < seconds:
            counts[int(at - began)] += 1
    return counts


def _percentile(values: Sequence[float], percent: int) -> float | None:
    if len(values) < 2:
        return values[0] if values else None
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _memory(path: Path, began: float, ended: float) -> dict[str, list[tuple[float, float]]]:
    """Return seconds and MiB of each broker."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in path.read_text().splitlines() if path.exists() else []:
        at, number, _, memory, _ = json.loads(line)
        if began <= at <= ended:
            found[f"broker {number}"].append((at - began, memory / 2**20))
    return dict(found)
