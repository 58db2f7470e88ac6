"""A page whose commands are typed, and whose programs are saved, as a reader would.

A block stands below a mark that says what it is::

    <!-- save: worker.py -->                 a file
    <!-- terminal: producer -->              typed there: `$ ` begins a command, the rest is what it prints
    <!-- terminal: worker, runs on -->       the last command of the block does not end
    <!-- terminal: worker -->                without a `$ `: printed there meanwhile

In what is printed `…` is anything, and a line with nothing else any lines; so are the widths of columns.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from support.terminal import Terminal
from support.waiting import wait_until

_BLOCK = re.compile(
    r"^<!-- (save|terminal): (\S+?)(, runs on)? -->\n```\w+\n(.*?)^```", re.DOTALL | re.MULTILINE
)
#: What a shell says of its jobs, when it comes to it.
_JOB = re.compile(r"^\[\d+\]([+-]?| \d+$)")


class Block(NamedTuple):
    """A block of a page: a file, or what is typed at a terminal."""

    kind: str
    name: str
    runs_on: bool
    text: str


class Command(NamedTuple):
    """A line that is typed ("": none, "^C": Ctrl-C), and what is printed then."""

    line: str
    printed: list[str]


def blocks(page: str) -> list[Block]:
    """The marked blocks of a page, in order."""
    return [Block(kind, name, bool(on), text) for kind, name, on, text in _BLOCK.findall(page)]


def type_page(page: str, folder: Path, environ: Mapping[str, str], put: Callable[[str], str]) -> None:
    """Do what a page says in a folder; AssertionError where it goes otherwise. ``put`` changes addresses."""
    with ExitStack() as stack:
        terminals: dict[str, _Reader] = {}
        for block in blocks(page):
            if block.kind == "save":
                (folder / block.name).write_text(put(block.text))
                continue
            if block.name not in terminals:
                terminals[block.name] = _Reader(stack.enter_context(Terminal(folder, environ)))
            *ending, last = _commands(put(block.text))
            for command in ending:
                terminals[block.name].go_through(command)
            terminals[block.name].go_through(last, runs_on=block.runs_on)


def _commands(text: str) -> Iterator[Command]:
    commands = [Command("", [])]
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append(Command(line[2:], []))
        elif line == "^C":
            commands.append(Command(line, []))
        else:
            commands[-1].printed.append(line)
    return iter(commands[1:] if len(commands) > 1 else commands)


class _Reader:
    """Somebody at a terminal, who has read what it shows up to a place."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._read = 0

    def go_through(self, command: Command, *, runs_on: bool = False) -> None:
        if command.line and command.line != "^C" and not runs_on:
            self._compare(command, self._terminal.type(command.line))
            self._read = len(self._terminal.shown())
            return
        if command.line == "^C":
            self._terminal.interrupt()
        elif command.line:
            self._terminal.begin(command.line)
        self._await(command)

    def _compare(self, command: Command, printed: str) -> None:
        lines = [line for line in _squeezed(printed) if not _JOB.match(line)]
        assert re.fullmatch(_pattern(command.printed), "\n".join([*lines, ""])), (command, printed)

    def _await(self, command: Command) -> None:
        wanted = re.compile(_pattern(command.printed))
        what = f"{command} where it reads {self._terminal.shown()[self._read :]}"

        def found() -> bool:
            lines = "".join(f"{line}\n" for line in _squeezed(self._terminal.shown()[self._read :]))
            return bool(wanted.search(lines))

        wait_until(found, what=what)
        self._read = len(self._terminal.shown())


def _squeezed(text: str) -> list[str]:
    """Lines without empty ones, and with one space between words."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def _pattern(lines: list[str]) -> str:
    patterns = []
    for line in _squeezed("\n".join(lines)):
        if line == "…":
            patterns.append(r"(?:.*\n)*?")
        else:
            patterns.append(".*".join(map(re.escape, line.split("…"))) + r"\n")
    return "".join(patterns)
