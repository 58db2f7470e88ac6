"""Checker of a chaos run: what was promised against the books, MongoDB and the logs.

``python -m chaos.checker FOLDER`` looks at the books and logs of a run once more, without its MongoDB.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from chaos import books
from chaos.breach import Breach
from chaos.job_checks import allowed_again, job_checks
from chaos.ledger import Ledger
from chaos.store_checks import process_checks, read_streams, store_checks
from chaos.stream_checks import stream_checks


def check(folder: Path, mongo_uri: str, database: str) -> list[Breach]:
    """Return all breaches of a run that was drained, while its MongoDB and its brokers still run."""
    ledger = Ledger.read(folder)
    return [
        *job_checks(ledger),
        *stream_checks(ledger, read_streams(folder)),
        *store_checks(mongo_uri, database),
        *process_checks(folder, ledger),
    ]


def summary(folder: Path) -> dict[str, Any]:
    """Return the figures of a run: jobs, runs, how many ran again, and why they were allowed to."""
    return summary_of(Ledger.read(folder))


def summary_of(ledger: Ledger) -> dict[str, Any]:
    """Return the figures of a ledger."""
    facts = Counter(fact.what for fact in ledger.facts)
    return {
        "pushed": facts[books.PUSHED],
        "confirmed": len(ledger.confirmed.keys() | ledger.settled.keys()),
        "runs": facts[books.BEGUN],
        "jobs": len(ledger.runs),
        "run more than once": sum(len(runs) > 1 for runs in ledger.runs.values()),
        "messages": facts[books.STORED],
        "read": facts[books.READ],
        "allowed": allowed_again(ledger),
    }


def main() -> int:
    """Check books and logs, and say what was found."""
    folder = Path(sys.argv[1])
    ledger = Ledger.read(folder)
    breaches = [*job_checks(ledger), *process_checks(folder, ledger)]
    print(*breaches, summary(folder), sep="\n")
    return int(bool(breaches))


if __name__ == "__main__":
    sys.exit(main())
