"""``sluicemq history`` and ``incidents``: what was counted, minute by minute, and what was unusual."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from sluicemq.cli.nouns import Noun, note_former
from sluicemq.cli.options import Ago, together
from sluicemq.cli.output import Invocation, span, took
from sluicemq.installed import to_install
from sluicemq.protocol.permissions import Action

#: Columns of a line and their headings; other counters are in JSON only.
_JOBS = {
    count: count for count in ("pushed", "delivered", "committed", "rolled_back", "dead", "expired", "ready")
}
COLUMNS = {
    "queue": _JOBS,
    "broker": _JOBS,
    "kind": _JOBS,
    "stream": {
        "published": "published",
        "published_bytes": "bytes",
        "published_again": "again",
        "messages_read": "read",
        "read_bytes": "bytes read",
        "messages_gone": "gone",
    },
    "device": {count: count for count in ("received", "sent", "lost")},
}
#: Sums of milliseconds that are shown as an average: the sum, and the counter to divide by.
_TIMES = {
    "queue": {"waited": "delivered", "worked": "committed"},
    "broker": {"waited": "delivered", "worked": "committed"},
    "kind": {"waited": "delivered", "worked": "delivered"},
    "device": {"paused": ""},
}
#: What is drawn: each row is a chart.
_JOB_CHARTS = (("pushed", "committed", "rolled_back", "dead"), ("ready",))
CHARTS = {
    "queue": _JOB_CHARTS,
    "broker": _JOB_CHARTS,
    "kind": _JOB_CHARTS,
    "stream": (("published", "messages_read"),),
    "device": (("received", "sent", "lost"),),
}
#: Spans of time up to now, in seconds, for which brokers return incidents.
_RECENT = {"hour": 3600.0, "day": 86_400.0, "month": 30 * 86_400.0}
#: Minutes that are shown without --on.
_SHOWN = 60
_FORMS = {"minute": "%H:%M", "hour": "%m-%d %H:00", "day": "%Y-%m-%d", "month": "%Y-%m"}


#: Options of a history: by which span of time, up to when, and how it is shown.
_when = together(
    click.option("--hour", "by", flag_value="hour", help="By hour, of 30 days."),
    click.option("--day", "by", flag_value="day", help="By day, of a year."),
    click.option("--month", "by", flag_value="month", help="By month."),
    click.option("--on", metavar="DAY", help="Up to this day, as 2026-01-31; by minute: that day.  [today]"),
    click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw it: an SVG or a PNG."),
)


@click.group(cls=Noun, default="queue")
def history() -> None:
    """Show what all brokers have counted: by minute, of the last hour. Times are UTC."""


@click.group(cls=Noun, default="list")
def incidents() -> None:
    """Show what happened to queues and brokers that is out of the ordinary."""


@history.command("queue")
@click.argument("queue", required=False)
@click.option("--stream", hidden=True)
@click.option("--device", hidden=True)
@click.option("--broker", hidden=True)
@_when
@click.pass_obj
def of_queue(
    invocation: Invocation, /, by: str | None, on: str | None, plot: Path | None, **subject: str | None
) -> None:
    """Show the history of a QUEUE."""
    named = {kind: name for kind, name in subject.items() if name is not None}
    if len(named) != 1:
        raise click.UsageError("give a QUEUE; or write history stream, device or broker")
    ((kind, name),) = named.items()
    if kind != "queue":
        note_former(click.get_current_context(), f"sluicemq history --{kind}", f"sluicemq history {kind}")
    _show(invocation, kind, (name,), by, on, plot)


@history.command("kind")
@click.argument("queue")
@click.argument("kind")
@_when
@click.pass_obj
def of_kind(
    invocation: Invocation, queue: str, kind: str, by: str | None, on: str | None, plot: Path | None
) -> None:
    """Show the history of the jobs of a KIND in a QUEUE."""
    _show(invocation, "kind", (queue, kind), by, on, plot)


@history.command("stream")
@click.argument("stream")
@_when
@click.pass_obj
def of_stream(invocation: Invocation, stream: str, by: str | None, on: str | None, plot: Path | None) -> None:
    """Show the history of a STREAM."""
    _show(invocation, "stream", (stream,), by, on, plot)


@history.command("device")
@click.argument("device", metavar="KIND.NAME")
@_when
@click.pass_obj
def of_device(invocation: Invocation, device: str, by: str | None, on: str | None, plot: Path | None) -> None:
    """Show the history of the devices of a kind and a queue or stream, as in streamer.mail."""
    _show(invocation, "device", (device,), by, on, plot)


@history.command("broker")
@click.argument("host", default="*")
@_when
@click.pass_obj
def of_broker(invocation: Invocation, host: str, by: str | None, on: str | None, plot: Path | None) -> None:
    """Show the history of the brokers on a HOST; without one, of all brokers together."""
    _show(invocation, "broker", (host,), by, on, plot)


@incidents.command("list")
@click.option("--queue", metavar="QUEUE", help="Of this queue, and of brokers.")
@click.option("--since", type=Ago(), metavar="T", default="24h", show_default=True,
              help="That went on then, or began later: 2h, or a time. 30 days at most.")  # fmt: skip
@click.option("--limit", type=click.IntRange(1, 100), metavar="N", default=100, show_default=True,
              help="At most N, the latest.")  # fmt: skip
@click.pass_obj
def list_incidents(invocation: Invocation, queue: str | None, since: float, limit: int) -> None:
    """Show incidents of all brokers, the latest first."""
    recent = next((name for name, seconds in _RECENT.items() if since <= seconds), None)
    if recent is None:
        raise click.UsageError("--since: 30 days at most")
    found = invocation.broker.sent.incidents.list(queue, span=recent)
    begin = found["until"] - since
    rows = [row for row in found["incidents"] if row["until"] >= begin][:limit]
    answer = {**found, "since": begin, "incidents": rows}
    none = invocation.none_seen(Action.READ, "incidents", f"no incidents in {span(since)}")
    invocation.answer(answer, [_incident_row(row) for row in rows], none)


def _incident_row(incident: dict[str, Any]) -> dict[str, Any]:
    figures = incident["figures"].items()
    return {
        "began_at": incident["at"],
        "lasted": span(incident["until"] - incident["at"]),
        "incident": incident["kind"],
        "queue": incident["queue"] or None,
        "brokers": ", ".join(incident["brokers"]),
        "figures": ", ".join(f"{name} {value}" for name, value in figures) or None,
    }


def _show(
    invocation: Invocation,
    kind: str,
    name: tuple[str, ...],
    by: str | None,
    on: str | None,
    plot: Path | None,
) -> None:
    answer = getattr(invocation.broker.sent.history, kind)(*name, span=by or "minute", day=on)
    points = answer["points"]
    if plot:
        _draw(answer, plot)
    if invocation.as_json:
        invocation.json(answer)
    elif not points:
        invocation.note(f"nothing was counted in {':'.join(name)}")
    elif plot is None:
        last_hour = by is None and on is None
        shown = points[-_SHOWN:] if last_hour else points
        invocation.table("", [line(point, answer["span"], answer["subject"]) for point in shown])


def line(point: dict[str, Any], by: str, kind: str) -> dict[str, Any]:
    """Return one row of the table, by its headings."""
    counted, when = point["counted"], datetime.fromtimestamp(point["at"], UTC)
    figures = {heading: counted.get(name, 0) for name, heading in COLUMNS[kind].items()}
    times = {total: _time(counted, total, of) for total, of in _TIMES.get(kind, {}).items()}
    return {by: when.strftime(_FORMS[by]), **figures, **times}


def _time(counted: dict[str, int], total: str, of: str) -> str | None:
    """Return a sum of milliseconds as an average, or whole."""
    divisor = counted.get(of, 0) if of else 1
    return took(counted[total] / 1000 / divisor) if divisor and counted.get(total) else None


def _draw(answer: dict[str, Any], file: Path) -> None:
    try:
        import matplotlib as mpl  # noqa: PLC0415 - optional, and slow to load
    except ImportError:
        raise click.ClickException(f"--plot needs matplotlib: {to_install('plot')}") from None
    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    when = [datetime.fromtimestamp(point["at"], UTC) for point in answer["points"]]
    kind = answer["subject"]
    charts = CHARTS[kind]
    figure, rows = plt.subplots(
        len(charts), 1, figsize=(10, 5), sharex=True, squeeze=False, layout="constrained"
    )
    figure.suptitle(f"{kind} {answer['name']}, by {answer['span']} (UTC)")
    for (axes,), names in zip(rows, charts, strict=True):
        for name in names:
            label = f"{name}, at most" if name == "ready" else name
            axes.plot(when, [point["counted"].get(name, 0) for point in answer["points"]], label=label)
        axes.set(ylim=(0, None), ylabel="jobs" if charts is _JOB_CHARTS else "messages")
        axes.legend(loc="upper left", frameon=False)
    try:
        figure.savefig(file, dpi=130)
    except (OSError, ValueError) as error:  # a missing folder, or a file type that it can't draw
        raise click.ClickException(f"can't draw {file}: {error}") from None
    plt.close(figure)
