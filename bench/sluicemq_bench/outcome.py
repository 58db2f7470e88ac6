"""The results of a run: as one JSON object, and as rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hdrh.histogram import HdrHistogram

from sluicemq_bench.plan import Plan
from sluicemq_bench.usage import Usage

_MS = 1_000_000
_PERCENTILES = {"p50": 50.0, "p75": 75.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9}

#: Begin and end of the times of the plans' jobs.
_MEASURED = {
    "taken": "from due to in hand",
    "confirmed": "from due to confirmed",
    "publish": "a publish",
    "fetch": "a fetch",
}


class Timeline:
    """Jobs done at some moments of a run, in seconds since its start."""

    def __init__(self) -> None:
        self._points = [(0.0, 0)]

    def add(self, seconds: float, done: int) -> None:
        """Add a moment."""
        if seconds > 0:
            self._points.append((round(seconds, 4), done))

    def until(self, seconds: float, done: int) -> list[tuple[float, int]]:
        """Return the moments before the end, and the end."""
        return [*(point for point in self._points if point[0] < seconds), (round(seconds, 4), done)]


@dataclass(frozen=True)
class Outcome:
    """One run. ``times``: histograms of nanoseconds by what was measured; empty ones are left out."""

    plan: Plan
    jobs: int
    seconds: float
    usage: dict[str, Usage]
    times: dict[str, HdrHistogram]
    timeline: list[tuple[float, int]]
    proxy_per_s: float | None = None
    """The rate of the proxy in C that comes with libzmq, right after a relay, on equal work."""

    @property
    def jobs_per_s(self) -> float:
        """Return the rate over the whole run."""
        return self.jobs / self.seconds

    @property
    def latency(self) -> HdrHistogram | None:
        """Return the times of ``latency_ms``: the last ones measured."""
        return next(reversed(self.times.values()), None)

    def as_json(self) -> dict[str, Any]:
        """Return all figures, with units in the names."""
        return {
            **self.plan.described(),
            "jobs": self.jobs,
            "seconds": round(self.seconds, 4),
            "jobs_per_s": round(self.jobs_per_s, 1),
            "latency_ms": _percentiles(self.latency) if self.latency else None,
            "operations_ms": {name: _operation(times) for name, times in self.times.items()},
            **self._beside_proxy(),
            "processes": {name: self._process(usage) for name, usage in self.usage.items()},
            "timeline": self.timeline,
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a line for each figure."""
        rows = [_row(f"{self.jobs:,} jobs in", self.seconds, "s"), _row("rate", self.jobs_per_s, "jobs/s")]
        if self.proxy_per_s:
            rows.append(_row("rate of the proxy in C", self.proxy_per_s, "jobs/s"))
            rows.append(_row("of the proxy in C", self.jobs_per_s / self.proxy_per_s, "x"))
        for name, usage in self.usage.items():
            process = self._process(usage)
            rows.append(_row(f"{name}, CPU of 1,000 jobs", process["cpu_s_per_1000_jobs"] * 1000, "ms"))
            rows.append(_row(f"{name}, memory at its peak", process["peak_rss_mb"], "MB"))
        for name, times in self.times.items():
            shown = _operation(times) if self.plan.scenario == "simulate" else _percentiles(times)
            rows += [_row(f"{_MEASURED[name]}, {which}", value, "ms") for which, value in shown.items()]
        return rows

    def _beside_proxy(self) -> dict[str, float]:
        if not self.proxy_per_s:
            return {}
        return {
            "proxy_jobs_per_s": round(self.proxy_per_s, 1),
            "of_proxy": round(self.jobs_per_s / self.proxy_per_s, 3),
        }

    def _process(self, usage: Usage) -> dict[str, float]:
        per_1000 = usage.cpu_s / self.jobs * 1000 if self.jobs else 0.0
        return {
            "cpu_s": round(usage.cpu_s, 3),
            "cpu_s_per_1000_jobs": round(per_1000, 5),
            "peak_rss_mb": round(usage.peak_rss_mb, 1),
        }


def _percentiles(times: HdrHistogram) -> dict[str, float]:
    values = {name: times.get_value_at_percentile(at) for name, at in _PERCENTILES.items()}
    return _in_ms({**values, "max": times.get_max_value()})


def _operation(times: HdrHistogram) -> dict[str, float]:
    """Return the figures that published load simulations give for each operation."""
    values = {"mean": times.get_mean_value(), "deviation": times.get_stddev()}
    values |= {f"p{at}": times.get_value_at_percentile(at) for at in (75, 95, 99)}
    return _in_ms({**values, "min": times.get_min_value(), "max": times.get_max_value()})


def _in_ms(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value / _MS, 4) for name, value in values.items()}


def _row(figure: str, value: float, unit: str) -> dict[str, Any]:
    return {"figure": figure, "value": f"{value:,.0f}" if value >= 1000 else f"{value:,.3g}", "": unit}
