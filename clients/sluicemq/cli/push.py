"""``sluicemq push``: one job from the command line, or many from files or the lines of stdin."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from sluicemq.cli.options import flag, job_flags, of_push
from sluicemq.cli.output import Session
from sluicemq.cli.reached import leave
from sluicemq.errors import SluiceError, Timeout
from sluicemq.producer import Producer
from sluicemq.receipt import Receipt

_REFUSALS_SHOWN = 10
_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


@click.command()
@click.argument("queue")
@click.argument("payloads", metavar="[PAYLOAD]", nargs=-1)
@click.option("--file", "files", multiple=True, metavar="F", type=_FILE, help="A job per file, any number of them; - is stdin, as one job.")  # noqa: E501 # fmt: skip
@click.option("--lines", is_flag=True, help="A job per line of stdin.")
@job_flags(of_push())
@click.option("--header", "headers", multiple=True, metavar="KEY=VALUE", help="Handed to the worker.")
@click.pass_obj
def push(
    session: Session, /, queue: str, payloads: tuple[str, ...], files: tuple[Path, ...], *, lines: bool,
    headers: tuple[str, ...], **options: Any,
) -> None:  # fmt: skip
    """Push PAYLOAD to a QUEUE, or stdin if it is -; or files, or the lines of stdin.

    Returns when they are stored for good.
    """
    payload, files = _sorted(payloads, files)
    if (payload is not None) + bool(files) + lines != 1:
        raise click.UsageError("give one of PAYLOAD, --file and --lines")
    single = payload is not None or len(files) == 1
    for each in of_push():
        if each.names_one and options[each.name] is not None and not single:
            raise click.UsageError(f"{flag(each)} names one job: push them one by one")
    if options["dedupe_window"] is not None and options["dedupe_id"] is None:
        raise click.UsageError("--dedupe-window is about a --dedupe-id: give that too")
    options["headers"] = _parsed(headers)
    with session.client() as client:
        client.ping()
    run = _Run(session, queue, options)
    if single:
        run.push_one(next(_payloads(payload, files)))
    else:
        run.push_many(_payloads(payload, files), files)


class _Run:
    """One call of the command."""

    def __init__(self, session: Session, queue: str, options: dict[str, Any]) -> None:
        self._session = session
        self._queue = queue
        self._options = options
        self._refused = 0
        self._files: tuple[Path, ...] = ()

    def push_one(self, payload: bytes) -> None:
        with Producer(self._session.endpoint, close_timeout=self._session.timeout) as producer:
            receipt = producer.push(self._queue, payload, **self._options)
            try:
                receipt.wait(self._session.timeout)
            except Timeout:
                leave(producer)
                raise
        self._session.result(receipt.id, queue=self._queue, id=receipt.id, pushed=1, refused=0)

    def push_many(self, payloads: Iterable[bytes], files: tuple[Path, ...]) -> None:
        """Push the lines of stdin, or the files if there are some; what is wrong in them is named."""
        self._files = files
        pushed = 0
        with Producer(self._session.endpoint, on_refused=self._note) as producer:
            for payload in self._with_progress(payloads, len(files) or None):
                producer.push_many(self._queue, [payload], start=pushed, **self._options)
                pushed += 1
        stored = pushed - self._refused
        self._session.note(f"{stored} jobs pushed to {self._queue}, {self._refused} refused")
        self._session.result("", queue=self._queue, pushed=stored, refused=self._refused)
        if self._refused:
            click.get_current_context().exit(1)

    def _note(self, receipt: Receipt, error: SluiceError) -> None:
        self._refused += 1
        if self._refused <= _REFUSALS_SHOWN:
            self._session.note(f"sluicemq: {self._place(receipt)} refused: {error}")

    def _place(self, receipt: Receipt) -> str:
        position = receipt.position or 0
        return f"file {self._files[position]}" if self._files else f"line {position + 1}"

    def _with_progress(self, payloads: Iterable[bytes], total: int | None) -> Iterator[bytes]:
        console = self._session.err
        shown = console.is_terminal
        with Progress(
            SpinnerColumn(), TextColumn("pushing"), BarColumn(), MofNCompleteColumn(),
            console=console, disable=not shown,
        ) as progress:  # fmt: skip
            yield from progress.track(payloads, total=total)


def _sorted(payloads: tuple[str, ...], files: tuple[Path, ...]) -> tuple[str | None, tuple[Path, ...]]:
    """The payload and the files: what follows after ``--file F`` are files too, and ``-`` is one."""
    if files or payloads == ("-",):
        return None, (*files, *(_FILE.convert(name, None, None) for name in payloads))
    if len(payloads) > 1:
        raise click.UsageError("one PAYLOAD at a time: quote it, or give many with --file or --lines")
    return (payloads[0] if payloads else None), ()


def _payloads(payload: str | None, files: tuple[Path, ...]) -> Iterator[bytes]:
    if payload is not None:
        yield payload.encode(errors="surrogateescape")  # the bytes as they stood on the command line
    for path in files:
        yield sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    if payload is None and not files:
        for line in sys.stdin.buffer:
            yield line.removesuffix(b"\n").removesuffix(b"\r")


def _parsed(headers: tuple[str, ...]) -> dict[str, str] | None:
    pairs = [header.partition("=") for header in headers]
    if wrong := next((key for key, equals, _value in pairs if not (key and equals)), None):
        raise click.BadParameter(f"{wrong!r}: write KEY=VALUE", param_hint="--header")
    return {key: value for key, _equals, value in pairs} or None
