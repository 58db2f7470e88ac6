"""The commands of ``sluicemq``, their common options, and their exit codes.

0: done. 1: the broker refused, or you did. 2: usage. 3: no broker answers. 4: it does, but its MongoDB does
not. 5: it does not let this client in.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from difflib import get_close_matches
from functools import wraps
from importlib import import_module
from typing import Any, Final

import click

from sluicemq.cli import completion
from sluicemq.cli.former import WORDS, former
from sluicemq.cli.options import timespan
from sluicemq.cli.output import Invocation
from sluicemq.cli.reached import reached
from sluicemq.protocol.errors import (
    BadHeadersError,
    NotAdmittedError,
    SluiceError,
    TimeoutError,
    UnavailableError,
)
from sluicemq.protocol.names import QUEUE_NAME_RULE
from sluicemq.protocol.readable import brief, is_utf8
from sluicemq.transport.endpoints import DEFAULT_ENDPOINT, VARIABLE, checked
from sluicemq.transport.profiles import VARIABLE as PROFILE_VARIABLE
from sluicemq.transport.sources import VARIABLES

REFUSED, USAGE = 1, 2


#: The module of each command: only that of the called one is loaded.
_HOMES = {
    command: module
    for module, commands in {
        "serve": ["serve", "device", "config"],
        "push": ["push"],
        "work": ["work", "pop"],
        "results": ["call"],
        "queues": ["queues", "stats", "ping"],
        "history": ["history", "incidents"],
        "top": ["top"],
        "workers": ["workers", "kinds", "events"],
        "jobs": ["jobs"],
        "find": ["find"],
        "dead_letters": ["dead-letters"],
        "schedules": ["schedules"],
        "streams": ["streams", "subscriptions"],
        "operations": ["operations"],
        "bench": ["bench"],
        "completion": ["completion"],
        "keys": ["key"],
        "principals": ["principals"],
        "brokers": ["brokers"],
        "audit": ["audit"],
        "doctor": ["doctor"],
        "backup": ["backup", "restore"],
    }.items()
    for command in commands
}
#: Columns of ``--help`` that stand beside the sentence of a command.
_BESIDE: Final = 18
#: The commands by what they are for, in the order of ``--help``.
SECTIONS: Final = {
    "Jobs": ["push", "call", "work", "pop", "jobs", "find", "dead-letters"],
    "Queues, streams and schedules": ["queues", "streams", "subscriptions", "schedules", "operations"],
    "Watching": ["top", "stats", "workers", "kinds", "events", "history", "incidents", "ping", "doctor"],
    "Keys and principals": ["key", "principals", "audit"],
    "The broker": ["serve", "device", "config", "brokers", "backup", "restore", "bench", "completion"],
}
#: Arguments that are sent, or run, as bytes without a check.
_MAY_BE_BYTES = ("payload", "payloads", "topic", "topics", "command")
#: Commands that need no broker.
_ALONE = ("serve", "device", "config", "bench", "completion", "key", "backup", "restore")


class _Commands(click.Group):
    """Finds the commands, and turns the library's errors into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return sorted(_HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _HOMES and cmd_name not in self.commands:
            command = getattr(import_module(f"sluicemq.cli.{_HOMES[cmd_name]}"), cmd_name.replace("-", "_"))
            self.add_command(command if cmd_name in _ALONE else _with_broker_options(command), cmd_name)
        if cmd_name in WORDS and cmd_name not in self.commands:
            self.add_command(former(cmd_name, lambda noun: self.get_command(ctx, noun)))
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by what they are for."""
        for section, names in SECTIONS.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(section):
                formatter.write_dl(
                    [
                        (name, command.get_short_help_str(formatter.width - _BESIDE))
                        for name, command in found
                        if command
                    ]
                )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command as click does; after a typing error, suggest the most similar one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], _HOMES, 1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (NotAdmittedError, TimeoutError, UnavailableError) as error:
            code, known = reached(ctx.obj, error)
            ctx.obj.error(error, known)
            ctx.exit(code)
        except SluiceError as error:
            ctx.obj.error(error)
            is_value = isinstance(error, BadHeadersError) or QUEUE_NAME_RULE in str(error)
            ctx.exit(USAGE if is_value else REFUSED)


class _Endpoint(click.ParamType[str]):
    """The endpoint of a broker, or several with commas between them."""

    name = "endpoint"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            checked(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


_ENDPOINT_HELP = (
    f"The SMQ/1 door of the broker; commas between those of several.  [{VARIABLE}, or {DEFAULT_ENDPOINT}]"
)
_TIMEOUT_HELP = "Seconds to wait for an answer."
_JSON_HELP = "Print the result as one JSON object."
_seconds = timespan(above=True)


#: Options of the connection, beside the endpoint: names, placeholder and help.
_ACCESS: Final = {
    "--key-file": ("FILE", f"This client's key pair, of `sluicemq key new`.  [{VARIABLES['key_file']}]"),
    "--server-key": ("KEY", f"The broker's public key.  [{VARIABLES['server_key']}]"),
    "--user": (
        "NAME",
        f"A user, whose password is asked for.  [{VARIABLES['user']}, {VARIABLES['password_file']}]",
    ),
    "--profile": ("NAME", f"A profile of ~/.config/sluicemq/config.toml.  [{PROFILE_VARIABLE}]"),
}


def _access_options(**more: Any) -> list[click.Option]:
    return [click.Option([flag], metavar=name, help=text, **more) for flag, (name, text) in _ACCESS.items()]


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--endpoint", type=_Endpoint(), help=_ENDPOINT_HELP)
@click.option("--timeout", type=_seconds, metavar="S", default=5.0, show_default=True, help=_TIMEOUT_HELP)
@click.option("--json", "as_json", is_flag=True, help=_JSON_HELP)
@click.version_option(None, "-V", "--version", package_name="sluicemq", prog_name="sluicemq")
@click.pass_context
def app(
    ctx: click.Context, /, endpoint: str | None, timeout: float, *, as_json: bool, **access: str | None
) -> None:
    """SluiceMQ, a durable job broker: run it, push jobs, work on them, look at its queues.

    The options below may also follow the command.
    """
    # The command itself prints each error once; the library would log it again.
    logging.getLogger("sluicemq").addHandler(logging.NullHandler())
    ctx.obj = Invocation(endpoint, timeout, as_json, **access)


app.params[1:1] = _access_options()


def _set(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value not in (None, False):
        # for a shell that completes the line, and has no invocation yet
        ctx.meta.setdefault(completion.OPTIONS, {})[parameter.name] = value
        setattr(ctx.obj, "named" if parameter.name == "endpoint" else str(parameter.name), value)


def _with_broker_options(command: click.Command) -> click.Command:
    """Return a command that needs a broker, with the options of ``sluicemq`` after its name, too."""
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            _with_broker_options(subcommand)
        return command
    completion.completes_queues(command)
    command.callback = _reading(command, command.callback)
    passed_on: Any = {"callback": _set, "expose_value": False}
    command.params += [
        click.Option(["--endpoint"], type=_Endpoint(), help=_ENDPOINT_HELP, **passed_on),
        *_access_options(**passed_on),
        click.Option(["--timeout"], type=_seconds, metavar="S", help=_TIMEOUT_HELP, **passed_on),
        click.Option(["--json", "as_json"], is_flag=True, help=_JSON_HELP, **passed_on),
    ]
    return command


def _reading(command: click.Command, callback: Any) -> Any:
    """Run a command only with texts that are UTF-8; Python reads other bytes as surrogates."""

    @wraps(callback)
    def checking(*args: Any, **values: Any) -> Any:
        for parameter in command.params:
            given = values.get(str(parameter.name))
            if parameter.name not in _MAY_BE_BYTES and not all(map(is_utf8, _texts_of(given))):
                raise click.BadParameter(f"{brief(given)} is no UTF-8", param=parameter)
        return callback(*args, **values)

    return checking


def _texts_of(given: object) -> Iterator[str]:
    for value in given if isinstance(given, tuple) else (given,):
        if isinstance(value, str):
            yield value
