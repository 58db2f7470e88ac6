"""Runs chaos: ``./deploy/test chaos``, or ``PYTHONPATH=tests python -m chaos``.

The exit code is 1 if anything was found that must not be.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chaos.fault_kinds import FAULTS, Fault
from chaos.plan import plan
from chaos.run import may, run


def main() -> int:
    """Run what the command line asks for."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # all that runs is ended, whoever wants that
    options = _options()
    faults = _chosen(options.fault)
    seconds = options.minutes * 60
    _say(f"seed {options.seed}, {options.minutes:g} minutes")
    if options.plan:
        print(*plan(options.seed, seconds, faults, may()), sep="\n")
        return 0
    folder = _folder(options.folder)
    outcome = run(options.seed, seconds, folder, faults, options.report, options.pace, _say)
    for breach in outcome.breaches:
        _say(f"BREACH {breach.kind}: {breach.text}", *breach.evidence[:10])
    if not outcome.breaches:
        shutil.rmtree(folder / "nodes", ignore_errors=True)
    _say(f"seed {options.seed}: {len(outcome.steps)} faults, {len(outcome.breaches)} breaches; see {folder}")
    return 1 if outcome.breaches else 0


def _chosen(names: Sequence[str]) -> list[Fault]:
    """Return the faults of these names, or all, without those that this machine can't have."""
    chosen = [fault for fault in FAULTS if not names or any(name in fault.name for name in names)]
    if not chosen:
        sys.exit(f"no such fault; there are: {', '.join(fault.name for fault in FAULTS)}")
    for fault in chosen:
        if fault.why_not:
            _say(f"left out: {fault.name}: {fault.why_not}")
    return [fault for fault in chosen if not fault.why_not]


def _folder(asked: Path | None) -> Path:
    if asked and asked.exists() and any(asked.iterdir()):
        sys.exit(f"{asked} has the files of another run")
    return asked or Path(tempfile.mkdtemp(prefix="sluicemq-chaos-"))


def _say(*lines: str) -> None:
    print(*lines, sep="\n    ", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./deploy/test chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="for how long faults happen")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="says which, and when")
    parser.add_argument("--report", type=Path, metavar="FILE", help="the page; by default in the folder")
    parser.add_argument("--folder", type=Path, help="where books, logs and data go, to be looked at later")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="NAME", help="only faults of such names"
    )
    parser.add_argument("--pace", type=float, default=1.0, help="how heavy the load is")
    parser.add_argument("--plan", action="store_true", help="print the plan alone")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
