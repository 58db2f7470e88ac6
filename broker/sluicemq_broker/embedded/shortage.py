"""Disk space and open files of a mongod: named while they are scarce, and as the cause of its end."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

_FULL: Final = "the disk of {folder} is full: make room there, or move the folder (--data-dir)"
_CURES: Final = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EMFILE: "it may open no more than {files} files: raise that, with `ulimit -n 64000`, or "
    "LimitNOFILE of the service",
    errno.ENFILE: "this machine has too many open files: raise fs.file-max",
    errno.ENOMEM: "the machine has no memory left for it",
    errno.EIO: "the disk of {folder} fails: it can't be read, or written",
    errno.EROFS: "{folder} is on a disk that can't be written",
    errno.EACCES: "it may not write in {folder}: give the folder to the user that runs the broker",
    errno.EPERM: "it may not write in {folder}: give the folder to the user that runs the broker",
}


def shortages(folder: Path, *, free: int | None = None, files: int | None = None) -> Iterator[str]:
    """Yield sentences on what is scarce already: room on the disk of ``folder``, open files.

    ``free`` bytes and ``files``: by default as the operating system says.
    """
    free = shutil.disk_usage(folder).free if free is None else free
    # Free bytes below which a start warns: the oplog takes 512 MiB, the journal 100 MiB.
    if free < 1 << 30:
        yield (
            f"only {free >> 20} MiB are free on the disk of {folder}, and MongoDB ends when it is full: make "
            "room, or put the data elsewhere (--data-dir)"
        )
    files = _most_files() if files is None else files
    # Open files below which a start warns: a queue has about ten in MongoDB, a connection one.
    if files < 4096:
        yield (
            f"this process and its MongoDB may open {files} files each: that is little for many queues or "
            "connections; raise it, with `ulimit -n 64000`, or LimitNOFILE of the service"
        )


def refused(folder: Path, error: OSError) -> str:
    """Say what the operating system refused in a data folder, and what to do."""
    why = _CURES.get(error.errno or 0, str(error.strerror or error))
    return f"the data folder {folder} can't be used: {why.format(folder=folder, files=_most_files())}"


def cause_of(log: Path, folder: Path) -> str | None:
    """Return why a mongod ended, by the first of the last errors in its log; None if the log has none.

    A panic, a signal and a stack trace that follow are consequences of that error. A full disk takes no log,
    so the disk is checked, too.
    """
    complaints = _last_complaints(log)
    numbers = (_number(complaint) for complaint in complaints)
    known = next((_CURES[number] for number in numbers if number in _CURES), None)
    # Free bytes below which a disk is full: mongod's log and its journal need more.
    if known is None and shutil.disk_usage(folder).free < 1 << 20:
        known = _FULL
    if known is not None:
        return known.format(folder=folder, files=_most_files())
    return complaints[0] if complaints else None


def _last_complaints(log: Path) -> list[str]:
    """Return the last errors in a log of mongod, those of the last seconds."""
    found = [complaint for line in tail(log).splitlines() if (complaint := _complaint(line))]
    last = max((at for at, _words in found), default=0.0)
    # Seconds from the cause to the last line of a mongod that ends.
    return [words for at, words in found if at >= last - 10.0]


def _complaint(line: str) -> tuple[float, str] | None:
    """Return time and text of a line of mongod's log, if it is an error."""
    try:
        entry = json.loads(line)
        if entry["s"] not in {"E", "F"}:
            return None
        at = datetime.fromisoformat(entry["t"]["$date"]).timestamp() if "t" in entry else 0.0
    except (ValueError, TypeError, KeyError):
        return None
    return at, f"{entry.get('msg')} {json.dumps(entry.get('attr', {}))}"


def _number(complaint: str) -> int | None:
    """Return the errno in an error line, as ``"error": 28`` of WiredTiger or in words."""
    found = re.search(r'"error(?:_code)?": (\d+)', complaint)
    if found:
        return int(found[1])
    return next((number for number in _CURES if os.strerror(number) in complaint), None)


def tail(log: Path) -> str:
    """Return the end of a log, empty if it can't be read."""
    try:
        with log.open("rb") as file:
            # Bytes at the end of a log that contain the cause: a stack trace has up to 100 KiB.
            file.seek(max(0, log.stat().st_size - (1 << 19)))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _most_files() -> int:
    """Return how many files a process may open once it has raised its limit as far as allowed."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard
