"""The commands of ``sluicemq``, the options they share, and their exit codes.

0: done. 1: the broker refused, or you did. 2: usage. 3: no broker answers.
"""

from __future__ import annotations

import logging
from typing import Any

import click

from sluicemq import cli_broker, cli_push, cli_queues, cli_work
from sluicemq.cli_output import Session
from sluicemq.client import DEFAULT_ENDPOINT
from sluicemq.errors import SluiceError, Timeout, Unavailable

REFUSED, NO_BROKER = 1, 3

_ADVICE = "start one with `sluicemq serve`, or name another with --endpoint"


class _Commands(click.Group):
    """Turns the library's errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (Timeout, Unavailable) as error:
            ctx.obj.error(error, _ADVICE)
            ctx.exit(NO_BROKER)
        except SluiceError as error:
            ctx.obj.error(error)
            ctx.exit(REFUSED)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--endpoint", envvar="SLUICEMQ_ENDPOINT", default=DEFAULT_ENDPOINT, show_default=True, show_envvar=True,
    help="Where the broker is: its SMQ/1 door.",
)  # fmt: skip
@click.option("--timeout", type=float, default=5.0, show_default=True, help="Seconds to wait for an answer.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.version_option(package_name="sluicemq")
@click.pass_context
def app(ctx: click.Context, endpoint: str, timeout: float, *, as_json: bool) -> None:
    """SluiceMQ, a durable job broker: run it, push jobs, work on them, look at its queues."""
    if not endpoint.startswith(("tcp://", "ipc://")):
        raise click.BadParameter("write tcp://HOST:PORT or ipc://PATH", param_hint="--endpoint")
    # What went wrong is told once, by the command itself, not also by the library on the way there.
    logging.getLogger("sluicemq").addHandler(logging.NullHandler())
    ctx.obj = Session(endpoint, timeout, as_json)


for _command in (
    cli_broker.serve,
    cli_push.push,
    cli_work.work,
    cli_queues.queues,
    cli_queues.stats,
    cli_queues.peek,
    cli_queues.purge,
    cli_queues.delete,
    cli_queues.cancel,
    cli_queues.ping,
    cli_broker.config,
):
    app.add_command(_command)
