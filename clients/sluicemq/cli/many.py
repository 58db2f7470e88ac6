"""Many jobs pushed by one command, with progress, and with a report at the end or after Ctrl-C."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import click

from sluicemq.cli.output import Invocation
from sluicemq.producer import Producer
from sluicemq.protocol.errors import SluiceError, TimeoutError
from sluicemq.receipt import PushReceipt

if TYPE_CHECKING:
    from rich.console import Console

_REFUSALS_SHOWN = 10
#: The state of a dead letter.
DEAD = "dead"
#: Seconds that a push waits for room, or for confirmations, before it looks for a signal.
_A_LOOK = 0.2
_LONGEST_WAIT = 60.0  # seconds for the last confirmations


class Piece(NamedTuple):
    """One job to push, and its share of the whole."""

    payload: bytes
    share: int


class Lines:
    """Lines of stdin from number ``start`` on; their share is their bytes."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.total = _bytes_left()

    def __iter__(self) -> Iterator[Piece]:
        for number, line in enumerate(sys.stdin.buffer, 1):
            if number >= self.start:
                yield Piece(line.removesuffix(b"\n").removesuffix(b"\r"), len(line))
            elif self.total is not None:
                self.total -= len(line)

    def place(self, position: int) -> str:
        """Return the line of the job at a position."""
        return f"line {position + 1}"


class Files:
    """Files, from number ``start`` on; ``-`` is stdin."""

    def __init__(self, files: tuple[Path, ...], start: int) -> None:
        self.start = start
        self._files = files
        self.total: int | None = max(0, len(files) - start + 1)

    def __iter__(self) -> Iterator[Piece]:
        for file in self._files[self.start - 1 :]:
            yield Piece(sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes(), 1)

    def place(self, position: int) -> str:
        """Return the file of the job at a position."""
        return f"file {self._files[position]}"


def existing(receipt: PushReceipt) -> str:
    """Return the sentence about a push whose id a job had before."""
    state = f", and is {receipt.state}" if receipt.state else ""
    text = f"job {receipt.id} existed in {receipt.queue}{state}: none was pushed"
    hint = f"; see it, or run it again: sluicemq dead-letters redrive {receipt.queue} {receipt.id}"
    return text + hint if receipt.state == DEAD else text


class ManyPushes:
    """Pushes each piece of a source, and reports the outcome."""

    def __init__(
        self, invocation: Invocation, queue: str, options: dict[str, Any], source: Lines | Files
    ) -> None:
        self._invocation = invocation
        self._queue = queue
        self._options = options
        self._source = source
        self._next = source.start - 1  # position of the first piece that is not pushed yet
        self._refused: set[int] = set()
        self._unanswered: deque[PushReceipt] = deque()
        self._existed: Counter[str] = Counter()  # by their states
        self._ids: list[str] = []
        self._stop = _Stop()
        self._over = False

    def run(self) -> None:
        """Push all, or what there is time for until Ctrl-C; exits with 1 if not all is stored."""
        producer = Producer(push_timeout=_A_LOOK, on_refused=self._note, endpoint=self._invocation.access)
        try:
            with self._stop.caught():
                self._push_all(producer)
                self._confirm(producer)
            self._report()
        except SluiceError:
            self._invocation.note(self._summary())
            raise
        finally:
            self._over = True  # refusals while closing were reported as not confirmed
            with suppress(SluiceError):
                producer.close(0.0)

    def _push_all(self, producer: Producer) -> None:
        with _Bar(self._invocation.err, self._source) as bar:
            for piece in self._stop.until_signal(self._source):
                while not self._pushed(producer, piece.payload):
                    if self._stop.came:
                        return
                bar.add(piece.share)

    def _pushed(self, producer: Producer, payload: bytes) -> bool:
        """Return whether a job was pushed; no wait for room, so that Ctrl-C finds no job in between."""
        try:
            receipts = producer.push_many(self._queue, [payload], start=self._next, **self._options)
        except TimeoutError:
            return False
        self._next += 1
        self._unanswered.extend(receipts)
        self._forget_answered()
        if self._invocation.as_json:
            self._ids.append(receipts[0].id)
        return True

    def _forget_answered(self) -> None:
        while self._unanswered and self._unanswered[0].done:
            receipt = self._unanswered.popleft()
            if receipt.existed:
                self._existed[receipt.state or ""] += 1
                if receipt.state == DEAD and self._existed[DEAD] <= _REFUSALS_SHOWN:
                    place = self._source.place(receipt.position or 0)
                    self._invocation.note(f"{place}: {existing(receipt)}")

    def _confirm(self, producer: Producer) -> None:
        """Wait for confirmations; after Ctrl-C up to ``--timeout``, after another one not at all."""
        if not self._stop.came:
            self._wait_for_the_rest(producer, _LONGEST_WAIT)
        if self._stop.came and producer.unconfirmed:
            self._stop.wait_for_another()
            self._invocation.note(
                f"stopping: waiting for {producer.unconfirmed} confirmations; Ctrl-C: do not"
            )
            self._wait_for_the_rest(producer, self._invocation.timeout)

    def _wait_for_the_rest(self, producer: Producer, seconds: float) -> None:
        """Wait in short steps, and look for Ctrl-C in between: inside a wait it may leave a lock behind."""
        end = monotonic() + seconds
        while not self._stop.unheeded:
            left = max(0.0, end - monotonic())
            try:
                producer.flush(min(_A_LOOK, left))
            except TimeoutError:
                if left > _A_LOOK:
                    continue
                if self._stop.came:
                    return
                raise TimeoutError(
                    f"{producer.unconfirmed} jobs are not confirmed after {seconds:g} s"
                ) from None
            return

    def _note(self, receipt: PushReceipt, error: SluiceError) -> None:
        if self._over:
            return
        self._refused.add(receipt.position or 0)
        if len(self._refused) <= _REFUSALS_SHOWN:
            self._invocation.note(f"sluicemq: {self._source.place(receipt.position or 0)} refused: {error}")

    # ------------------------------------------------------------------ the end

    def _unknown(self) -> list[int]:
        """Return the positions of the jobs that are neither confirmed nor refused."""
        return [receipt.position or 0 for receipt in self._unanswered if not receipt.done]

    def _stored(self) -> int:
        known = len(self._refused) + len(self._unknown()) + self._existed.total()
        return self._next - self._source.start + 1 - known

    def _summary(self) -> str:
        self._forget_answered()
        unknown = self._unknown()
        text = f"{self._stored()} jobs pushed to {self._queue}, {len(self._refused)} refused"
        if unknown:
            text += f", {len(unknown)} not confirmed: they may be stored nevertheless"
        if existed := self._existed.total():
            text += f", {existed} existed" + (
                f" ({dead} of them dead)" if (dead := self._existed[DEAD]) else ""
            )
        if self._stop.came or unknown:
            text += f"; go on with --start {self._resume()}"
        return text

    def _resume(self) -> int:
        """Return the number of the first piece that has to be pushed, or pushed again."""
        return min([self._next, *self._unknown()]) + 1

    def _report(self) -> None:
        self._invocation.note(self._summary())
        unknown = self._unknown()
        missing = self._refused.union(unknown)
        ids = [None if at in missing else id_ for at, id_ in enumerate(self._ids, self._source.start - 1)]
        figures = {"queue": self._queue, "pushed": self._stored(), "refused": len(self._refused), "ids": ids}
        if self._existed:
            figures |= {"existed": self._existed.total(), "dead": self._existed[DEAD]}
        if self._stop.came:
            figures |= {"unconfirmed": len(unknown), "start": self._resume()}
        self._invocation.result("", **figures)
        if self._refused or self._existed[DEAD] or self._stop.came:
            click.get_current_context().exit(1)


class _Stop:
    """Ctrl-C and SIGTERM: acted on at once while a source is read, otherwise after the current step."""

    def __init__(self) -> None:
        self.came = False
        self.unheeded = False
        """True if a signal came that nobody has looked at."""
        self._at_once = False

    @contextmanager
    def caught(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = [
            (number, signal.signal(number, self._on_signal)) for number in (signal.SIGINT, signal.SIGTERM)
        ]
        try:
            yield
        finally:
            for number, handler in before:
                signal.signal(number, handler)

    def until_signal(self, source: Lines | Files) -> Iterator[Piece]:
        """Return the pieces until the signal; a piece that is being read then is dropped."""
        pieces = iter(source)
        while not self.came:
            try:
                with self.at_once():
                    piece = next(pieces, None)
            except KeyboardInterrupt:
                return
            if piece is None:
                return
            yield piece

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal break off the block, as KeyboardInterrupt."""
        self._at_once = True
        try:
            if self.unheeded:  # it came just before
                raise KeyboardInterrupt
            yield
        finally:
            self._at_once = False

    def wait_for_another(self) -> None:
        """Go on after a signal: only another one breaks off what follows."""
        self.unheeded = False

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.came = self.unheeded = True
        if self._at_once:
            raise KeyboardInterrupt


class _Bar:
    """Number of jobs, rate, and share of the whole if that is known; on a terminal only."""

    def __init__(self, console: Console, source: Lines | Files) -> None:
        from sluicemq.cli import bars  # noqa: PLC0415 - slow to load, and one job has none

        self._source = source
        self._share = self._jobs = 0
        self._began = self._drawn = monotonic()
        self._progress = bars.rated(console, "pushing")
        self._task = self._progress.add_task("", total=source.total, jobs=0, rate=0.0)

    def add(self, share: int) -> None:
        """Count one more job."""
        self._share += share
        self._jobs += 1
        now = monotonic()
        # Seconds between two drawings
        if now - self._drawn >= 0.1:
            self._draw(now)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._draw(monotonic())
        self._progress.stop()

    def _draw(self, now: float) -> None:
        self._drawn = now
        rate = self._jobs / max(now - self._began, 0.001)
        self._progress.update(
            self._task, completed=self._share, total=self._source.total, jobs=self._jobs, rate=rate
        )


def _bytes_left() -> int | None:
    """Return the bytes left of a file as stdin; None for a pipe."""
    try:
        file = sys.stdin.fileno()
        status = os.fstat(file)
        return status.st_size - os.lseek(file, 0, os.SEEK_CUR) if stat.S_ISREG(status.st_mode) else None
    except (OSError, ValueError):  # a stdin of tests, which is no file
        return None
