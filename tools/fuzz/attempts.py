"""One case of one target: it must end soon, keep little, and raise only what its target foresees."""

from __future__ import annotations

import logging
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple

import gevent

#: Seconds of this process's own CPU time that one case may take; on a busy machine they last longer.
MOST_SECONDS: Final = 1.0


class Target(NamedTuple):
    """A function that takes bytes, and the errors that it may raise for them."""

    name: str
    run: Callable[[bytes], None]
    foreseen: tuple[type[Exception], ...]


TARGETS: Final[dict[str, Target]] = {}


def target(
    name: str, *foreseen: type[Exception]
) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    """Put a function into the table of targets."""

    def put(run: Callable[[bytes], None]) -> Callable[[bytes], None]:
        TARGETS[name] = Target(name, run, foreseen)
        return run

    return put


class TooLong(BaseException):
    """A case took too long; no handler of errors takes it for an error of a message."""


class Finding(NamedTuple):
    """A case that did what it must not do."""

    target: str
    data: bytes
    error: BaseException

    @property
    def place(self) -> tuple[str, ...]:
        """What tells it from other findings: its error and the lines that raised it."""
        lines = traceback.extract_tb(self.error.__traceback__)[-3:]
        return type(self.error).__name__, *(f"{Path(line.filename).name}:{line.lineno}" for line in lines)

    @property
    def report(self) -> str:
        return "".join(traceback.format_exception(self.error))


class _Log(logging.Handler):
    """Keeps the errors that were logged with a traceback, or ended a greenlet: nobody foresaw them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.errors.append(record.exc_info[1])


_LOG: Final = _Log()


@contextmanager
def watched() -> Iterator[None]:
    """Watch log, hub and clock for the cases in the body; of all else nothing is logged."""
    root, began = logging.getLogger(), signal.getsignal(signal.SIGVTALRM)
    level, handlers = root.level, root.handlers[:]
    root.handlers[:] = [_LOG]
    root.setLevel(logging.ERROR)
    hub = gevent.get_hub()
    handle_error = hub.handle_error
    hub.handle_error = lambda _greenlet, _kind, error, _trace: _LOG.errors.append(error)
    signal.signal(signal.SIGVTALRM, _too_long)
    try:
        yield
    finally:
        hub.handle_error = handle_error
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, began)
        root.handlers[:] = handlers
        root.setLevel(level)


def attempt(which: Target, data: bytes) -> Finding | None:
    """Run one case; return it if it is a finding. Only within :func:`watched`."""
    _LOG.errors.clear()
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
    try:
        which.run(data)
    except which.foreseen:
        pass
    except (Exception, TooLong) as error:  # noqa: BLE001 - that is what is looked for
        return Finding(which.name, data, error)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    return Finding(which.name, data, _LOG.errors[0]) if _LOG.errors else None


def attempt_all(which: Target, cases: Sequence[bytes]) -> list[Finding]:
    with watched():
        return [found for case in cases if (found := attempt(which, case))]


def shrunk(finding: Finding, which: Target, seconds: float = 10.0) -> Finding:
    """Return a shorter case of a finding: pieces of it are left out, large ones first, for some seconds."""
    size, until = len(finding.data) // 2, monotonic() + seconds
    while size and monotonic() < until:
        at = 0
        while at < len(finding.data) and monotonic() < until:
            found = attempt(which, finding.data[:at] + finding.data[at + size :])
            if found and found.place == finding.place:
                finding = found
            else:
                at += size
        size //= 2
    return finding


def _too_long(_signal: int, frame: Any) -> None:
    raise TooLong(f"more than {MOST_SECONDS:g} s of CPU time").with_traceback(None) from None


def peak_bytes() -> int:
    """Most memory that this process has had."""
    import resource  # noqa: PLC0415 - Linux and macOS only

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
