"""``sluicemq push``: one job from the command line, or many from files or the lines of stdin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from sluicemq.cli.many import DEAD, Files, Lines, ManyPushes, existing
from sluicemq.cli.options import flag, job_flags, of_push
from sluicemq.cli.output import Invocation
from sluicemq.cli.reached import leave
from sluicemq.producer import Producer
from sluicemq.protocol.errors import TimeoutError
from sluicemq.standard_streams import Unwritable

_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


@click.command()
@click.argument("queue")
@click.argument("payloads", metavar="[PAYLOAD]", nargs=-1)
@click.option("--file", "files", multiple=True, metavar="F", type=_FILE, help="A job per file, any number of them; - is stdin, as one job.")  # noqa: E501 # fmt: skip
@click.option("--lines", is_flag=True, help="A job per line of stdin.")
@click.option(
    "--start", type=click.IntRange(1), default=1, metavar="N", help="Begin with the Nth line, or file."
)
@job_flags(of_push())
@click.option("--header", "headers", multiple=True, metavar="KEY=VALUE", help="Handed to the worker.")
@click.pass_obj
def push(
    invocation: Invocation, /, queue: str, payloads: tuple[str, ...], files: tuple[Path, ...], *, lines: bool,
    start: int, headers: tuple[str, ...], **options: Any,
) -> None:  # fmt: skip
    """Push PAYLOAD to a QUEUE, or stdin if it is -; or files, or the lines of stdin.

    Returns when all jobs are stored durably. Ctrl-C ends --lines and many files in order: it says how many
    are stored, and with which --start to go on.
    """
    payload, files = _sorted(() if lines and payloads == ("-",) else payloads, files)
    if (payload is not None) + bool(files) + lines != 1:
        raise click.UsageError("give one of PAYLOAD, --file and --lines (which reads stdin)")
    single = payload is not None or len(files) == 1
    for option in of_push():
        if option.names_one and options[option.name] is not None and not single:
            raise click.UsageError(f"{flag(option)} names one job: push them one by one")
    if options["dedupe_window"] is not None and options["dedupe_id"] is None:
        raise click.UsageError("--dedupe-window needs a --dedupe-id")
    options["headers"] = _parsed(headers)
    if start != 1 and single:
        raise click.UsageError("--start is for --lines and several files")
    with invocation.client() as client:
        client.ping()
    if single:
        _push_one(invocation, queue, _payload(payload, files), options)
    else:
        ManyPushes(invocation, queue, options, Files(files, start) if files else Lines(start)).run()


def _push_one(invocation: Invocation, queue: str, payload: bytes, options: dict[str, Any]) -> None:
    with Producer(close_timeout=invocation.timeout, endpoint=invocation.access) as producer:
        receipt = producer.push(queue, payload, **options)
        try:
            receipt.wait(invocation.timeout)
        except TimeoutError:
            leave(producer)
            raise
    there = {"existed": 1, "state": receipt.state} if receipt.existed else {}
    if there:
        invocation.note(existing(receipt))
    try:
        new = 0 if there else 1
        invocation.result(receipt.id, queue=queue, id=receipt.id, pushed=new, refused=0, **there)
    except Unwritable as error:
        raise Unwritable(f"{error}; the job is stored, as {receipt.id}") from error.__cause__
    if receipt.state == DEAD:
        click.get_current_context().exit(1)


def _sorted(payloads: tuple[str, ...], files: tuple[Path, ...]) -> tuple[str | None, tuple[Path, ...]]:
    """Return the payload and the files: arguments after ``--file F`` are files too, and ``-`` is one."""
    if files or payloads == ("-",):
        return None, (*files, *(_FILE.convert(name, None, None) for name in payloads))
    if len(payloads) > 1:
        raise click.UsageError("one PAYLOAD at a time: quote it, or give many with --file or --lines")
    return (payloads[0] if payloads else None), ()


def _payload(payload: str | None, files: tuple[Path, ...]) -> bytes:
    if payload is not None:
        return payload.encode(errors="surrogateescape")  # the bytes of the command line
    return sys.stdin.buffer.read() if str(files[0]) == "-" else files[0].read_bytes()


def _parsed(headers: tuple[str, ...]) -> dict[str, str] | None:
    pairs = [header.partition("=") for header in headers]
    if wrong := next((key for key, equals, _value in pairs if not (key and equals)), None):
        raise click.BadParameter(f"{wrong!r}: write KEY=VALUE", param_hint="--header")
    return {key: value for key, _equals, value in pairs} or None
