"""``sluicemq serve``, ``device`` and ``config``: this process becomes the broker, or a device."""

from __future__ import annotations

import os
import sys

import click

from sluicemq.installed import ABSENT, DEVICE, SERVE, module_command


class _PassedThrough(click.Command):
    """Takes all arguments as they stand, ``--help`` and ``--`` among them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["arguments"] = tuple(args)
        return []


@click.command(cls=_PassedThrough, add_help_option=False, short_help="Run the broker; see serve --help.")
def serve(arguments: tuple[str, ...]) -> None:
    """Run the broker in the foreground."""
    _become(SERVE, ("--help",) if arguments == ("-h",) else arguments)


@click.command(cls=_PassedThrough, add_help_option=False, short_help="Run a device alone; see device --help.")
def device(arguments: tuple[str, ...]) -> None:
    """Relay messages in memory: a streamer, queue or forwarder without a broker."""
    _become(DEVICE, arguments)


@click.group()
def config() -> None:
    """Look at the broker's configuration."""


@config.command()
@click.argument("file", required=False)
def check(file: str | None) -> None:
    """Check a configuration FILE, or what the defaults and the environment give."""
    _become(SERVE, ("--check-config", *(["--config", file] if file else [])))


def _become(name: str, arguments: tuple[str, ...]) -> None:
    command = module_command(name)
    if command is None:
        raise click.ClickException(ABSENT)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [*command, *arguments])  # noqa: S606 - no shell wanted
