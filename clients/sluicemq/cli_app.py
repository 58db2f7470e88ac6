"""The commands of ``sluicemq``, the options they share, and their exit codes.

0: done. 1: the broker refused, or you did. 2: usage. 3: no broker answers.
"""

from __future__ import annotations

import errno
import logging
from typing import Any

import click

from sluicemq import cli_bench, cli_broker, cli_ended, cli_jobs, cli_push, cli_queues, cli_results, cli_work
from sluicemq.cli_output import Session, Unwritable
from sluicemq.client import DEFAULT_ENDPOINT
from sluicemq.connection import NOBODY_ANSWERS
from sluicemq.errors import SluiceError, Timeout, Unavailable

REFUSED, NO_BROKER = 1, 3

_ADVICE = "start one with `sluicemq serve`, or name another with --endpoint"


class _Commands(click.Group):
    """Turns the library's errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (Timeout, Unavailable) as error:
            ctx.obj.error(error, _ADVICE if NOBODY_ANSWERS in str(error) else "")
            ctx.exit(NO_BROKER)
        except SluiceError as error:
            ctx.obj.error(error)
            ctx.exit(REFUSED)
        except Unwritable as error:
            if not _reader_has_gone(error):
                ctx.obj.note(f"sluicemq: {error}")
            ctx.exit(REFUSED)


class _Endpoint(click.ParamType[str]):
    """Where a broker is."""

    name = "endpoint"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value.startswith(("tcp://", "ipc://")):
            self.fail("write tcp://HOST:PORT or ipc://PATH", param, ctx)
        return str(value)


_ENDPOINT_HELP = "Where the broker is: its SMQ/1 door."
_TIMEOUT_HELP = "Seconds to wait for an answer."
_JSON_HELP = "Print the result as one JSON object."
_seconds = click.FloatRange(min=0, min_open=True)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--endpoint", type=_Endpoint(), envvar="SLUICEMQ_BROKER", default=DEFAULT_ENDPOINT, show_default=True,
    show_envvar=True, help=_ENDPOINT_HELP,
)  # fmt: skip
@click.option("--timeout", type=_seconds, metavar="S", default=5.0, show_default=True, help=_TIMEOUT_HELP)
@click.option("--json", "as_json", is_flag=True, help=_JSON_HELP)
@click.version_option(package_name="sluicemq")
@click.pass_context
def app(ctx: click.Context, endpoint: str, timeout: float, *, as_json: bool) -> None:
    """SluiceMQ, a durable job broker: run it, push jobs, work on them, look at its queues.

    The options below may also follow the command.
    """
    # What went wrong is told once, by the command itself, not also by the library on the way there.
    logging.getLogger("sluicemq").addHandler(logging.NullHandler())
    ctx.obj = Session(endpoint, timeout, as_json)


def _set(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value not in (None, False):
        setattr(ctx.obj, str(parameter.name), value)


def _asking(command: click.Command) -> click.Command:
    """A command that asks a broker: it takes the options of ``sluicemq`` too, after its name."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            _asking(each)
        return command
    passed_on: Any = {"callback": _set, "expose_value": False}
    command.params += [
        click.Option(["--endpoint"], type=_Endpoint(), help=_ENDPOINT_HELP, **passed_on),
        click.Option(["--timeout"], type=_seconds, metavar="S", help=_TIMEOUT_HELP, **passed_on),
        click.Option(["--json", "as_json"], is_flag=True, help=_JSON_HELP, **passed_on),
    ]
    return command


def _reader_has_gone(error: Unwritable) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EPIPE


for _command in (
    cli_broker.serve,
    cli_broker.device,
    _asking(cli_push.push),
    _asking(cli_work.work),
    _asking(cli_work.pop),
    _asking(cli_results.call),
    _asking(cli_results.result),
    _asking(cli_queues.queues),
    _asking(cli_queues.stats),
    _asking(cli_queues.purge),
    _asking(cli_queues.delete),
    _asking(cli_queues.pause),
    _asking(cli_queues.resume),
    _asking(cli_jobs.peek),
    _asking(cli_jobs.show),
    _asking(cli_jobs.cancel),
    _asking(cli_jobs.promote),
    _asking(cli_jobs.change),
    _asking(cli_ended.dead),
    _asking(cli_ended.done),
    _asking(cli_queues.ping),
    cli_broker.config,
    cli_bench.bench,
):
    app.add_command(_command)
