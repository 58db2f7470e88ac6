"""The corpus: of each target a text, one case in a line, ``NAME b'bytes as Python writes them'``.

Named cases are beginnings and regressions, written by hand; those with a name of digits were found by a run,
and are replaced by ``--keep``.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "corpus"


def read(name: str) -> dict[str, bytes]:
    """Return the cases of a target by their names."""
    file = FOLDER / f"{name}.txt"
    lines = file.read_text(encoding="ascii").splitlines() if file.exists() else []
    pairs = [line.split(" ", 1) for line in lines if line]
    return {case: ast.literal_eval(text) for case, text in pairs}


def write(name: str, cases: Mapping[str, bytes]) -> None:
    """Write the cases of a target."""
    text = "".join(f"{case} {data!r}\n" for case, data in cases.items())
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.txt").write_text(text, encoding="ascii")


def named(cases: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the cases that were written by hand."""
    return {name: data for name, data in cases.items() if not name.isdigit()}


def numbered(cases: Iterable[bytes]) -> dict[str, bytes]:
    """Return cases by names of digits, made of their bytes."""
    return {str(int(hashlib.sha256(case).hexdigest()[:8], 16)): case for case in cases}
