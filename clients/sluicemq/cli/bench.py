"""``sluicemq bench``: the command of the package ``sluicemq-bench``, or how to install that."""

from __future__ import annotations

import click

from sluicemq.installed import BENCH, bench_to_install, command_of


@click.command(
    BENCH,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
    short_help="Measure how fast a broker is; to be installed.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _absent(arguments: tuple[str, ...]) -> None:  # noqa: ARG001 - the stand-in takes any
    raise click.ClickException(f"the bench is not installed here: {bench_to_install()}")


bench: click.Command = command_of(BENCH) or _absent
