"""Commands that the broker itself answers, started as a process of its own.

The library knows the broker only by the entry point ``serve`` of the group ``sluicemq.commands``,
whose value is the module to run, and whose distribution says with its extra ``broker`` what it needs.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import metadata
from typing import Any

import click

_GROUP, _NAME, _EXTRA = "sluicemq.commands", "serve", "broker"
ABSENT = "the broker is not installed here: pip install 'sluicemq[broker]'"


class _PassedThrough(click.Command):
    """Takes all arguments as they stand, ``--help`` and ``--`` among them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["arguments"] = tuple(args)
        return []


@click.command(cls=_PassedThrough, add_help_option=False, short_help="Run the broker; see serve --help.")
def serve(arguments: tuple[str, ...]) -> None:
    """Run the broker in the foreground."""
    _become(("--help",) if arguments == ("-h",) else arguments)


@click.group()
def config() -> None:
    """Look at the broker's configuration."""


@config.command()
@click.argument("file", required=False)
def check(file: str | None) -> None:
    """Check a configuration FILE, or what the defaults and the environment give."""
    _become(("--check-config", *(["--config", file] if file else [])))


def _become(arguments: tuple[str, ...]) -> None:
    module = broker_module()
    if module is None:
        raise click.ClickException(ABSENT)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 - no shell wanted


def broker_module() -> str | None:
    """The module that runs the broker; None where that or what it needs is not installed."""
    for point in metadata.entry_points(group=_GROUP, name=_NAME):
        if all(_is_installed(name) for name in _requirements(point)):
            return point.value.removesuffix(".__main__")
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
