"""The command that tells what a queue has counted, minute by minute."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from sluicemq.cli.output import Session, span

#: What a line shows of what was counted; the rest is in JSON.
_COLUMNS = ("pushed", "delivered", "committed", "rolled_back", "dead", "expired", "ready")
#: Minutes that are shown where no day is named.
_SHOWN = 60
_FORMS = {"minute": "%H:%M", "hour": "%m-%d %H:00", "day": "%Y-%m-%d", "month": "%Y-%m"}


@click.command()
@click.argument("queue")
@click.option("--hour", "by", flag_value="hour", help="By hour, of 30 days.")
@click.option("--day", "by", flag_value="day", help="By day, of a year.")
@click.option("--month", "by", flag_value="month", help="By month.")
@click.option("--on", metavar="DAY", help="Up to this day, as in 2026-01-31; by minute: that day.  [today]")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw it: an SVG or a PNG.")
@click.pass_obj
def history(session: Session, queue: str, by: str | None, on: str | None, plot: Path | None) -> None:
    """Tell what all brokers have counted in a QUEUE: by minute, of the last hour. Times are UTC."""
    with session.client() as client:
        told = client.history(queue, span=by or "minute", day=on)
    points = told["points"]
    if plot:
        _draw(told, plot)
    if session.as_json:
        session.json(told)
    elif not points:
        session.note(f"nothing was counted in {queue}")
    elif plot is None:
        last_hour = by is None and on is None
        session.table("", [_line(each, told["span"]) for each in (points[-_SHOWN:] if last_hour else points)])


def _line(point: dict[str, Any], by: str) -> dict[str, Any]:
    counted, when = point["counted"], datetime.fromtimestamp(point["at"], UTC)
    waited, worked = (
        span(counted[total] / 1000 / counted[jobs]) if counted.get(jobs) and counted.get(total) else None
        for total, jobs in (("waited", "delivered"), ("worked", "committed"))
    )
    figures = {name: counted.get(name, 0) for name in _COLUMNS}
    return {by: when.strftime(_FORMS[by]), **figures, "waited": waited, "worked": worked}


def _draw(told: dict[str, Any], file: Path) -> None:
    try:
        import matplotlib as mpl  # noqa: PLC0415 - optional, and slow to load
    except ImportError:
        raise click.ClickException("--plot needs matplotlib: pip install 'sluicemq[bench]'") from None
    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    when = [datetime.fromtimestamp(each["at"], UTC) for each in told["points"]]
    figure, (jobs, backlog) = plt.subplots(2, 1, figsize=(10, 5), sharex=True, layout="constrained")
    figure.suptitle(f"queue {told['name']}, by {told['span']} (UTC)")
    for name in ("pushed", "committed", "rolled_back", "dead"):
        jobs.plot(when, [each["counted"].get(name, 0) for each in told["points"]], label=name)
    backlog.plot(when, [each["counted"].get("ready", 0) for each in told["points"]], label="ready, at most")
    for axes in (jobs, backlog):
        axes.set(ylim=(0, None), ylabel="jobs")
        axes.legend(loc="upper left", frameon=False)
    figure.savefig(file, dpi=130)
    plt.close(figure)
