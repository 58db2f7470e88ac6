"""What it costs that a job is committed when its PULL worker has it: ``python tests/bench/acks.py``.

`sluicemq bench --door pull` with ``ack`` received and auto in turn, A B A B, each with a broker of its own;
printed are jobs/s and, of each round, their ratio. Exit code 1 if the median ratio is under 0.9.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

LEAST = 0.9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    medians = [
        _compare(scenario, workers, options.jobs, options.rounds)
        for scenario in ("drain", "both")
        for workers in options.workers
    ]
    return int(min(medians) < LEAST)


def _compare(scenario: str, workers: int, jobs: int, rounds: int) -> float:
    ratios = []
    for _ in range(rounds):
        received, auto = (_rate(scenario, ack, workers, jobs) for ack in ("received", "auto"))
        ratios.append(received / auto)
        print(
            f"{scenario}, {workers} workers: received {received:,.0f}/s, auto {auto:,.0f}/s, "
            f"ratio {ratios[-1]:.2f}, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    median = statistics.median(ratios)
    print(f"{scenario}, {workers} workers: {median:.2f} ({min(ratios):.2f} .. {max(ratios):.2f})", flush=True)
    return median


def _rate(scenario: str, ack: str, workers: int, jobs: int) -> float:
    plan = [scenario, "--door", "pull", "--ack", ack, "--workers", str(workers), "--jobs", str(jobs)]
    command = [sys.executable, "-m", "sluicemq.cli", "bench", "--json", *plan]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return float(json.loads(done.stdout)["jobs_per_s"])


if __name__ == "__main__":
    sys.exit(main())
