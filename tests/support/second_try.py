"""Decides if the tests that failed last are tried once more: ``python tests/support/second_try.py``.

``./deploy/test`` asks it after a failure, so it needs Python alone. Where eight processes share two cores,
one of ten thousand tests may wait longer than its time-out. More than a few have a common cause.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

#: What pytest remembers of the last run.
FAILED: Final = Path(__file__).resolve().parents[2] / ".pytest_cache" / "v" / "cache" / "lastfailed"
#: Tests that may have failed.
MOST: Final = 10


def main() -> int:
    """Return 0 if so few tests failed that they are tried once more."""
    failed = json.loads(FAILED.read_text()) if FAILED.exists() else {}
    return 0 if 1 <= len(failed) <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
