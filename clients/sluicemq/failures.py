"""Exceptions of handlers: their type, their place in the program's code, and a bounded traceback."""

from __future__ import annotations

import os
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple

from sluicemq.complaints import log
from sluicemq.protocol.readable import MOST_NAMED, MOST_TRACEBACK, cut_in_middle, escaped, said

#: Tracebacks in the log in one second, at most, and seconds for which an error that was shown is one line.
_MOST_A_SECOND: Final = 5
_KNOWN_FOR: Final = 60.0
_MOST_KNOWN: Final = 100
_OWN: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep  # noqa: PTH100, PTH120 - as frames have them
_FOLDERS: Final = {
    sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
}
#: Beginnings of the files of frames that are not the program's own.
_LIBRARIES: Final = (_OWN, "<frozen", *_FOLDERS)


class Failure(NamedTuple):
    """An exception as the broker keeps it; ``seconds``: how long the handler had run."""

    type: str
    place: str
    traceback: str
    seconds: float

    def sent(self) -> dict[str, Any]:
        """Return it as a SETTLE has it."""
        return {**self._asdict(), "traceback": self.traceback.encode()}


def failure_of(error: BaseException, began: float) -> Failure:
    """Describe an exception of a handler that began at this monotonic time; its own methods may fail."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    seconds = round(max(0.0, monotonic() - began), 3)
    return Failure(escaped(name, MOST_NAMED), _place(error.__traceback__), _text(error), seconds)


def _text(error: BaseException) -> str:
    """Return the traceback, without the frames of this library that lead to the handler.

    Empty if there are no others: a command of ``sluicemq work --exec`` has failed.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OWN):
        frames = frames.tb_next
    if frames is None and error.__traceback__:
        return ""
    try:
        # Frames of a traceback that are shown, the last ones
        lines = traceback.TracebackException(
            type(error), error, frames, limit=-30, capture_locals=False, compact=True
        ).format()
        text = "".join(lines)
    except BaseException as problem:  # noqa: BLE001 - of the exception's own methods
        text = f"no traceback: {said(problem, named=True)}"
    return cut_in_middle(escaped(text.rstrip(), 8 * MOST_TRACEBACK), MOST_TRACEBACK)


def _place(trace: TracebackType | None) -> str:
    """Return the function in which it was raised: the innermost one of the program's own code."""
    found = ""
    for frame in _frames(trace):
        code = frame.f_code
        file = code.co_filename
        if found and file.startswith(_LIBRARIES):
            continue
        found = f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}"
    return escaped(found, MOST_NAMED)


def _frames(trace: TracebackType | None) -> Iterator[FrameType]:
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_OWN) or trace.tb_next is None:
            yield trace.tb_frame
        trace = trace.tb_next


class FailureLog:
    """Logs failed jobs, a line for each; the traceback of an error once a minute, and of the last attempt."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shown: dict[tuple[str, str], float] = {}
        self._second, self._in_second = 0, 0

    def note(self, job: Any, error: BaseException, failure: Failure, now: float) -> None:
        """Log a failure, unless the log itself fails; ``now`` is monotonic."""
        with suppress(Exception, SystemExit):  # whatever a handler of the log does
            self._log(job, error, failure, now)

    def _log(self, job: Any, error: BaseException, failure: Failure, now: float) -> None:
        last = 0 < job.max_attempts <= job.attempt
        of = f" of {job.max_attempts}" if job.max_attempts else ""
        then = "it is dead" if last else "it comes again"
        line = "job %s of queue %s failed in attempt %d%s, %s: %s"
        args = (job.id, job.queue, job.attempt, of, then, said(error, named=True))
        if failure.traceback and self._shows(failure, now, last=last):
            log.warning(line + "\n%s", *args, failure.traceback)
        else:
            log.warning(line, *args)

    def _shows(self, failure: Failure, now: float, *, last: bool) -> bool:
        about = failure.type, failure.place
        with self._lock:
            if int(now) != self._second:
                self._second, self._in_second = int(now), 0
            known = now - self._shown.get(about, -_KNOWN_FOR) < _KNOWN_FOR
            if (known and not last) or self._in_second >= _MOST_A_SECOND:
                return False
            self._in_second += 1
            if len(self._shown) >= _MOST_KNOWN:
                self._shown.clear()
            self._shown[about] = now
            return True
