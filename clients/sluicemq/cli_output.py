"""What the commands share: where the broker is, and how results are shown.

Results go to stdout, as text or with ``--json`` as one object; all else goes to stderr.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sluicemq.client import Client
from sluicemq.errors import SluiceError

_PREVIEW = 60  # characters of a payload, of headers or errors, in a table
_PIPED_WIDTH = 240


@dataclass(frozen=True)
class Session:
    """The options that stand before the command, and the ways out."""

    endpoint: str
    timeout: float
    as_json: bool
    out: Console = field(default_factory=lambda: _console(stderr=False))
    err: Console = field(default_factory=lambda: _console(stderr=True))

    def client(self) -> Client:
        """A client of the broker that ``--endpoint`` names."""
        return Client(self.endpoint, timeout=self.timeout)

    def result(self, text: str, **values: Any) -> None:
        """Show one sentence, or with ``--json`` the values."""
        if self.as_json:
            self.json(values)
        elif text:
            self.out.print(text, markup=False, highlight=False, soft_wrap=True)

    def json(self, value: Any) -> None:
        """One JSON value on one line of stdout; bytes as text, or ``{"base64": ...}``."""
        click.echo(json.dumps(value, default=_json_default, ensure_ascii=False))

    def table(self, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows of whatever keys they have, in the order in which those first come."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
        for column in columns:
            table.add_column(column, justify="right" if _is_number(rows, column) else "left")
        for row in rows:
            table.add_row(*(Text(_shown(column, row.get(column))) for column in columns))
        self.out.print(table)

    def note(self, text: str) -> None:
        """A line on stderr."""
        self.err.print(text, markup=False, highlight=False, soft_wrap=True)

    def error(self, error: SluiceError, advice: str = "") -> None:
        """One line on stderr; with ``--json`` also an object on stdout."""
        self.note(f"sluicemq: {error}{'; ' if advice else ''}{advice}")
        if self.as_json:
            self.json({"error": {"code": error.code, "message": str(error)}})


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=_PIPED_WIDTH)


def _is_number(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    values = [row.get(column) for row in rows]
    return not column.endswith("_at") and all(isinstance(value, int | float | None) for value in values)


def _shown(column: str, value: Any) -> str:
    if column.endswith("_at") and isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC).isoformat(sep=" ", timespec="seconds")
    match value:
        case None | [] | {}:
            return "-"
        case bool():
            return "yes" if value else "no"
        case bytes():
            return _short(value.decode(errors="backslashreplace"))
        case dict() | list():
            return _short(json.dumps(value, default=_json_default, ensure_ascii=False))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _short(text: str) -> str:
    line = text.replace("\n", "\\n")
    return line if len(line) <= _PREVIEW else line[: _PREVIEW - 1] + "…"


def _json_default(value: Any) -> Any:
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
