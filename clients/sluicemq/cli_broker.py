"""Commands that the broker and its devices answer themselves, each started as a process of its own.

The library knows them only by the entry points of the group ``sluicemq.commands``, whose value is the
module to run, and whose distribution says with its extra ``broker`` what it needs.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import metadata
from typing import Any

import click

_GROUP, _SERVE, _DEVICE, _EXTRA = "sluicemq.commands", "serve", "device", "broker"
ABSENT = "the broker is not installed here: pip install 'sluicemq[broker]'"


class _PassedThrough(click.Command):
    """Takes all arguments as they stand, ``--help`` and ``--`` among them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["arguments"] = tuple(args)
        return []


@click.command(cls=_PassedThrough, add_help_option=False, short_help="Run the broker; see serve --help.")
def serve(arguments: tuple[str, ...]) -> None:
    """Run the broker in the foreground."""
    _become(_SERVE, ("--help",) if arguments == ("-h",) else arguments)


@click.command(cls=_PassedThrough, add_help_option=False, short_help="Run a device alone; see device --help.")
def device(arguments: tuple[str, ...]) -> None:
    """Relay messages in memory: a streamer, queue or forwarder without a broker."""
    _become(_DEVICE, arguments)


@click.group()
def config() -> None:
    """Look at the broker's configuration."""


@config.command()
@click.argument("file", required=False)
def check(file: str | None) -> None:
    """Check a configuration FILE, or what the defaults and the environment give."""
    _become(_SERVE, ("--check-config", *(["--config", file] if file else [])))


def _become(name: str, arguments: tuple[str, ...]) -> None:
    command = module_command(name)
    if command is None:
        raise click.ClickException(ABSENT)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [*command, *arguments])  # noqa: S606 - no shell wanted


def module_command(name: str = _SERVE) -> list[str] | None:
    """How to run ``serve`` or ``device``; None where that or what it needs is not installed.

    ``-P``: whatever lies in the current folder, a ``zmq.py`` or a ``gevent/``, is not what it imports.
    """
    for point in metadata.entry_points(group=_GROUP, name=name):
        if all(_is_installed(each) for each in _requirements(point)):
            return [sys.executable, "-P", "-m", point.value.removesuffix(".__main__")]
    return None


def _requirements(point: Any) -> list[str]:
    """Names of the distributions that only the extra asks for."""
    lines = (point.dist.requires or []) if point.dist else []
    extra = re.compile(rf"""^([\w.-]+).*extra\s*==\s*['"]{_EXTRA}['"]""")
    return [found[1] for line in lines if (found := extra.match(line))]


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True
