"""Failpoints: a test makes a broker die, or wait, just before or after a statement that writes.

The variable ``SLUICEMQ_FAILPOINTS`` arms them in a :mod:`forked broker <support.forked_broker>`::

    SLUICEMQ_FAILPOINTS="jobs.commit.before=die@3,trace:/tmp/met"

    NAME.before=die           kill -9 of this process, before the statement is sent
    NAME.after=wait:2.5       wait for 2.5 seconds, after its answer has come
    …@3                       at the third time
    trace:FILE                write the name of each failpoint into FILE when it is first met

The name stands in a comment above the line with the call that writes, and is read from there once they are
armed::

    # failpoint jobs.commit
    removed = self.jobs.delete_many(all_reserved_as(jobs)).deleted_count

In the name of a statement that verbs share ``*`` stands for what the verb says above its own call::

    # failpoint *.commit
    return session.with_transaction(_once(apply))

    # failpoint forwards
    return _Forwards(source, forwards, now).run()

That is ``forwards.commit``. Of the calls that led to a statement the nearest with a comment counts: the
others know less of what is written.
"""

import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Final

from pymongo import monitoring

from sluicemq_broker import store

log = logging.getLogger("broker.store")

#: Variable of the environment that arms them.
FAILPOINTS: Final = "SLUICEMQ_FAILPOINTS"

#: Commands that change nothing, which the driver sends on behalf of a method that writes.
_READS: Final = {"find", "getMore", "killCursors", "aggregate", "hello", "ping", "abortTransaction"}
_COMMENT: Final = re.compile(r"\s*# failpoint ([\w.*]+)\n")
_POINT: Final = re.compile(
    r"(?P<name>[\w.]+)\.(?P<moment>before|after)=(die|wait:(?P<seconds>\d+(\.\d+)?))(@(?P<time>[1-9]\d*))?"
)
_TRACE: Final = "trace:"

#: The file and the line of each call below a comment, and what the comment says.
Comments = Mapping[tuple[str, int], str]


def comments() -> Comments:
    """Read all comments that name failpoints, from the sources of the store."""
    return {
        (str(file), number + 1): comment[1]
        for file in Path(store.__file__).parent.rglob("*.py")
        for number, line in enumerate(file.read_text().splitlines(keepends=True), start=1)
        if (comment := _COMMENT.fullmatch(line))
    }


def arm_failpoints(text: str) -> None:
    """Arm the failpoints of every client that is made from now on; ValueError says what can't be read."""
    known = comments()
    armed = [_armed(name.strip(), set(known.values())) for name in text.split(",")]
    log.warning("%s is set: this broker dies or waits where a test wants it to: %s", FAILPOINTS, text)
    monitoring.register(_Failpoints(known, armed))


#: Called with the name and the moment of each failpoint that is met.
_Armed = Callable[[str, str], None]


class _Failpoints(monitoring.CommandListener):
    """Meets the failpoints of each command, in the greenlet that sends it."""

    def __init__(self, known: Comments, armed: list[_Armed]) -> None:
        self._known = known
        self._armed = armed

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Meet the one before it is sent."""
        self._meet(event.command_name, "before")

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Meet the one after its answer."""
        self._meet(event.command_name, "after")

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Meet the one after its answer, which was an error, or did not come."""
        self._meet(event.command_name, "after")

    def _meet(self, command: str, moment: str) -> None:
        if command not in _READS and (name := self._name()):
            for armed in self._armed:
                armed(name, moment)

    def _name(self) -> str:
        name = ""
        frame: FrameType | None = sys._getframe()  # noqa: SLF001 - inspect.stack() reads every source file
        while frame and (not name or "*" in name):
            said = self._known.get((frame.f_code.co_filename, frame.f_lineno), "")
            if not name:
                name = said
            elif said and "*" not in said:
                name = name.replace("*", said)
            frame = frame.f_back
        return name


def _armed(text: str, said: set[str]) -> _Armed:
    if text.startswith(_TRACE):
        return _trace(Path(text.removeprefix(_TRACE)))
    point = _POINT.fullmatch(text)
    if not point:
        raise ValueError(f"{text!r} is no failpoint: NAME.before=die, NAME.after=wait:2@3 or trace:FILE")
    if point["name"] not in {one.replace("*", verb) for one in said for verb in said}:
        raise ValueError(f"{text!r}: no statement of the store has this name")
    left = [int(point["time"] or 1)]

    def meet(name: str, moment: str) -> None:
        if (name, moment) == (point["name"], point["moment"]):
            left[0] -= 1
            if left[0] == 0:
                _act(point["seconds"])

    return meet


def _act(seconds: str | None) -> None:
    if seconds is None:
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        time.sleep(float(seconds))


def _trace(file: Path) -> _Armed:
    met: set[str] = set()

    def meet(name: str, moment: str) -> None:
        if moment == "before" and name not in met:
            met.add(name)
            with file.open("a") as to:
                to.write(f"{name}\n")

    return meet
