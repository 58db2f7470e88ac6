"""Programs that a test starts beside the broker, to be killed and stopped; ended whatever happens."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

from support.waiting import TIMEOUT, wait_until

_PROGRAMS = Path(__file__).parent / "programs"
_INTEROP = Path(__file__).parents[1] / "interop"
_NODE_PATH = Path(__file__).parents[2] / ".venv-test" / "node" / "node_modules"
ENVIRONMENT = {"NODE_PATH": str(_NODE_PATH), **os.environ}


class Program:
    """One running program of ``programs/``; what it says on stdout is read as it comes."""

    def __init__(self, *command: object) -> None:
        self.process = subprocess.Popen(
            [*map(str, command)], env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lines: list[list[str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        """Return whether it runs, or is stopped."""
        return self.process.poll() is None

    def said(self, word: str) -> list[list[str]]:
        """Return what followed ``word`` on each line that began with it."""
        return [line[1:] for line in list(self._lines) if line[0] == word]

    def wait_said(self, word: str, count: int = 1, timeout: float = TIMEOUT) -> list[list[str]]:
        """Wait until it has said ``word`` ``count`` times."""
        said: list[list[str]] = wait_until(
            lambda: found if len(found := self.said(word)) >= count else None, timeout, f"{word!r} x {count}"
        )
        return said

    def go(self, times: int = 1) -> None:
        """Let it answer jobs that it holds."""
        assert self.process.stdin
        self.process.stdin.write("\n" * times)
        self.process.stdin.flush()

    def freeze(self) -> None:
        """SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """``kill -9``, and wait until it is gone; again is harmless."""
        self.process.kill()
        self.process.wait(60)
        self._reader.join(60)

    def _read(self) -> None:
        assert self.process.stdout
        self._lines.extend(line.split() for line in self.process.stdout if line.strip())


class Fleet:
    """All programs of one test."""

    def __init__(self) -> None:
        self.programs: list[Program] = []

    def start(self, name: str, *arguments: object) -> Program:
        return self._start(sys.executable, _PROGRAMS / name, *arguments)

    def node(self, *arguments: object) -> Program:
        """Start ``plain.js`` of the interop tests."""
        return self._start("node", _INTEROP / "plain.js", *arguments)

    def worker(self, *arguments: object) -> Program:
        """Start ``worker.py`` and wait until it listens."""
        worker = self.start("worker.py", *arguments)
        worker.wait_said("ready")
        return worker

    def _start(self, *command: object) -> Program:
        self.programs.append(Program(*command))
        return self.programs[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self.programs:
            program.end()
