"""Tasks of asyncio, beside arq and taskiq on Redis, in turn: ``.venv-test/bin/python benchmarks/tasks.py``.

``--python`` is one that has arq and taskiq-redis: ``python -m venv P && P/bin/pip install arq taskiq-redis``.
Redis writes each command to the disk (``always``), or once a second (``everysec``); SluiceMQ has its own
MongoDB, and confirms by the journal. Prints the medians of three rounds as a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.extend(str(ROOT / folder) for folder in ("", "tests"))

from support.broker_process import BrokerProcess  # noqa: E402 - found by the line above
from support.ports import free_port, is_free  # noqa: E402 - found by the line above
from support.waiting import wait_until  # noqa: E402 - found by the line above

DRIVER = ROOT / "benchmarks/peers/tasks_driver.py"
CASES = {"push": "pushed /s", "drain": "done /s", "p50": "push to handler, ms"}


@contextmanager
def redis(fsync: str) -> Iterator[str]:
    """A Redis that writes to the disk; its URL."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="sluicemq-tasks-") as folder:
        files = ["--dir", folder, "--save", "", "--appendonly", "yes", "--appendfsync", fsync]
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), *files]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            try:
                wait_until(lambda: not is_free(port))
                yield f"redis://127.0.0.1:{port}/0"
            finally:
                server.kill()


def run(python: str, system: str, url: str, jobs: int) -> dict[str, float]:
    """Measure one system once."""
    environment = {**os.environ, "URL": url}
    if system != "sluicemq":
        environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [python, str(DRIVER), system, str(jobs)],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        timeout=600,
    )
    return dict(json.loads(done.stdout))


def main() -> int:
    """Run all systems in each round, in the other direction every other round."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--python", required=True, help="a Python that has arq and taskiq-redis")
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess())
        systems = {"SluiceMQ": (sys.executable, "sluicemq", broker.doors["smq"])}
        for fsync in ("always", "everysec"):
            url = stack.enter_context(redis(fsync))
            systems |= {
                f"{system}, fsync {fsync}": (options.python, system, url) for system in ("arq", "taskiq")
            }
        for number in range(options.rounds):
            for name in [*systems][:: -1 if number % 2 else 1]:
                for case, figure in run(*systems[name], options.jobs).items():
                    found[name][case].append(figure)
            print(f"round {number + 1}: load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    print("\n".join(["| | " + " | ".join(CASES.values()) + " |", "|---" * (len(CASES) + 1) + "|"]))
    for name, figures in found.items():
        cells = [f"{statistics.median(figures[case]):,.{1 if case == 'p50' else 0}f}" for case in CASES]
        print(f"| {name} | {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
