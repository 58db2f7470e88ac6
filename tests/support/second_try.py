"""What ``./deploy/test`` does about a few failed tests; it is run after a failure, so it needs Python alone.

``python tests/support/second_try.py ask`` exits with 0 if so few tests failed that they are tried once more,
alone. Where eight processes share two cores, one of thousands of tests may wait longer than its time-out;
more than a few have a common cause. ``... tell`` prints how the tests of the first try failed that have now
passed, and writes it to :data:`UNSTABLE`, which CI keeps.
"""

import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: Where the reports of a run lie.
REPORTS: Final = Path(__file__).resolve().parents[2] / "test-reports"
#: What pytest wrote of the first try, as JUnit's XML.
FIRST: Final = REPORTS / "first-try.xml"
#: The failures of tests that passed at their second try.
UNSTABLE: Final = REPORTS / "unstable.txt"
#: Tests that may have failed.
MOST: Final = 10


def main(word: str) -> int:
    """Do what the argument asks; the exit code is 1 where no second try is wanted."""
    failed = list(_failed())
    if word == "ask":
        return 0 if 1 <= len(failed) <= MOST else 1
    text = "\n".join(failed)
    UNSTABLE.write_text(text)
    sys.stderr.write(f"{text}\nUNSTABLE: {len(failed)} passed alone; their first failures: {UNSTABLE}\n")
    return 0


def _failed() -> Iterator[str]:
    """Yield each failed test of the first try with all that pytest said of it."""
    if not FIRST.exists():
        return
    for case in ET.parse(FIRST).iter("testcase"):  # noqa: S314 # pytest wrote it
        for problem in (*case.findall("failure"), *case.findall("error")):
            text = problem.text or problem.get("message")
            yield f"== {case.get('classname')}::{case.get('name')}\n{text}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
