"""``sluicemq history``: what a queue, stream, device or broker has counted, minute by minute."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from sluicemq.cli.output import Invocation, took
from sluicemq.installed import to_install

#: Columns of a line and their headings; other counters are in JSON only.
_JOBS = {
    each: each for each in ("pushed", "delivered", "committed", "rolled_back", "dead", "expired", "ready")
}
COLUMNS = {
    "queue": _JOBS,
    "broker": _JOBS,
    "stream": {
        "published": "published",
        "published_bytes": "bytes",
        "published_again": "again",
        "messages_read": "read",
        "read_bytes": "bytes read",
        "messages_gone": "gone",
    },
    "device": {each: each for each in ("received", "sent", "lost")},
}
#: Sums of milliseconds that are shown as an average: the sum, and the counter to divide by.
_TIMES = {
    "queue": {"waited": "delivered", "worked": "committed"},
    "broker": {"waited": "delivered", "worked": "committed"},
    "device": {"paused": ""},
}
#: What is drawn: each row is a chart.
_JOB_CHARTS = (("pushed", "committed", "rolled_back", "dead"), ("ready",))
CHARTS = {
    "queue": _JOB_CHARTS,
    "broker": _JOB_CHARTS,
    "stream": (("published", "messages_read"),),
    "device": (("received", "sent", "lost"),),
}
#: Minutes that are shown without --on.
_SHOWN = 60
_FORMS = {"minute": "%H:%M", "hour": "%m-%d %H:00", "day": "%Y-%m-%d", "month": "%Y-%m"}


@click.command()
@click.argument("queue", required=False)
@click.option("--stream", help="Of a stream.")
@click.option("--device", metavar="KIND.NAME", help="Of the devices of a kind and queue or stream: streamer.mail.")  # noqa: E501 # fmt: skip
@click.option("--broker", metavar="HOST", help="Of the brokers on a host; * is all together.")
@click.option("--hour", "by", flag_value="hour", help="By hour, of 30 days.")
@click.option("--day", "by", flag_value="day", help="By day, of a year.")
@click.option("--month", "by", flag_value="month", help="By month.")
@click.option("--on", metavar="DAY", help="Up to this day, as in 2026-01-31; by minute: that day.  [today]")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw it: an SVG or a PNG.")
@click.pass_obj
def history(
    invocation: Invocation, /, by: str | None, on: str | None, plot: Path | None, **subject: str | None
) -> None:
    """Show what all brokers have counted in a QUEUE: by minute, of the last hour. Times are UTC."""
    named = {kind: name for kind, name in subject.items() if name is not None}
    if len(named) != 1:
        raise click.UsageError("give one of QUEUE, --stream, --device and --broker")
    with invocation.client() as client:
        ((kind, name),) = named.items()
        answer = getattr(client.sent.history, kind)(name, span=by or "minute", day=on)
    points = answer["points"]
    if plot:
        _draw(answer, plot)
    if invocation.as_json:
        invocation.json(answer)
    elif not points:
        invocation.note(f"nothing was counted in {next(iter(named.values()))}")
    elif plot is None:
        last_hour = by is None and on is None
        kind, shown = answer["subject"], points[-_SHOWN:] if last_hour else points
        invocation.table("", [line(each, answer["span"], kind) for each in shown])


def line(point: dict[str, Any], by: str, kind: str) -> dict[str, Any]:
    """Return one row of the table, by its headings."""
    counted, when = point["counted"], datetime.fromtimestamp(point["at"], UTC)
    figures = {heading: counted.get(name, 0) for name, heading in COLUMNS[kind].items()}
    times = {total: _time(counted, total, of) for total, of in _TIMES.get(kind, {}).items()}
    return {by: when.strftime(_FORMS[by]), **figures, **times}


def _time(counted: dict[str, int], total: str, of: str) -> str | None:
    """Return a sum of milliseconds as an average, or whole."""
    each = counted.get(of, 0) if of else 1
    return took(counted[total] / 1000 / each) if each and counted.get(total) else None


def _draw(answer: dict[str, Any], file: Path) -> None:
    try:
        import matplotlib as mpl  # noqa: PLC0415 - optional, and slow to load
    except ImportError:
        raise click.ClickException(f"--plot needs matplotlib: {to_install('plot')}") from None
    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    when = [datetime.fromtimestamp(each["at"], UTC) for each in answer["points"]]
    kind = answer["subject"]
    charts = CHARTS[kind]
    figure, rows = plt.subplots(
        len(charts), 1, figsize=(10, 5), sharex=True, squeeze=False, layout="constrained"
    )
    figure.suptitle(f"{kind} {answer['name']}, by {answer['span']} (UTC)")
    for (axes,), names in zip(rows, charts, strict=True):
        for name in names:
            label = f"{name}, at most" if name == "ready" else name
            axes.plot(when, [each["counted"].get(name, 0) for each in answer["points"]], label=label)
        axes.set(ylim=(0, None), ylabel="jobs" if charts is _JOB_CHARTS else "messages")
        axes.legend(loc="upper left", frameon=False)
    try:
        figure.savefig(file, dpi=130)
    except (OSError, ValueError) as error:  # a missing folder, or a file type that it can't draw
        raise click.ClickException(f"can't draw {file}: {error}") from None
    plt.close(figure)
