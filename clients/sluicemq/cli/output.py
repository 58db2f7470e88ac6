"""The common part of the commands: the broker's endpoint, and how results are shown.

Results go to stdout, as text or with ``--json`` as one object. All other text goes to stderr. Control
characters are escaped, since a terminal may act on them: payloads, ids and reasons may come from anybody.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from sluicemq.client import Client
from sluicemq.installed import ABSENT, command_of
from sluicemq.protocol import wire
from sluicemq.protocol.errors import DuplicateError, SluiceError
from sluicemq.protocol.json_values import dumps
from sluicemq.protocol.permissions import EVERY, Action, Permissions
from sluicemq.protocol.readable import start_of
from sluicemq.standard_streams import is_utf8
from sluicemq.transport.access import Access
from sluicemq.transport.credentials import AccessOptions

if TYPE_CHECKING:  # commands load rich when they need it: without a table they start 40 ms earlier
    from rich.console import Console
    from rich.table import Table

_PREVIEW = 60  # characters of a payload, of headers or errors, in a table
_NAMES = ("id", "name", "queue")  # columns that users copy into commands: never shortened or wrapped


class CommandClient(Client):
    """The client of a command."""

    @property
    def sent(self) -> Any:
        """Return the namespaces whose answers are as the broker sent them, to be shown whole.

        They have fields of a newer broker, too.
        """
        return self._plain

    def act_on_principals(self, action: str, fields: Mapping[str, Any]) -> Any:
        """Carry out one action of the verb USERS, as the broker's own commands do in MongoDB."""
        repeat = action in wire.ONLY_LOOK
        return self._asker.ask(wire.USERS, action, dict(fields), repeat=repeat)


@dataclass
class Invocation:
    """One call of the command: its common options, and its output."""

    named: str | None
    timeout: float
    as_json: bool
    key_file: str | None = None
    server_key: str | None = None
    user: str | None = None
    profile: str | None = None

    @cached_property
    def out(self) -> Console:
        """Return the console of stdout."""
        return _console(stderr=False)

    @cached_property
    def err(self) -> Console:
        """Return the console of stderr."""
        return _console(stderr=True)

    @cached_property
    def access(self) -> Access:
        """Return the broker and how to get in; chosen late, since not every command has one."""
        options: AccessOptions = {
            "key_file": self.key_file,
            "server_key": self.server_key,
            "user": self.user,
            "profile": self.profile,
        }
        try:
            return Access.chosen(self.named, options, _ask if sys.stdin.isatty() else None)
        except ValueError as error:
            raise click.UsageError(str(error)) from None

    @property
    def endpoint(self) -> str:
        """Return the broker's endpoint."""
        return self.access.endpoint

    @cached_property
    def broker(self) -> CommandClient:
        """Return the client of this command, which ends with it."""
        return click.get_current_context().with_resource(self.client())

    def client(self, *, patient: bool = False) -> CommandClient:
        """Return a client of the broker; ``patient``: it waits for a broker that does not run yet."""
        return CommandClient(timeout=self.timeout, wait=patient, endpoint=self.access)

    def result(self, text: str, **values: Any) -> None:
        """Show one sentence, or with ``--json`` the values."""
        if self.as_json:
            self.json(values)
        elif text:
            self.line(printable(text))

    def json(self, value: Any) -> None:
        """Write one JSON value on one line of stdout, as ``json_values`` writes it."""
        text = dumps(value, ascii=not is_utf8(sys.stdout))
        self.line(_escaped(text, lambda character: json.dumps(character)[1:-1]))

    def answer(
        self, answer: Any, rows: Sequence[Mapping[str, Any]], none: str | Callable[[], str] = ""
    ) -> None:
        """Show rows as a table, or if there are none a sentence; with ``--json`` the whole answer."""
        if self.as_json:
            self.json(answer)
        elif rows:
            self.table("", rows)
        else:
            self.note(none if isinstance(none, str) else none())

    def none_seen(self, action: Action, things: str, none: str = "") -> Callable[[], str]:
        """Return a function that asks the broker why a list is empty, as :func:`none_seen` says it."""
        return lambda: none_seen(self.broker, action, things, none)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask on stderr whether to go on; ``yes``: it is answered already."""
        if not yes:
            click.confirm(question, abort=True, err=True)

    def line(self, text: str | bytes) -> None:
        """Write one line to stdout, also of bytes; raises ``Unwritable`` of ``standard_streams``."""
        click.echo(text)

    def write(self, data: bytes) -> None:
        """Write exactly these bytes to stdout; raises as :meth:`line` does."""
        click.echo(data, nl=False)

    def table(self, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show rows with any keys, in the order in which the keys first come."""
        self.out.print(self.tabled(title, rows), crop=False)

    def tabled(self, title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
        """Return the rows as a table."""
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        columns = list(dict.fromkeys(key for row in rows for key in row))
        title_text = Text(printable(title)) if title else None
        table = Table(title=title_text, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for column in columns:
            width = max(len(printable(column)), *(len(shown(column, row.get(column))) for row in rows))
            # Characters of a column that is not worth narrowing
            whole = column in _NAMES or width <= 12
            justify: Any = "right" if _is_number(rows, column) else "left"
            table.add_column(printable(column), justify=justify, no_wrap=whole, overflow="fold",
                             min_width=width if whole else None)  # fmt: skip
        for row in rows:
            table.add_row(*(Text(shown(column, row.get(column))) for column in columns))
        return table

    def note(self, text: str) -> None:
        """Write a line to stderr."""
        self.err.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def error(self, error: SluiceError, advice: str = "") -> None:
        """Write one line to stderr; with ``--json`` also an object to stdout."""
        self.note(f"sluicemq: {error}{'; ' if advice else ''}{advice}")
        if self.as_json:
            first = {"id": error.id} if isinstance(error, DuplicateError) else {}
            self.json({"error": {"code": error.code, "message": str(error), **first}})


def of_broker(name: str) -> Any:
    """Return the module of the broker that carries out a command."""
    with suppress(ImportError):
        if (module := command_of(name)) is not None:
            return module
    raise click.ClickException(ABSENT)


def _ask(user: str) -> str:
    return str(click.prompt(f"Password of {user}", hide_input=True, err=True))


def printable(text: str) -> str:
    """Return the text with control characters escaped, line ends too."""
    return _escaped(text, lambda character: character.encode("unicode_escape").decode())


def none_seen(client: Client, action: Action, things: str, none: str = "") -> str:
    """Return the sentence of an empty list: there are none, or the client may not see those that are there.

    ``none``: the sentence where it may see all; by default ``no things yet``.
    """
    permissions = client.permissions
    patterns = [EVERY] if permissions is None else permissions.get(str(action), [])
    if EVERY in patterns:
        return none or f"no {things} yet"
    if patterns:
        return f"no {things} that you may see: you may {action} those named {', '.join(patterns)}"
    has = str(Permissions.read(permissions or {}))
    return f"you may not see {things}: that takes the permission {action}, and you have {has}"


def fields(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return names and values as the rows of a table."""
    return [{"name": key, "value": value} for key, value in values.items()]


def shown(column: str, value: Any) -> str:
    """Return a value as a table shows it."""
    if column.endswith("_at") and isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC).isoformat(sep=" ", timespec="seconds")
    if value is None or value in ([], {}, b""):
        return "-"
    match value:
        case bool():
            return "yes" if value else "no"
        case bytes():
            return _short(start_of(value, _PREVIEW + 1))
        case dict() | list():
            return _short(_of_strings(value) or dumps(value))
    return f"{value:g}" if isinstance(value, float) else printable(str(value))


def _of_strings(value: object) -> str:
    """Return a list of strings as one text; empty: it is no such list."""
    return (
        ", ".join(value) if isinstance(value, list) and all(isinstance(part, str) for part in value) else ""
    )


def span(seconds: float) -> str:
    """Return a time as one number and its unit."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return "0 s"


def took(seconds: float) -> str:
    """Return a duration, short ones to the millisecond."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else span(seconds)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console  # noqa: PLC0415

    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=240)


def _is_number(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    values = [row.get(column) for row in rows]
    return not column.endswith("_at") and all(isinstance(value, int | float | None) for value in values)


def _short(text: str) -> str:
    line = printable(text[: _PREVIEW + 1])
    return line if len(line) <= _PREVIEW else line[: _PREVIEW - 1] + "…"


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else escape(c) for c in text)
