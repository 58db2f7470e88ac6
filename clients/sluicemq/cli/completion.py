"""Completion in a shell: commands and options by click, queues by a question to the broker."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from sluicemq.cli.output import CommandClient, Invocation
from sluicemq.protocol.errors import SluiceError
from sluicemq.transport.access import Access

#: Key of a context for the options of the connection that stand after the command.
OPTIONS = "sluicemq.options"

_SECONDS = 1.0  # that a key press may wait for a broker
_PROGRAM, _VARIABLE = "sluicemq", "_SLUICEMQ_COMPLETE"


class QueueName(click.ParamType[str]):
    """The name of a queue; a shell gets the names that exist."""

    name = "queue"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        """Accept any name: the broker checks it."""
        return str(value)

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - click's
        incomplete: str,
    ) -> list[CompletionItem]:
        """Return the queues that begin with the text; none if no broker answers at once."""
        try:
            with CommandClient(timeout=_SECONDS, wait=False, endpoint=_access(ctx)) as client:
                names = [str(row["name"]) for row in client.sent.queues.list()]
        except (SluiceError, ValueError):
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete) and name.isprintable()]


def completes_queues(command: click.Command) -> None:
    """Complete the names of queues for all parameters of this command that take one."""
    for parameter in command.params:
        if parameter.name in ("queue", "to"):
            parameter.type = QueueName()


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_obj
def completion(invocation: Invocation, shell: str) -> None:
    """Print a script that makes a SHELL complete commands, options and queues.

    bash: put `eval "$(sluicemq completion bash)"` into ~/.bashrc; zsh: `eval "$(sluicemq completion zsh)"`
    into ~/.zshrc; fish: `sluicemq completion fish > ~/.config/fish/completions/sluicemq.fish`.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"{shell} is not known here")
    invocation.line(kind(click.get_current_context().find_root().command, {}, _PROGRAM, _VARIABLE).source())


def _access(ctx: click.Context) -> Access:
    """Return the broker that the line names, by options after the command or before it."""
    given = {**ctx.find_root().params, **ctx.meta.get(OPTIONS, {})}
    options: Any = {name: given.get(name) for name in ("key_file", "server_key", "user", "profile")}
    return Access.chosen(given.get("endpoint"), options)
