"""Commands for single jobs: look at them, cancel, promote, change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import time
from typing import Any, Final

import click

from sluicemq.cli.nouns import Noun
from sluicemq.cli.options import flag, job_flags, of_change
from sluicemq.cli.output import CommandClient, Invocation, shown, span, took
from sluicemq.cli.results import result
from sluicemq.protocol.errors import SluiceError
from sluicemq.protocol.readable import start_of
from sluicemq.protocol.wire import ShownState

STATES = tuple(state.value for state in ShownState)  # click would show the names of an enum

_PREVIEW = 2_000  # characters of a payload, or a result, that are shown of one job
_FIRST = 256  # bytes of each that a table needs
_BODIES = ("payload", "result")

limit_option = click.option("--limit", type=click.IntRange(1, 1000), default=10, show_default=True)
newest_option = click.option("--newest", is_flag=True, help="The last jobs, the very last first.")
payload_option = click.option("--payload", is_flag=True, help="Also the payload; whole with --json.")


@click.group(cls=Noun)
def jobs() -> None:
    """Look at single jobs of a queue, and cancel, promote or change them."""


@jobs.command("list")
@click.argument("queue")
@click.option("--state", type=click.Choice(STATES), default=ShownState.READY.value, show_default=True)
@limit_option
@newest_option
@click.pass_obj
def list_(invocation: Invocation, queue: str, state: str, limit: int, *, newest: bool) -> None:
    """Show the next jobs of a QUEUE without taking them; with --json, whole and with all their fields."""
    list_jobs(invocation, queue, state, limit, newest=newest)


@jobs.command()
@click.argument("queue")
@click.argument("id")
@payload_option
@click.pass_obj
def show(invocation: Invocation, queue: str, id: str, *, payload: bool) -> None:  # noqa: A002 - the argument's name
    """Show one job of a QUEUE with all its fields and its history; the payload only with --payload."""
    job = invocation.broker.sent.jobs.get(queue, id)
    show_job(invocation, queue, job, payload=payload)


@jobs.command()
@click.argument("queue")
@click.argument("id")
@click.option("--running", is_flag=True, help="Also a job that a worker has: it is notified.")
@click.option("--children", is_flag=True, help="With the children for which it waits.")
@click.pass_obj
def cancel(
    invocation: Invocation,
    queue: str,
    id: str,  # noqa: A002
    *,
    running: bool,
    children: bool,
) -> None:
    """Remove one job of a QUEUE that no worker holds, or with --running one that runs."""
    invocation.broker.jobs.cancel(queue, id, running=running, children=children)
    invocation.result(f"cancelled {id}", queue=queue, id=id)


@jobs.command()
@click.argument("queue")
@click.argument("id", required=False)
@click.option("--limit", type=click.IntRange(1, 1000), default=10, show_default=True, metavar="N")
@click.pass_obj
def ended(invocation: Invocation, queue: str, id: str | None, limit: int) -> None:  # noqa: A002
    """Show how the latest jobs of a QUEUE ended, or the one with this ID, as the broker remembers."""
    found = invocation.broker.sent.jobs.ended(queue, id, limit)
    none = f"the broker remembers no end of {id or 'any job'} in {queue}"
    invocation.answer({"queue": queue, "ends": found}, [_end_row(end, time()) for end in found], none)


def _end_row(end: Mapping[str, Any], now: float) -> dict[str, Any]:
    seconds = end.get("seconds")
    return {
        "id": end["id"],
        "end": end["end"],
        "ago": span(now - end["at"]),
        "took": None if seconds is None else took(seconds),
        "attempt": end.get("attempt"),
        "worker": end.get("worker"),
        "kind": end.get("kind"),
        **({"to": end["to"]} if end.get("to") else {}),
    }


@jobs.command()
@click.argument("queue")
@click.argument("id")
@click.pass_obj
def promote(invocation: Invocation, queue: str, id: str) -> None:  # noqa: A002
    """Make a delayed job of a QUEUE due now."""
    invocation.broker.jobs.promote(queue, id)
    invocation.result(f"promoted {id}: it is due now", queue=queue, id=id)


@jobs.command()
@click.argument("queue")
@click.argument("id")
@job_flags(of_change(), delay="seconds from now before it may be delivered")
@click.pass_obj
def change(
    invocation: Invocation,
    /,
    queue: str,
    id: str,  # noqa: A002
    **options: Any,
) -> None:
    """Give a waiting job of a QUEUE another priority, another delay, or both."""
    if all(value is None for value in options.values()):
        raise click.UsageError(f"give one at least of {', '.join(map(flag, of_change()))}")
    invocation.broker.jobs.change(queue, id, **options)
    invocation.result(f"changed {id}", queue=queue, id=id)


def list_jobs(invocation: Invocation, queue: str, state: str, limit: int, *, newest: bool = False) -> None:
    """Show the first or last jobs of a state as a table, and say what other jobs there are."""
    client = invocation.broker
    found = client.sent.jobs.list(
        queue, state, limit, newest=newest, first=None if invocation.as_json else _FIRST
    )
    counts = _counts(client, queue)
    there = counts.get(state, 0)
    if invocation.as_json:
        invocation.json({"queue": queue, "state": state, "jobs": found, "more": there > len(found)})
    elif found:
        invocation.table("", in_short(found, state, time()))
        if there > len(found):
            why = "--limit shows more" if len(found) == limit else "more are too large to be shown at once"
            invocation.note(f"{len(found)} of {there}: {why}")
    else:
        invocation.note(f"no {state} jobs in {queue}{_others(client, queue, counts)}")


def _counts(client: CommandClient, queue: str) -> Mapping[str, int]:
    """Return the number of jobs of each state; empty if they can't be counted."""
    try:
        found = client.sent.queues.get(queue)
    except SluiceError:
        return {}
    return {state: found[state] for state in STATES if found.get(state)}


def _others(client: CommandClient, queue: str, counts: Mapping[str, int]) -> str:
    """Say which other jobs a queue has, and when the first of its delayed jobs is due."""
    parts = [f"{count} {state}" for state, count in counts.items()]
    if ShownState.SCHEDULED in counts and (
        first := client.sent.jobs.list(queue, ShownState.SCHEDULED, 1, first=0)
    ):
        at = parts.index(f"{counts[ShownState.SCHEDULED]} {ShownState.SCHEDULED}")
        due = first[0]["eligible_at"]
        parts[at] += f", the next due in {span(max(0.0, due - time()))} ({shown('due_at', due)})"
    return f"; {'; '.join(parts)}" if parts else ""


def show_job(invocation: Invocation, queue: str, job: Mapping[str, Any], *, payload: bool) -> None:
    """Show one job: its fields, its errors, and the beginning of its result and, if wanted, its payload."""
    if not payload:
        job = _without_payload(job)
    if invocation.as_json:
        invocation.json({"queue": queue, "job": job})
        return
    now, errors = time(), job.get("errors") or []
    invocation.table("", [{"field": key, "value": _value(key, job[key], now)} for key in _fields(job)])
    if errors:
        invocation.result(" ")
        invocation.table("errors", [_failure(error, _columns(errors)) for error in errors])
        _show_lines(invocation, errors)
    for name in _BODIES:
        if job.get(name):
            invocation.result(" ")
            invocation.result(_body(name, job[name]))


def _without_payload(job: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the payload by its size: it may be secret, or long."""
    size = {"payload_bytes": len(job["payload"])} if isinstance(job.get("payload"), bytes) else {}
    return {**{key: value for key, value in job.items() if key != "payload"}, **size}


def in_short(
    jobs: Sequence[Mapping[str, Any]], state: str, now: float, before: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the most important fields of a job, those of ``before`` first; empty columns are left out."""
    return without_empty(
        [{**{name: job.get(name) for name in before}, **_row(job, state, now)} for job in jobs]
    )


def without_empty(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without the columns that are empty in all of them."""
    filled = {column for row in rows for column, value in row.items() if value not in (None, "", {})}
    return [{column: value for column, value in row.items() if column in filled} for row in rows]


def _row(job: Mapping[str, Any], state: str, now: float) -> dict[str, Any]:
    errors = job.get("errors") or [{}]
    created, due, ended = job.get("created_at"), job.get("eligible_at"), job.get("ended_at")
    waits = due is not None and due > now and ended is None
    return {
        "id": job.get("id"),
        "state": job.get("state") if job.get("state") != state else None,
        "kind": job.get("kind"),
        "attempts": job.get("attempts"),
        "age": None if created is None else span(now - created),
        "ended": None if ended is None else f"{span(now - ended)} ago",
        "due": f"in {span(due - now)}" if due is not None and waits else None,
        "pushed by": job.get("pushed_by"),
        "headers": job.get("headers"),
        "payload": _beginning(job, "payload"),
        "result": _beginning(job, "result"),
        "last error": _first_line(errors[-1].get("reason")),
    }


def _beginning(job: Mapping[str, Any], name: str) -> Any:
    """Return the beginning of a payload or a result, or how long it is if it is too long to be read."""
    size = job.get(f"{name}_bytes")
    return f"{size} bytes: see show" if name not in job and size else job.get(name)


def _fields(job: Mapping[str, Any]) -> list[str]:
    first = [key for key in ("id", "state") if key in job]
    return [*first, *(key for key in job if key not in (*first, *_BODIES, "errors"))]


def _value(key: str, value: Any, now: float) -> Any:
    """Return a field of a job as text; a time also as a span from now."""
    if not key.endswith("_at") or not isinstance(value, int | float):
        return value
    ago = f"{span(now - value)} ago" if value <= now else f"in {span(value - now)}"
    return f"{shown(key, value)} ({ago})"


def _failure(error: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Return a failed attempt as a line of a table; what ``worker`` and ``reason`` say is not repeated."""
    row = {key: shown("_at", error[key]) if key == "at" else error.get(key) or None for key in columns}
    row["reason"] = _first_line(error.get("reason"))
    if "began_at" in row:
        began = row.pop("began_at")
        row["took"] = took(error["at"] - began) if began and error.get("at") else None
    return row


def _first_line(reason: Any) -> Any:
    """Return the first line of a reason, which may be a traceback, for a table."""
    if not isinstance(reason, str):
        return reason or None
    first, _, more = reason.strip().partition("\n")
    return f"{first} …" if more else first


def _show_lines(invocation: Invocation, errors: Sequence[Mapping[str, Any]]) -> None:
    """Show the latest traceback, or reason of several lines, line by line."""
    for latest in reversed(errors):
        reason = str(latest.get("reason") or "")
        text = latest.get("traceback") or (reason if "\n" in reason.strip() else "")
        if text:
            invocation.result(" ")
            what = "traceback" if latest.get("traceback") else "error"
            invocation.result(f"{what} of attempt {latest.get('attempt')}:")
            for line in str(text).splitlines():
                invocation.result(line)
            return


#: What the worker's name and the reason say already, and what takes many lines.
_NOT_IN_TABLE: Final = ("host", "pid", "type", "traceback")


def _columns(errors: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns of a history: the known ones first, then those of a newer broker."""
    known = ["at", "attempt", "worker", "reason"]
    others = dict.fromkeys(key for error in errors for key in error if key not in (*known, *_NOT_IN_TABLE))
    return [*known, *others]


def _body(name: str, body: Any) -> str:
    text = start_of(body, _PREVIEW + 1) if isinstance(body, bytes) else str(body)
    more = f" … ({len(body)} bytes; --json shows all)" if len(text) > _PREVIEW else ""
    return f"{name}: {text[:_PREVIEW]}{more}"


jobs.add_command(result)
