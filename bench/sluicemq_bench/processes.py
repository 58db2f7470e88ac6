"""The processes of a run: started, awaited, read, and ended in any case."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, Self

from sluicemq_bench.task import Result, Task

_READY_TIMEOUT = 60.0
_END_TIMEOUT = 5.0


class BenchFailed(Exception):
    """A run could not be finished; the text says why."""


class Processes:
    """One process for each task; leaving the ``with`` block ends those that still run."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._processes = [_start(task) for task in tasks]
        self._not_ready = list(self._processes)

    def wait_ready(self) -> None:
        """Return when all of them are ready; may be called again."""
        while self._not_ready:
            line = _line(self._not_ready[0])
            if line != "ready":
                raise BenchFailed(f"a process of the bench {line or 'ended before the start'}")
            del self._not_ready[0]

    def go(self, start: int) -> None:
        """Send them the time of the start (monotonic ns)."""
        for process in self._processes:
            stdin = _pipe(process.stdin)
            stdin.write(f"{start}\n")
            stdin.flush()

    def ended(self) -> bool:
        """Return whether all have ended; raises if one of them failed."""
        codes = [process.poll() for process in self._processes]
        if any(codes):
            raise BenchFailed("a process of the bench failed; what it wrote stands above")
        return None not in codes

    def results(self) -> list[Result]:
        """Return their results, in the order of the tasks, once they have ended."""
        return [Result(**json.loads(_pipe(process.stdout).readline())) for process in self._processes]

    def end(self) -> None:
        """End those that still run."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait(_END_TIMEOUT)
            for pipe in (process.stdin, process.stdout):
                _pipe(pipe).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()


def _start(task: Task) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sluicemq_bench.programs", task.encoded()]
    return subprocess.Popen(  # noqa: S603 - our own module
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def _line(process: subprocess.Popen[str]) -> str:
    stdout = _pipe(process.stdout)
    if not select.select([stdout], [], [], _READY_TIMEOUT)[0]:
        return f"is not ready after {_READY_TIMEOUT:g} s: is the broker there?"
    return stdout.readline().strip()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise AssertionError
    return pipe
