"""Run the tests in several processes, each forked when everything is imported and collected.

``--processes 8``. To collect all tests takes 8 s of CPU and the memory of all that they import, so it is done
once. A file is run by one process, and files are begun in the order in which they were collected::

    this process ──begin and end of a file──▶ one of the processes
        ▲                                          │
        └─────── reports of its tests ◀────────────┘

A process that ends in the middle of a test fails that test, and another one goes on behind it.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from multiprocessing.connection import Connection, wait
from typing import Any

import gevent
import pytest
from _pytest.runner import runtestprotocol

from support import ports

_FORK = multiprocessing.get_context("fork")


class Processes:
    """A plugin that runs the tests of a session in as many processes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._at_work: dict[Connection, _Child] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run what was collected; a single file, or what to do after an error, is left to pytest."""
        files = deque(_files(session.items))
        if len(files) < 2 or session.testsfailed or session.config.option.collectonly:
            return None
        gc.collect()
        gc.freeze()  # no collector goes through what all of them share
        try:
            while files or self._at_work:
                while files and len(self._at_work) < self._count:
                    self._fork(session, files)
                for ready in wait(list(self._at_work)):
                    self._hear(session, self._at_work[ready], files)  # type: ignore[index]
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
        finally:
            for child in self._at_work.values():
                child.pipe.close()
            for child in self._at_work.values():
                child.process.join()
        return True

    def _fork(self, session: pytest.Session, files: deque[range]) -> None:
        number = min(set(range(self._count)) - {child.number for child in self._at_work.values()})
        ours, theirs = _FORK.Pipe()
        others = [ours, *self._at_work]
        process = _FORK.Process(target=_run, args=(session, theirs, others, number, self._count))
        process.start()
        theirs.close()
        self._at_work[ours] = _Child(process, ours, number)

    def _hear(self, session: pytest.Session, child: _Child, files: deque[range]) -> None:
        try:
            said = child.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._ended(session, child, files)
            return
        if said is None:
            child.left = files.popleft() if files else range(0)
            with suppress(BrokenPipeError):
                child.pipe.send(child.left)
        elif isinstance(said, int):
            child.test = session.items[said]
            child.left = child.left[1:]
        else:
            hook = session.config.hook
            hook.pytest_runtest_logreport(
                report=hook.pytest_report_from_serializable(config=session.config, data=said)
            )

    def _ended(self, session: pytest.Session, child: _Child, files: deque[range]) -> None:
        del self._at_work[child.pipe]
        child.process.join()
        child.pipe.close()
        if child.process.exitcode and child.test:
            test = child.test
            why = f"the process that ran this ended with code {child.process.exitcode}"
            report = pytest.TestReport(test.nodeid, test.location, {}, "failed", why, "teardown")
            session.config.hook.pytest_runtest_logreport(report=report)
        if child.left:
            files.appendleft(child.left)


class _Child:
    """A process, the test at which it is, and which it has still to run of a file."""

    def __init__(self, process: Any, pipe: Connection, number: int) -> None:
        self.process = process
        self.number = number
        self.pipe = pipe
        self.test: pytest.Item | None = None
        self.left = range(0)


class _Reports:
    """A plugin that sends the reports of tests instead of showing them here."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            hook = item.config.hook
            self._pipe.send(hook.pytest_report_to_serializable(config=item.config, report=report))
        return True


def _files(items: list[pytest.Item]) -> Iterator[range]:
    """Yield the numbers of the tests of each file."""
    begin = 0
    for _, tests in groupby(items, key=lambda item: item.path):
        end = begin + len(list(tests))
        yield range(begin, end)
        begin = end


def _run(
    session: pytest.Session, pipe: Connection, others: list[Connection], number: int, count: int
) -> None:
    """Run file after file, until there is none, or the pipe is closed."""
    gevent.reinit()  # collecting has made a hub: each process needs files and threads of its own for it
    for other in others:
        other.close()
    ports.take_share(number, count)
    capture: Any = session.config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # the files to which that goes are those of the process above
    capture.start_global_capturing()
    session.config.pluginmanager.register(_Reports(pipe))
    try:
        while tests := _next(pipe):
            _run_file(session, pipe, tests)
    except (BrokenPipeError, ConnectionResetError, EOFError, KeyboardInterrupt):
        pass
    finally:
        _end_all_but_what_is_of(session, None)
        capture.stop_global_capturing()


def _next(pipe: Connection) -> range:
    pipe.send(None)
    tests: range = pipe.recv()
    return tests


def _run_file(session: pytest.Session, pipe: Connection, tests: range) -> None:
    items = session.items
    _end_all_but_what_is_of(session, items[tests[0]])
    for number in tests:
        if pipe.poll():  # it was closed
            raise EOFError
        pipe.send(number)
        # Behind the last test of a file comes one of another file, so that what lasts for the session stays.
        item, following = items[number], items[(number + 1) % len(items)]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def _end_all_but_what_is_of(session: pytest.Session, item: pytest.Item | None) -> None:
    session._setupstate.teardown_exact(item)  # noqa: SLF001 - pytest has no other way
