"""What keys cost a broker: jobs with NULL and with CURVE in turn: ``python benchmarks/keyed.py``.

`sluicemq bench` with and without ``--curve``, A B A B, each with a broker of its own: push to done with the
library, REP workers, PULL workers; then a streamer alone, beside the proxy in C that comes with libzmq. All
clients run on the same machine, and encrypt there. So the CPU of the broker tells what its users pay; the
rate also has what the clients pay. ``--beside PYTHON`` takes NULL of another installation instead of CURVE:
it shows what a change costs those who have no keys.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any, NamedTuple

PARTS = {
    "library": ["both", "--jobs", "100000"],
    "rep": ["both", "--door", "rep", "--workers", "16", "--jobs", "40000"],
    "pull": ["both", "--door", "pull", "--jobs", "60000"],
    "relay": ["relay", "--size", "200", "--jobs", "300000"],
}
#: Rates with CURVE, of those with NULL, at least.
LEAST = {"library": 0.9, "rep": 0.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="all by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", metavar="PYTHON", help="that of another installation, whose NULL is run")
    options = parser.parse_args()
    print(f"commit {commit()}, {options.rounds} rounds, {os.cpu_count()} cores")
    for part in options.parts or PARTS:
        _compare(part, options.rounds, options.beside)


def commit() -> str:
    """Return the commit that is measured, and whether it was changed."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class Run(NamedTuple):
    """Jobs a second, CPU microseconds of the broker or relay for a job, and the proxy's rate."""

    rate: float
    cpu: float
    proxy: float | None

    def __str__(self) -> str:
        proxy = f", proxy {self.proxy:,.0f}/s" if self.proxy else ""
        return f"{self.rate:,.0f}/s, {self.cpu:.1f} us{proxy}"


def _compare(part: str, rounds: int, beside: str | None) -> None:
    names = ("before", "now") if beside else ("NULL", "CURVE")
    first, second = [], []
    for _ in range(rounds):
        first.append(_run(part, beside or sys.executable))
        second.append(_run(part, sys.executable, *([] if beside else ["--curve"])))
        load = os.getloadavg()[0]
        print(f"{part}: {names[0]} {first[-1]}; {names[1]} {second[-1]}; load {load:.1f}", flush=True)
    rates = [b.rate / a.rate for a, b in zip(first, second, strict=True)]
    cpu = [b.cpu / a.cpu for a, b in zip(first, second, strict=True)]
    wanted = f", of at least {LEAST[part]}" if part in LEAST and not beside else ""
    print(f"{part}: rate {_spread(rates)}{wanted}; CPU {_spread(cpu)}; {_medians(names, first, second)}")


def _medians(names: tuple[str, str], *runs: list[Run]) -> str:
    """Return the median CPU of both, and of a relay its share of the proxy's rate."""
    texts = []
    for name, runs_of_it in zip(names, runs, strict=True):
        shares = [run.rate / run.proxy for run in runs_of_it if run.proxy]
        proxy = f", {statistics.median(shares):.2f} of the proxy" if shares else ""
        texts.append(f"{name} {statistics.median(run.cpu for run in runs_of_it):.1f} us{proxy}")
    return "; ".join(texts)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} .. {max(values):.2f})"


def _run(part: str, python: str, *options: str) -> Run:
    command = [python, "-m", "sluicemq.cli", "bench", "--json", *PARTS[part], *options]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    process = found["processes"]["relay" if part == "relay" else "broker"]
    return Run(found["jobs_per_s"], process["cpu_s_per_1000_jobs"] * 1000, found.get("proxy_jobs_per_s"))


if __name__ == "__main__":
    main()
