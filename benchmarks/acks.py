"""What it costs that a job is committed when its PULL worker has it: ``python benchmarks/acks.py``.

`sluicemq bench --door pull` with ``ack`` received and auto in turn, A B A B, each with a broker of its own;
printed are jobs/s, CPU, and the ratio of each round; it takes two to three minutes. The last line says
whether the least median ratio is 0.9, as promised; exit code 1 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import NamedTuple

LEAST = 0.9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=40_000)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    medians = [
        _compare(scenario, workers, options.jobs, options.rounds)
        for scenario in ("drain", "both")
        for workers in options.workers
    ]
    verdict = "kept" if min(medians) >= LEAST else "MISSED"
    print(f"verdict: {verdict}: received goes at {min(medians):.2f} of the rate of auto, promised {LEAST}")
    return int(min(medians) < LEAST)


def _compare(scenario: str, workers: int, jobs: int, rounds: int) -> float:
    ratios = []
    for _ in range(rounds):
        received, auto = (_run(scenario, ack, workers, jobs) for ack in ("received", "auto"))
        ratios.append(received.rate / auto.rate)
        print(
            f"{scenario}, {workers} workers: {received} and {auto}, ratio {ratios[-1]:.2f}, "
            f"load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    median = statistics.median(ratios)
    print(f"{scenario}, {workers} workers: {median:.2f} ({min(ratios):.2f} .. {max(ratios):.2f})", flush=True)
    return median


class Run(NamedTuple):
    """Jobs a second; and CPU ms of broker and mongod for 1,000, which swing less on a busy machine."""

    ack: str
    rate: float
    broker: float
    mongod: float

    def __str__(self) -> str:
        return f"{self.ack} {self.rate:,.0f}/s ({self.broker:.1f} and {self.mongod:.1f} ms of CPU)"


def _run(scenario: str, ack: str, workers: int, jobs: int) -> Run:
    plan = [scenario, "--door", "pull", "--ack", ack, "--workers", str(workers), "--jobs", str(jobs)]
    command = [sys.executable, "-m", "sluicemq.cli", "bench", "--json", *plan]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    broker, mongod = (found["processes"][name]["cpu_s_per_1000_jobs"] * 1000 for name in ("broker", "mongod"))
    return Run(ack, found["jobs_per_s"], broker, mongod)


if __name__ == "__main__":
    sys.exit(main())
