"""Failpoints: a test makes this broker die, or wait, just before or after a statement that writes.

The variable ``SLUICEMQ_FAILPOINTS`` arms them; without it nothing here runs::

    SLUICEMQ_FAILPOINTS="queue_store.QueueStore.commit:delete_many.before=die@3,trace:/tmp/met"

    NAME.before=die           kill -9 of this process, before the statement is sent
    NAME.after=wait:2.5       wait for 2.5 seconds, after its answer has come
    …@3                       at the third time
    trace:FILE                write the name of each failpoint into FILE when it is first met

A name is that of the call in this package: ``module.function:method``, with ``#2`` for the second such call
of the function. If several verbs share a statement, ``<`` and the verb follow, which is the
outermost function of this package: ``numbered_inserts.Insert._command:command<inserts.Insertion.send``. A
name without a verb means all of them.
"""

from __future__ import annotations

import ast
import logging
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from pymongo import monitoring

log = logging.getLogger("broker.store")

#: Variable of the environment that arms them.
FAILPOINTS: Final = "SLUICEMQ_FAILPOINTS"

#: Methods of the driver that write, or may; no pipeline of an ``aggregate`` here has a stage that does.
_WRITES: Final = re.compile(
    r"(insert|update|delete)_(one|many)|replace_one|bulk_write|find_one_and_\w+|rename|drop|drop_(index|indexes|collection)"
    r"|create_(index|indexes|collection)|command|with_transaction"
)
#: Commands that change nothing, which the driver sends on behalf of such a method.
_READS: Final = {"find", "getMore", "killCursors", "aggregate", "hello", "ping", "abortTransaction"}
_POINT: Final = re.compile(
    r"(?P<name>[\w.#:<]+)\.(?P<moment>before|after)=(die|wait:(?P<seconds>\d+(\.\d+)?))(@(?P<time>[1-9]\d*))?"
)
_TRACE: Final = "trace:"
_PACKAGE: Final = __name__.rpartition(".")[0]
_BROKER: Final = __name__.partition(".")[0]


class Statement(NamedTuple):
    """A call that writes: its name, its module, and its first and last line."""

    name: str
    module: str
    first: int
    last: int


def statements() -> list[Statement]:
    """Return all calls of this package that write, as its sources have them."""
    folder = Path(__file__).parent
    found: list[Statement] = []
    for file in sorted(folder.rglob("*.py")):
        module = ".".join((_PACKAGE, *file.relative_to(folder).with_suffix("").parts))
        times: Counter[str] = Counter()
        for function, call, method in _calls(ast.parse(file.read_text()), ""):
            name = f"{file.stem}.{function}:{method}"
            times[name] += 1
            name += f"#{times[name]}" if times[name] > 1 else ""
            found.append(Statement(name, module, call.lineno, call.end_lineno or call.lineno))
    return found


def arm_failpoints(text: str) -> None:
    """Arm the failpoints of every client that is made from now on; ValueError says what can't be read."""
    known = statements()
    armed = [_armed(each.strip(), {one.name for one in known}) for each in text.split(",")]
    log.warning("%s is set: this broker dies or waits where a test wants it to: %s", FAILPOINTS, text)
    monitoring.register(_Failpoints(known, armed))


#: Called with the name and the moment of each failpoint that is met.
_Armed = Callable[[str, str], None]


class _Failpoints(monitoring.CommandListener):
    """Meets the failpoints of each command, in the greenlet that sends it."""

    def __init__(self, known: list[Statement], armed: list[_Armed]) -> None:
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
            for each in self._armed:
                each(name, moment)

    def _name(self) -> str:
        frames = list(_frames())
        if not frames:
            return ""
        sender, verb = frames[0], frames[-1]
        module, line = _module(sender), sender.f_lineno
        for each in self._known:
            if each.module == module and each.first <= line <= each.last:
                outermost = _function(verb)
                return each.name if _function(sender) == outermost else f"{each.name}<{outermost}"
        return ""


def _calls(node: ast.AST, function: str) -> Iterator[tuple[str, ast.Call, str]]:
    """Yield each call below the node that writes, with its function, the innermost call first."""
    for child in ast.iter_child_nodes(node):
        inner = function
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{function}.{child.name}".lstrip(".")
        yield from _calls(child, inner)
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
            method, first = child.func.attr, child.args[0] if child.args else None
            reads = method == "command" and isinstance(first, ast.Constant) and first.value in _READS_BY_NAME
            if _WRITES.fullmatch(method) and not reads:
                yield function, child, method


_READS_BY_NAME: Final = {
    *_READS,
    *("replSetGetConfig", "replSetGetStatus", "collStats", "dbStats", "serverStatus"),
}


def _armed(text: str, known: set[str]) -> _Armed:
    if text.startswith(_TRACE):
        return _trace(Path(text.removeprefix(_TRACE)))
    point = _POINT.fullmatch(text)
    if not point:
        raise ValueError(f"{text!r} is no failpoint: NAME.before=die, NAME.after=wait:2@3 or trace:FILE")
    if point["name"].partition("<")[0] not in known:
        raise ValueError(f"{text!r}: no statement of the store has this name")
    left = [int(point["time"] or 1)]

    def meet(name: str, moment: str) -> None:
        if moment == point["moment"] and point["name"] in (name, name.partition("<")[0]):
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


def _frames() -> Iterator[FrameType]:
    """Yield the frames of this package that led here, the innermost first, up to the room that called it."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - inspect.stack() reads every source file
    while frame:
        module = _module(frame)
        if module.startswith(f"{_PACKAGE}."):
            if module != __name__:
                yield frame
        elif module.startswith(f"{_BROKER}."):
            return  # of what a batch calls back
        frame = frame.f_back


def _function(frame: FrameType) -> str:
    module = _module(frame).rpartition(".")[2]
    return f"{module}.{frame.f_code.co_qualname.replace('.<locals>', '')}"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
