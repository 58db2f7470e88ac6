"""``sluicemq queues settings``: settings of queues that all brokers share, over those of their files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from sluicemq.cli.output import Invocation

_name = click.argument("queue")
#: What a setting has that has no value.
_NO_VALUE = "none"


@click.command("set-settings")
@_name
@click.argument("settings", nargs=-1, required=True, metavar="KEY VALUE [KEY VALUE]...")
@click.pass_obj
def set_settings(invocation: Invocation, queue: str, settings: tuple[str, ...]) -> None:
    """Set KEY to VALUE for a QUEUE, at all brokers; VALUE none: no value.

    Settings are those of [queues.NAME] in the brokers' files. What is set here is in MongoDB, and counts
    before what a file says. QUEUE may be "*", in quotes: all queues.
    """
    if len(settings) % 2:
        raise click.UsageError(f"KEY {settings[-1]!r} has no VALUE")
    wanted = dict(zip(settings[::2], settings[1::2], strict=True))
    _changed(invocation, queue, invocation.broker.sent.queues.set_settings(queue, wanted))


@click.command("unset-settings")
@_name
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.pass_obj
def unset_settings(invocation: Invocation, queue: str, keys: tuple[str, ...]) -> None:
    """Take back what was set: the files say again what KEY is."""
    _changed(invocation, queue, invocation.broker.sent.queues.unset_settings(queue, keys))


@click.command()
@_name
@click.pass_obj
def settings(invocation: Invocation, queue: str) -> None:
    """Show each setting of a QUEUE, and where it has its value from; and where brokers differ."""
    told = invocation.broker.sent.queues.settings(queue)
    if invocation.as_json:
        invocation.json({"queue": queue, **told})
        return
    rows = [{name: _printable(name, value) for name, value in row.items()} for row in told["settings"]]
    invocation.table("", rows)
    if told["differs"]:
        invocation.result(" ")
        invocation.table("brokers differ", [_difference(setting) for setting in told["differs"]])


def add_to(group: click.Group) -> None:
    """Add these commands to the group of queues."""
    for command in (settings, set_settings, unset_settings):
        group.add_command(command)


def _changed(invocation: Invocation, queue: str, rows: Sequence[Mapping[str, Any]]) -> None:
    if invocation.as_json:
        invocation.json({"queue": queue, "settings": rows})
        return
    for row in rows:
        file = f"; the file says {_text(row['file'])}" if "file" in row else ""
        invocation.line(f"{queue}: {row['key']} = {_text(row['value'])} ({row['source']}{file})")


def _difference(differs: Mapping[str, Any]) -> dict[str, str]:
    return {
        "queue": differs["queue"],
        "key": differs["key"],
        **{broker: _text(value) for broker, value in differs["values"].items()},
    }


def _printable(name: str, value: Any) -> str:
    return _text(value) if name in ("value", "file") else str(value)


def _text(value: Any) -> str:
    """Return a value as ``set-settings`` takes it."""
    return _NO_VALUE if value is None else value if isinstance(value, str) else json.dumps(value)
