"""Backlog of the load: how many jobs of the library are pushed and not done, by what the books say so far."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from chaos import books, features

_COUNTED: Final = frozenset((*features.PUSHED_BY_LIBRARY, *features.ASKED_OF_LIBRARY))


class Backlog:
    """Reads on in all books at each look."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._pushed: set[str] = set()
        self._done: set[str] = set()

    def count(self) -> int:
        """Return how many jobs are pushed and not done."""
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                lines = file.read()
            whole = lines[: lines.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                self._look_at(line)
        return len(self._pushed - self._done)

    def _look_at(self, line: bytes) -> None:
        _, what, queue, id_, *about = json.loads(line)
        if queue not in _COUNTED:
            return
        if what == books.PUSHED:
            self._pushed.add(id_)
        elif what == books.REFUSED or (what == books.ENDED and about[0]["verdict"] != books.ROLLBACK):
            self._done.add(id_)
