"""stdin, stdout and stderr of a command: errors are named, and harm nothing else.

``sluicemq work mail --print >&-``: the shell has closed stdout. The next socket would get its number, and the
payloads would go to the broker. So each number is taken first, by a file that can't be read or written::

    stdin   can't be read      raises Unreadable    also if it is a folder, or a disk fails
    stdout  can't be written   raises Unwritable    also on a full disk, or after its reader has gone
    stderr  can't be written   is dropped, silently
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

#: How a character is shown that stdout's encoding lacks, if not by its number.
_PLAIN: Final = str.maketrans(
    {"…": "...", "→": "->", "–": "-", "—": "-", "━": "-", "─": "-", "╸": "-", "╺": "-", "·": "."}  # noqa: RUF001
    | dict.fromkeys("█▇▆▅▄▃▂▁▏▎▍▌▋▊▉", "#")
)
_ESCAPED: Final = "sluicemq.escaped"


class Unusable(Exception):
    """A standard stream can't be used; the text says which one, and why."""

    def say(self) -> None:
        """Write the problem to stderr, unless nobody reads a pipe any more, as after ``| head``."""
        if not isinstance(self.__cause__, BrokenPipeError):
            sys.stderr.write(f"sluicemq: {self}\n")
            sys.stderr.flush()


class Unwritable(Unusable):
    """Stdout can't be written: its reader has gone, the disk is full, or it is closed."""


class Unreadable(Unusable):
    """Stdin can't be read."""


@contextmanager
def guarded() -> Iterator[None]:
    """Run a whole program with standard streams that fail as above; it ends with exit code 1 then.

    Characters that stdout's encoding lacks are escaped.
    """
    _replace()
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except Unusable as error:
        error.say()
        sys.exit(1)


def require_writable() -> None:
    """Raise :class:`Unwritable` if stdout is closed or nobody reads it; a full disk shows itself later."""
    try:
        os.write(1, b"")
        poll = select.poll()
        poll.register(1, 0)
        if any(seen & select.POLLERR for _number, seen in poll.poll(0)):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    except OSError as error:
        raise _unwritable(error) from error


def is_utf8(stream: Any) -> bool:
    """Return whether every character can be written to this text stream."""
    return codecs.lookup(getattr(stream, "encoding", None) or "utf-8").name == "utf-8"


def _replace() -> None:
    _take_closed_numbers()
    codecs.register_error(_ESCAPED, _escape)
    sys.stdin = _text(io.BufferedReader(_Stdin(0, "r", closefd=False)), sys.stdin, "surrogateescape")
    sys.stdout = _text(io.BufferedWriter(_Stdout(1, "w", closefd=False)), sys.stdout, _ESCAPED)
    sys.stderr = _text(io.BufferedWriter(_Stderr(2, "w", closefd=False)), sys.stderr, _ESCAPED, line=True)


def _take_closed_numbers() -> None:
    """Open a file at each closed number: reading stdin or writing stdout then fails with EBADF."""
    for number, way in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, way), True)  # noqa: FBT003


class _Stdin(io.FileIO):
    def readinto(self, buffer: Any, /) -> int | None:
        try:
            return super().readinto(buffer)
        except OSError as error:
            raise Unreadable(f"can't read stdin: {error.strerror}") from error

    def readall(self) -> bytes:
        try:
            return super().readall() or b""
        except OSError as error:
            raise Unreadable(f"can't read stdin: {error.strerror}") from error


class _Stdout(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            # Drop what is still in the buffer, or Python's own flush at the end would fail once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise _unwritable(error) from error


def _unwritable(error: OSError) -> Unwritable:
    return Unwritable(f"can't write to stdout: {error.strerror}")


class _Stderr(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _text(
    buffer: io.BufferedReader | io.BufferedWriter, before: Any, errors: str, *, line: bool = False
) -> io.TextIOWrapper:
    """Return a text stream over these bytes, otherwise like Python's own before it; None: that was closed."""
    return io.TextIOWrapper(
        buffer,
        encoding=getattr(before, "encoding", None) or "utf-8",
        errors=errors,
        line_buffering=line or getattr(before, "line_buffering", False),
        write_through=getattr(before, "write_through", False),
    )


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return text.encode("ascii", "backslashreplace").decode(), error.end
