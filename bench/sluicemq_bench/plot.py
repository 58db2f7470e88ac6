"""A picture of a run: throughput over time, and the distribution of latencies."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluicemq_bench.outcome import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 60
_NINES = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999)
_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "svg.hashsalt": "sluicemq",  # equal runs draw equal files
}


def plot(outcome: Outcome, file: Path) -> None:
    """Draw a run into ``file``, an SVG or a PNG by its name."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to load

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    with mpl.rc_context(_STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
        figure.suptitle(_title(outcome))
        _throughput(left, outcome)
        _latencies(right, outcome)
        figure.savefig(file, dpi=130, metadata={"Date": None} if file.suffix == ".svg" else None)
        plt.close(figure)


def _title(outcome: Outcome) -> str:
    plan = outcome.plan
    what = f"relay {plan.device}" if plan.scenario == "relay" else f"{plan.scenario}, door {plan.door}"
    return f"{what}: {outcome.jobs:,} jobs of {plan.size} bytes, {outcome.jobs_per_s:,.0f} a second"


def _throughput(axes: Axes, outcome: Outcome) -> None:
    points = _thinned(outcome.timeline)
    edges = [seconds for seconds, _jobs in points]
    rates = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(points)]
    axes.stairs(rates, edges, fill=True, alpha=0.6)
    axes.set(title="throughput", xlabel="seconds", ylabel="jobs / s", ylim=(0, None))


def _thinned(timeline: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return a limited number of bins, none too short to say anything."""
    step = timeline[-1][0] / _BINS
    kept = timeline[:1]
    for point in timeline[1:-1]:
        if point[0] - kept[-1][0] >= step:
            kept.append(point)
    return [*kept, timeline[-1]]


def _latencies(axes: Axes, outcome: Outcome) -> None:
    """Draw percentiles, each further nine as wide as the one before: rare values matter."""
    for name, times in outcome.times.items():
        shown = [(at, times.get_value_at_percentile(at)) for at in _percentiles(times.total_count)]
        axes.plot([1 / (1 - at / 100) for at, _ in shown], [value / 1e6 for _, value in shown], label=name)
    if outcome.times:
        axes.legend(frameon=False)
    axes.set(title="latency", xlabel="percentile", ylabel="ms", xscale="log", ylim=(0, None))
    most = max((times.total_count for times in outcome.times.values()), default=1)
    ticks = [at for at in _NINES if 1 / (1 - at / 100) <= most]
    axes.set_xticks([1 / (1 - at / 100) for at in ticks], [f"{at:g}" for at in ticks])
    axes.minorticks_off()


def _percentiles(count: int) -> list[float]:
    """Return percentiles, with as many nines as there are values to tell them apart."""
    steps = 200
    return [100 * (1 - count ** -(step / steps)) for step in range(steps + 1)] if count > 1 else [0.0]
