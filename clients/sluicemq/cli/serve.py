"""``sluicemq serve``, ``device`` and ``config``: this process becomes the broker, or a device."""

from __future__ import annotations

import os
import sys

import click

from sluicemq.cli.output import Invocation
from sluicemq.installed import ABSENT, DEVICE, SERVE, module_command


class _PassedThrough(click.Command):
    """Passes all arguments on, ``--help`` and ``--`` among them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["arguments"] = tuple(args)
        return []


@click.command(cls=_PassedThrough, add_help_option=False, short_help="Run the broker; see serve --help.")
@click.pass_obj
def serve(invocation: Invocation, arguments: tuple[str, ...]) -> None:
    """Run the broker in the foreground."""
    _become(SERVE, ("--help",) if arguments == ("-h",) else _with_json(invocation, arguments))


@click.command(cls=_PassedThrough, add_help_option=False, short_help="Run a device alone; see device --help.")
@click.pass_obj
def device(invocation: Invocation, arguments: tuple[str, ...]) -> None:
    """Relay messages in memory: a streamer, queue or forwarder without a broker."""
    _become(DEVICE, _with_json(invocation, arguments))


@click.group()
def config() -> None:
    """Look at the broker's configuration."""


@config.command()
@click.argument("file", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.pass_obj
def check(invocation: Invocation, file: str | None, *, as_json: bool) -> None:
    """Check a configuration FILE, or defaults and environment; reports everything that is wrong."""
    words = ["--json"] if as_json or invocation.as_json else []
    _become(SERVE, ("--check-config", *words, *(["--config", file] if file else [])))


def _with_json(invocation: Invocation, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Pass on the option that stood before the command."""
    return ("--json", *arguments) if invocation.as_json else arguments


def _become(name: str, arguments: tuple[str, ...]) -> None:
    command = module_command(name)
    if command is None:
        raise click.ClickException(ABSENT)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [*command, *arguments])  # noqa: S606 - no shell wanted
