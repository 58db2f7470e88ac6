"""``sluicemq top``: a broker and its queues, or one queue, live in a terminal."""

from __future__ import annotations

import os
import re
import select
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any, Final

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sluicemq.cli.options import timespan
from sluicemq.cli.output import CommandClient, Invocation, printable, shown, span
from sluicemq.cli.queue_table import KEYS, in_order, queue_rows
from sluicemq.cli.reached import counted, last_counts, store_problem
from sluicemq.cli.workers import one_of, worker_row
from sluicemq.protocol.errors import BadVerbError, ForbiddenError, TimeoutError, UnavailableError
from sluicemq.protocol.wire import ShownState

try:
    import termios
    import tty
except ImportError:  # without terminals as on Unix, there are no keys
    termios = tty = None  # type: ignore[assignment]

#: Lines that are no rows of the table.
_AROUND: Final = 6
#: Kinds that fail, and errors, that are shown; looks between two questions for those of all queues.
_CAUSES: Final = 4
_PATIENCE: Final = 5
#: Characters of a name that are kept, at least.
_LEAST: Final = 8
_HELP: Final = "q ends, s sorts, up and down choose, Enter looks into a queue, Esc leaves it"
_KEYS: Final = {
    b"\x1b[A": "up", b"k": "up", b"\x1b[B": "down", b"j": "down", b"\r": "into", b"\n": "into",
    b"\x1b": "out", b"\x7f": "out", b"s": "sort", b"q": "end", b"\x03": "end",
}  # fmt: skip


_ONE_KEY: Final = re.compile(rb"\x1b\[[0-9;]*.|.", re.DOTALL)


@click.command()
@click.argument("named", metavar="[QUEUE]", required=False)
@click.option("--sort", "by", type=click.Choice(list(KEYS)), metavar="COLUMN", default="ready",
              help=f"One of {', '.join(KEYS)}.", show_default=True)  # fmt: skip
@click.option("--queue", metavar="QUEUE", help="Another way to give QUEUE.")
@click.option("--interval", type=timespan(0.2), metavar="S", default=2.0, show_default=True,
              help="Seconds between two questions to the broker.")  # fmt: skip
@click.option("--once", is_flag=True, help="Print it once.")
@click.pass_obj
def top(
    invocation: Invocation, named: str | None, by: str, queue: str | None, interval: float, *, once: bool
) -> None:
    """Watch the broker and its queues, or one QUEUE with its workers and latest dead letters.

    Below stand the kinds of jobs that fail, and the errors of the latest dead letters.

    Keys: q ends, s sorts by the next column, up and down choose a queue, Enter looks into it, Esc leaves it.
    """
    view = _View(invocation.broker, by, one_of(named, queue))
    view.refresh()
    if invocation.as_json:
        invocation.json(view.found)
    elif once or not invocation.out.is_terminal:
        invocation.out.print(view.render(10_000, invocation.out.width, keys=False), crop=False)
    else:
        _watch(invocation, view, interval)


def _watch(invocation: Invocation, view: _View, interval: float) -> None:
    out = invocation.out
    with _keys() as keys, Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            live.update(view.render(out.height - _AROUND, out.width), refresh=True)
            end = monotonic() + interval
            while (left := end - monotonic()) > 0 and not view.stale:
                pressed = keys(left)
                if "end" in pressed:
                    return
                for key in pressed:
                    view.press(key)
                if pressed:
                    live.update(view.render(out.height - _AROUND, out.width), refresh=True)
            view.refresh()


class _View:
    """The view: all queues, or one, and their order."""

    def __init__(self, client: CommandClient, by: str, queue: str | None) -> None:
        self._client = client
        self._by = by
        self._queue = queue
        self._at = 0
        self.found: dict[str, Any] = {}
        self._causes: dict[str, Any] = {}
        self._looks = 0
        self.stale = False
        """True if the broker must be asked before anything more is shown."""

    def refresh(self) -> None:
        """Ask the broker."""
        self.stale = False
        about = self._about()
        try:
            rows = counted(self._client, self._queue)
            dead = self._latest_dead()
            self._fetch_causes()
        except (TimeoutError, UnavailableError) as error:  # the head says what is wrong with the store
            rows, _problem = last_counts(self._client, error)
            about, dead = self._about(), self.found.get("dead", [])
        if self._queue is None:
            self.found = {"broker": about, "sort": self._by, "queues": in_order(rows, self._by)}
            self.found |= self._causes
            self._at = max(0, min(self._at, len(rows) - 1))
        else:
            self.found = {
                "broker": about,
                "queue": next(row for row in rows if row["name"] == self._queue),
                "workers": self._client.sent.workers.list(self._queue),
                "dead": dead,
                **self._causes,
            }

    def _fetch_causes(self) -> None:
        """Ask which kinds of jobs fail, and of which errors the latest dead letters died.

        Of all queues that is much to look at, so it is asked now and then.
        """
        self._looks += 1
        if self._queue is None and self._looks % _PATIENCE != 1:
            return
        try:
            kinds = [kind for kind in self._client.sent.kinds.list(self._queue) if _fails(kind)]
            errors = self._client.sent.dead_letters.by_error(self._queue)["errors"]
        except (BadVerbError, ForbiddenError):  # a broker of an older version; a stranger
            kinds, errors = [], []
        worst = sorted(kinds, key=lambda kind: (kind["rates"]["rolled_back"], kind["dead"]), reverse=True)
        self._causes = {"kinds": worst[:_CAUSES], "errors": errors[:_CAUSES]}

    def _about(self) -> dict[str, Any]:
        """Return what stands above the queues; nothing for who may not operate the broker."""
        try:
            return dict(self._client.sent.counters()["broker"])
        except ForbiddenError:
            return {}

    def _latest_dead(self) -> list[dict[str, Any]]:
        """Return the latest dead letters of the queue."""
        if self._queue is None:
            return []
        found = self._client.sent.jobs.list(self._queue, ShownState.DEAD, 5, newest=True, first=0)
        return [_dead_row(letter) for letter in found]

    def press(self, key: str) -> None:
        """Act on a key."""
        queues = self.found.get("queues", [])
        if key in ("up", "down"):
            self._at = max(0, min(self._at + (1 if key == "down" else -1), len(queues) - 1))
            return
        self.stale = True
        self._looks = 0
        if key == "sort":
            names = list(KEYS)
            self._by = names[(names.index(self._by) + 1) % len(names)]
        elif key == "into" and queues:
            self._queue = queues[self._at]["name"]
        elif key == "out":
            self._queue = None

    def render(self, rows: int, width: int, *, keys: bool = True) -> Group:
        """Return the view for a terminal of this width, with ``lines`` lines of the table at most."""
        about = self.found["broker"]
        parts = [head(about)] if about else []
        if "queues" in self.found:
            causes = self._causes_shown(width)
            rows = max(1, rows - sum(3 + len(cause) for cause in self._causes.values() if cause))
            first = max(0, self._at - rows + 1)
            queues = self.found["queues"][first : first + rows]
            chosen = self._at - first if keys else -1
            parts += [
                _sums(self.found["queues"], self._by),
                _table(queue_rows(queues), width, chosen),
                *causes,
            ]
        else:
            parts += [_table(queue_rows([self.found["queue"]]), width), Text(), Text("workers", "bold")]
            parts += [_table([worker_row(row) for row in self.found["workers"][:rows]], width)]
            parts += [
                Text(),
                Text("dead letters, the latest first", "bold"),
                _table(self.found["dead"], width),
                *self._causes_shown(width),
            ]
        return Group(
            *parts, Text(), *([Text(_HELP, "dim", no_wrap=True, overflow="ellipsis")] if keys else [])
        )

    def _causes_shown(self, width: int) -> list[Any]:
        tables = {
            "kinds that fail": [_kind_row(kind) for kind in self.found.get("kinds", ())],
            "errors of the latest dead letters": [_error_row(row) for row in self.found.get("errors", ())],
        }
        return [
            part
            for title, rows in tables.items()
            if rows
            for part in (Text(), Text(title, "bold"), _table(rows, width))
        ]


def _fails(kind: Mapping[str, Any]) -> bool:
    return bool(kind["rates"]["rolled_back"] or kind["dead"])


def _kind_row(kind: Mapping[str, Any]) -> dict[str, Any]:
    rates = {"in/s": kind["rates"]["pushed"], "failing/s": kind["rates"]["rolled_back"]}
    names = {"kind": kind["kind"], "queue": kind["queue"]}
    return {**names, **{name: round(rate, 1) for name, rate in rates.items()}, "dead": kind["dead"]}


def _error_row(error: Mapping[str, Any]) -> dict[str, Any]:
    named = error["type"] or error["reason"]
    return {
        "error": named,
        "at": error["place"] or None,
        "queues": ", ".join(error["queues"]),
        "count": error["count"],
    }


def head(about: Mapping[str, Any]) -> Any:
    """Return the line above the queues: the broker and the state of its store."""
    problem = store_problem(about.get("store"))
    state = Text(f"store: {printable(problem)}", "bold red") if problem else Text("store: ok", "green")
    text = f"SluiceMQ {about['version']}  pid {about['pid']}  up {span(about['uptime'])}  "
    return Text(f"{text}connections {about['connections']}  brokers {about['brokers']}  ") + state


def _sums(queues: list[Mapping[str, Any]], by: str) -> Text:
    rates = [sum(KEYS[column](row) for row in queues) for column in ("in", "out", "ready")]
    text = "{} queues, by {}: in {:.1f}/s  out {:.1f}/s  ready {}"
    return Text(text.format(len(queues), by, *rates), "bold")


def _table(rows: list[dict[str, Any]], width: int, chosen: int = -1) -> Any:
    """Return a table of one line each; a narrow terminal cuts the first column, and no number."""
    if not rows:
        return Text("none", "dim")
    widths = {key: max(len(key), *(len(shown(key, row.get(key))) for row in rows)) for key in rows[0]}
    name, *others = widths
    left = max(_LEAST, width - sum(widths[name] + 1 for name in others) - 1)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in widths:
        number = all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(column, justify="right" if number else "left", no_wrap=True, overflow="ellipsis",
                         max_width=left if column == name else None)  # fmt: skip
    for at, row in enumerate(rows):
        style = "reverse" if at == chosen else ""
        table.add_row(*(Text(shown(key, value)) for key, value in row.items()), style=style)
    return table


def _dead_row(job: Mapping[str, Any]) -> dict[str, Any]:
    errors = job.get("errors") or [{}]
    return {"id": job["id"], "ended_at": job.get("ended_at"), "reason": errors[-1].get("reason")}


@contextmanager
def _keys() -> Iterator[Any]:
    """Return a function that waits for keys up to some seconds, and returns their meanings."""
    source = sys.stdin.fileno()
    if termios is None or not os.isatty(source):
        yield _no_keys
        return
    before = termios.tcgetattr(source)
    tty.setcbreak(source)
    try:
        yield lambda seconds: _pressed(source, seconds)
    finally:
        termios.tcsetattr(source, termios.TCSADRAIN, before)


def _no_keys(seconds: float) -> list[str]:
    sleep(seconds)
    return []


def _pressed(source: int, seconds: float) -> list[str]:
    ready, _, _ = select.select([source], [], [], seconds)
    pressed = _ONE_KEY.findall(os.read(source, 64)) if ready else []
    return [_KEYS[key] for key in pressed if key in _KEYS]
