"""All targets: importing a file of them fills the table."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Final

from fuzz.attempts import TARGETS, Target

#: The files with targets. Each is imported only when it is needed: what it tests may be instrumented then.
FILES: Final = ("on_the_wire", "of_the_protocol", "at_the_doors", "of_the_configuration")


def load(files: Iterable[str] = FILES) -> Mapping[str, Target]:
    """Return the targets of these files by their names."""
    for file in files:
        importlib.import_module(f"fuzz.{file}")
    return dict(sorted(TARGETS.items()))
