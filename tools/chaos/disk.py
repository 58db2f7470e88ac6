"""A small disk of memory, which can be made full and empty again while a mongod runs on it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

#: Bytes that it has, while it is not full. It takes as much memory as lies on it.
_SIZE: Final = 2 << 30


def why_not() -> str:
    """Return why this machine can't have it; empty if it can."""
    return "" if os.geteuid() == 0 and shutil.which("mount") else "only root can mount a small disk"


class SmallDisk:
    """A folder that is a disk of its own until :meth:`close`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.mounted = not why_not() and self._mount(f"size={_SIZE}", "chaos")

    def fill(self) -> None:
        """Leave no room: the disk becomes as small as what lies on it."""
        self._mount(f"remount,size={shutil.disk_usage(self._folder).used}")

    def empty(self) -> None:
        """Give it its room again."""
        self._mount(f"remount,size={_SIZE}")

    def close(self) -> None:
        """Take it away, with all that lies on it."""
        if self.mounted:
            subprocess.run(["umount", "-l", str(self._folder)], check=False, capture_output=True)

    def _mount(self, options: str, *source: str) -> bool:
        command = ["mount", "-o", options, *(["-t", "tmpfs", *source] if source else []), str(self._folder)]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
