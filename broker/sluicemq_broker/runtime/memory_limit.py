"""The memory that this process may have: of the machine, or of its container or service, if that is less."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

_ROOT: Final = Path("/")


class HostMemory(NamedTuple):
    """Bytes of memory, and those that are available; None where that is not known."""

    total: int
    available: int | None


def host_memory(root: Path = _ROOT) -> HostMemory:
    """Read the memory of this machine, or of its container if that has less. ``root``: of the file system."""
    try:
        lines = [line.split() for line in (root / "proc/meminfo").read_text().splitlines()]
    except OSError:
        return HostMemory(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), None)
    found = {name.rstrip(":"): int(value) * 1024 for name, value, *_unit in lines}
    limit = min(_limits(root), default=sys.maxsize)
    available = found.get("MemAvailable")
    return HostMemory(min(found["MemTotal"], limit), None if available is None else min(available, limit))


def _limits(root: Path) -> Iterator[int]:
    """Yield the limits of this process's control group, and of those around it.

    In a container the path of the group may be that outside: then the group is mounted at the folder itself.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = ["0::/", "0:memory:/"]
    for line in lines:
        _number, kinds, path = line.split(":", 2)
        for kind, folder, name in (  # of version 1 of control groups, and of version 2
            ("memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("", "sys/fs/cgroup", "memory.max"),
        ):
            if kind in kinds.split(","):
                group = PurePosixPath(path.lstrip("/"))
                for member in (group, *group.parents):
                    if (limit := _number_in(root / folder / member / name)) is not None:
                        yield limit


def _number_in(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # of version 2: "max"
        return None
