"""Tests that may be tried once more, by name: ``tests/quarantine.toml``.

``python tests/support/quarantine.py`` names those that failed last, each with its reason; it fails if another
test failed too. ``./deploy/test`` asks it after a failure, so it needs Python alone.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "tests" / "quarantine.toml"
#: What pytest remembers of the last run.
FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"


def main() -> int:
    """Return 0 if tests failed, and only such as are quarantined."""
    reasons = {each["name"]: each["reason"] for each in entries()}
    failed = list(json.loads(FAILED.read_text())) if FAILED.exists() else []
    for name in failed:
        if name in reasons:
            print(f"quarantined: {name}: {reasons[name]}", file=sys.stderr)
    return 0 if failed and set(failed) <= reasons.keys() else 1


def entries() -> list[dict[str, Any]]:
    """Return the tests of the list."""
    quarantined: list[dict[str, Any]] = tomllib.loads(LIST.read_text()).get("test", [])
    return quarantined


def faults(quarantined: Iterable[Mapping[str, Any]], root: Path = ROOT) -> Iterator[str]:
    """Yield what is wrong with entries of the list: tests that do not exist, no reason, no date."""
    for each in quarantined:
        name = str(each.get("name"))
        file, _, function = name.partition("::")
        source = (root / file).read_text() if (root / file).is_file() else ""
        function = function.rpartition("::")[2].partition("[")[0]
        if not re.search(rf"^ *def {re.escape(function)}\(", source, re.MULTILINE):
            yield f"{name}: there is no such test"
        if not each.get("reason"):
            yield f"{name}: reason is missing"
        if not isinstance(each.get("since"), date):
            yield f"{name}: since is no date"


if __name__ == "__main__":
    sys.exit(main())
