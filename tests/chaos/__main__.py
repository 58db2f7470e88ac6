"""Runs chaos: ``./deploy/test chaos``, or ``PYTHONPATH=tests python -m chaos``.

The exit code is 1 if anything was found that must not be.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from chaos.fault_kinds import FAULTS
from chaos.plan import plan
from chaos.run import may, run


def main() -> int:
    """Run what the command line asks for."""
    options = _options()
    chosen = [
        fault for fault in FAULTS if not options.fault or any(each in fault.name for each in options.fault)
    ]
    if not chosen:
        sys.exit(f"no such fault; there are: {', '.join(fault.name for fault in FAULTS)}")
    print(f"seed {options.seed}, {options.minutes:g} minutes", flush=True)
    for fault in chosen:
        if fault.why_not:
            print(f"left out: {fault.name}: {fault.why_not}", flush=True)
    if options.plan:
        print(
            *plan(options.seed, options.minutes * 60, [each for each in chosen if not each.why_not], may()),
            sep="\n",
        )
        return 0
    if options.folder and options.folder.exists() and any(options.folder.iterdir()):
        sys.exit(f"{options.folder} has the files of another run")
    folder = options.folder or Path(tempfile.mkdtemp(prefix="sluicemq-chaos-"))
    outcome = run(
        options.seed,
        options.minutes * 60,
        folder,
        chosen,
        options.report,
        options.pace,
        lambda text: print(text, flush=True),
    )
    for breach in outcome.breaches:
        print(f"BREACH {breach.kind}: {breach.text}", *breach.evidence[:10], sep="\n    ", flush=True)
    print(f"seed {options.seed}: {len(outcome.steps)} faults, {len(outcome.breaches)} breaches; see {folder}")
    return 1 if outcome.breaches else 0


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
