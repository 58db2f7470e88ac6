"""Ends running commands with the process that runs them, also if that is killed (SIGKILL).

A small shell waits on a pipe whose other end this process holds. Each command writes its number there as its
first act, and holds the pipe open until then. This process takes the number back after the command's end. The
pipe ends with this process: then the shell kills the process groups of the commands that are still there. A
command that was forked at that moment is among them, since its number comes before the pipe's end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from typing import Any, Final

#: Signals for others don't end it: neither a terminal's nor one for all of a service's processes.
_SCRIPT: Final = """
trap '' HUP INT TERM
running=' '
while read -r sign pid; do
  case $sign in
    +) running="$running$pid ";;
    -) case $running in *" $pid "*) running="${running%%" $pid "*} ${running#*" $pid "}";; esac;;
  esac
done
for pid in $running; do kill -9 "-$pid"; done
"""


class Watcher:
    """The shell that waits: made before the first command, it ends by itself after this process."""

    def __init__(self) -> None:
        read, write = os.pipe()
        self._file = fcntl.fcntl(write, fcntl.F_DUPFD_CLOEXEC, 3)
        os.close(write)
        nowhere = subprocess.DEVNULL
        try:
            subprocess.Popen(  # noqa: S603 - our own words
                ["/bin/sh", "-c", _SCRIPT],
                stdin=read, stdout=nowhere, stderr=nowhere, start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(read)

    def start(self, command: str, **options: Any) -> subprocess.Popen[bytes]:
        """Run a command in a shell, in a session of its own, like :class:`subprocess.Popen`."""
        # Numbers of files that every shell can redirect to
        registers_itself = self._file <= 9
        process = subprocess.Popen(  # noqa: S602 - users give shell commands
            f"{self._first_words()}{command}" if registers_itself else command,
            shell=True, start_new_session=True, pass_fds=(self._file,) if registers_itself else (), **options,
        )  # fmt: skip
        if not registers_itself:
            self._write("+", process.pid)
        return process

    def ended(self, process: subprocess.Popen[bytes]) -> None:
        """Forget a command; what it has left running on purpose goes on."""
        self._write("-", process.pid)

    def _first_words(self) -> str:
        """Return the first words of a command; it goes on without the watcher, if that is gone."""
        return f"trap '' PIPE; echo + $$ 2>/dev/null >&{self._file}; trap - PIPE; exec {self._file}>&-; "

    def _write(self, sign: str, pid: int) -> None:
        with contextlib.suppress(OSError):
            os.write(self._file, f"{sign} {pid}\n".encode())
