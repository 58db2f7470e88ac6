"""The suite on a busy machine: runs it N times beside busy processes, and tells which tests failed.

::

    .venv-test/bin/python tools/under_load.py                         # 10 runs beside 4 busy processes
    .venv-test/bin/python tools/under_load.py --times 3 tests/devices # those tests only
    .venv-test/bin/python tools/under_load.py -- -k heartbeat --full  # options of pytest behind --

Prints a table of passes and failures; exits with 1 if any test failed in any run. The busy processes
end with this one, whatever ends it; pytest does but for SIGKILL.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parent.parent
#: Where ``deploy/test`` installs Node's zeromq.
ENVIRONMENT = {"NODE_PATH": str(ROOT / ".venv-test" / "node" / "node_modules"), **os.environ}

#: As ``deploy/test`` runs them.
ARGUMENTS = ("--processes", "8")

# Its stdin is a pipe of this process: when this one ends, however it ends, the pipe closes.
_BUSY = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True:
    pass
"""


class Run(NamedTuple):
    """One run of the suite."""

    passed: int
    failed: list[str]
    seconds: float


def main() -> int:
    """Run the suite as often as asked; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--times", type=int, default=10, help="how many runs (10)")
    parser.add_argument("--busy", type=int, default=4, help="how many busy processes beside them (4)")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, instead of the whole suite")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # as Ctrl-C: pytest ends, too
    runs = []
    with busy(given.busy):
        for number in range(given.times):
            runs.append(run(given.pytest or ARGUMENTS))
            print(_line(number + 1, runs[-1]), flush=True)
    print(table(runs))
    return 1 if any(run.failed for run in runs) else 0


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Start ``count`` processes that compute without end."""
    with ExitStack() as stack:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", _BUSY], stdin=subprocess.PIPE)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def run(arguments: Sequence[str]) -> Run:
    """One run of pytest with these arguments; what it prints goes to stderr."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junit-xml={report}", *arguments]
        with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=sys.stderr) as pytest:
            try:
                code = pytest.wait()
            except BaseException:
                pytest.send_signal(signal.SIGINT)  # it ends what its tests have started
                raise
        passed, failed = results(report) if report.exists() else (0, [])
    if code not in (0, 1):
        failed.append(f"pytest ended with code {code}")
    return Run(passed, failed, time.monotonic() - began)


def results(report: Path) -> tuple[int, list[str]]:
    """How many tests passed, by a report in JUnit's form, and the names of those that did not."""
    passed, failed = 0, []
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it
        outcomes = {result.tag for result in case}
        if outcomes & {"failure", "error"}:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif "skipped" not in outcomes:
            passed += 1
    return passed, failed


def table(runs: list[Run]) -> str:
    """A line for each run, then how often each test failed."""
    lines = [_line(number, run) for number, run in enumerate(runs, 1)]
    counts = Counter(name for run in runs for name in set(run.failed))
    lines += [f"{count:3} of {len(runs)}  {name}" for name, count in counts.most_common()]
    lines.append("no test failed" if not counts else f"{len(counts)} tests failed")
    return "\n".join(lines)


def _line(number: int, run: Run) -> str:
    return f"run {number:3}: {run.passed:5} passed {len(run.failed):3} failed {run.seconds:6.0f} s"


if __name__ == "__main__":
    sys.exit(main())
