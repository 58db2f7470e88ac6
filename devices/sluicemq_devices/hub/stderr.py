"""A stderr that never blocks the hub: a thread writes; lines that nobody reads are dropped and counted."""

from __future__ import annotations

import _thread
import atexit
import io
import logging
import os
import select
import sys
from queue import SimpleQueue
from typing import Any, Final, TextIO, cast

from gevent import monkey

_MOST_BYTES: Final = 1 << 20  # waiting to be written
#: Characters of one message in the log, before any is escaped; and of a traceback.
LONGEST_LINE: Final = 2000
LONGEST_TRACEBACK: Final = 10_000
_AT_THE_END = 1.0  # seconds that the end of the process waits for the last lines

# Threads of the system: gevent's would need its hub in the thread that writes.
_start_thread = monkey.get_original("_thread", "start_new_thread")
_lock = monkey.get_original("_thread", "allocate_lock")
_queue: type[SimpleQueue[bytes | _thread.LockType]] = monkey.get_original("queue", "SimpleQueue")
_poll = monkey.get_original("select", "poll")


def unblock_stderr() -> None:
    """Let a thread write all that this process sends to ``sys.stderr``, logs too."""
    if not isinstance(sys.stderr, Unblocking):
        stream = Unblocking(2)
        atexit.register(stream.drain, _AT_THE_END)
        sys.stderr = cast("TextIO", stream)


class Unblocking(io.TextIOBase):
    """A text stream to a file whose reader may be slow, or not read at all.

    ``most_bytes``: bytes that may wait to be written; further lines are dropped and counted.
    """

    def __init__(self, file: int, *, most_bytes: int = _MOST_BYTES) -> None:
        self._file = file
        self._most_bytes = most_bytes
        self._pieces = _queue()
        self._taken = 0  # bytes that were ever given to the thread
        self._written = 0  # bytes that it is done with; only the thread changes it
        self._lost = 0
        _start_thread(self._write_all, ())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the written bytes."""
        return "utf-8"

    def fileno(self) -> int:
        """Return the number of the file itself."""
        return self._file

    def isatty(self) -> bool:
        """Return True for a terminal."""
        return os.isatty(self._file)

    def writable(self) -> bool:
        """Return True: the stream is always writable."""
        return True

    def write(self, text: str) -> int:
        """Hand the text to the thread; it is dropped, and counted, when too much waits."""
        if self._taken - self._written >= self._most_bytes:
            self._lost += 1
            return len(text)
        self._put(self._loss() + text)
        return len(text)

    def drain(self, seconds: float) -> bool:
        """Block the process for up to ``seconds`` until all is written; return True if it was."""
        self._put(self._loss())
        done = _lock()
        done.acquire()
        self._pieces.put(done)
        return bool(done.acquire(timeout=seconds))

    def _loss(self) -> str:
        """Return a line that counts what was dropped since the last written one, or ""."""
        lost, self._lost = self._lost, 0
        return f"({lost} lines were lost here: nobody read them)\n" if lost else ""

    def _put(self, text: str) -> None:
        data = text.encode(errors="backslashreplace")
        self._taken += len(data)
        self._pieces.put(data)

    def _write_all(self) -> None:
        while True:
            piece = self._pieces.get()
            if isinstance(piece, bytes):
                _write(self._file, piece)
                self._written += len(piece)
            else:
                piece.release()


def _write(file: int, data: bytes) -> None:
    """Write all of ``data``, however long that takes; give up if the file takes nothing any more."""
    while data:
        try:
            data = data[os.write(file, data) :]
        except BlockingIOError:  # a process that shares the file has made it non-blocking
            ready = _poll()
            ready.register(file, select.POLLOUT)
            ready.poll()
        except OSError:
            return


class OneLine(logging.Formatter):
    """One line of bounded length for each message: strangers can neither forge lines nor flood the log."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Shorten the message, and escape what can't be printed."""
        record.message = shortened(record.message)
        if not record.message.isprintable():
            record.message = record.message.encode("unicode_escape").decode()
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Shorten the text of an error, which may quote what a stranger has sent."""
        return shortened(super().formatException(ei), LONGEST_TRACEBACK)


def shortened(text: str, most: int = LONGEST_LINE) -> str:
    """Return the text, or its beginning and end with the number of characters left out between."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} ... ({len(text) - 2 * half} characters more) ... {text[-half:]}"
