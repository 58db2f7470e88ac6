"""CPU time and peak memory of the measured processes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil

from sluicemq.client import Client

_MB = 1_000_000
_HERE = ("127.", "localhost", "::1")


@dataclass
class Usage:
    """Usage of one process over one run."""

    cpu_s: float = 0.0
    peak_rss_mb: float = 0.0


class Meter:
    """Reads processes, by name: at the start, often while they run, and at the end."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._before = {name: _cpu(process) for name, process in self._processes.items()}
        self.usage = {name: Usage() for name in pids}

    def read(self) -> None:
        """Read now; a process that is gone keeps its last values."""
        for name, process in self._processes.items():
            with suppress(psutil.Error):
                usage = self.usage[name]
                usage.cpu_s = _cpu(process) - self._before[name]
                usage.peak_rss_mb = max(usage.peak_rss_mb, process.memory_info().rss / _MB)


def pids_behind(client: Client, endpoint: str) -> dict[str, int]:
    """Return the broker's process and its embedded mongod's, if the broker is on this machine."""
    if not _is_here(endpoint):
        return {}
    pid = int(client.stats()["broker"]["pid"])
    with suppress(psutil.Error):  # a container of its own is another machine to us
        children = psutil.Process(pid).children()
        named = [("broker", pid), *((child.name(), child.pid) for child in children)]
        return {name: pid for name, pid in named if name in ("broker", "mongod")}
    return {}


def _is_here(endpoint: str) -> bool:
    return endpoint.startswith("ipc:") or (urlsplit(endpoint).hostname or "").startswith(_HERE)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
