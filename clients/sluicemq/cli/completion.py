"""Completion in a shell: the commands and options by click, the queues by asking the broker."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from sluicemq.cli.output import Invocation
from sluicemq.client import Client
from sluicemq.protocol.errors import SluiceError

#: Where a context keeps the ``--endpoint`` that follows the command.
ENDPOINT = "sluicemq.endpoint"

_SECONDS = 1.0  # that a key press may wait for a broker
_PROGRAM, _VARIABLE = "sluicemq", "_SLUICEMQ_COMPLETE"


class QueueName(click.ParamType[str]):
    """A queue, as it was written; a shell is told those that there are."""

    name = "queue"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        """Any name: the broker says which there are."""
        return str(value)

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - click's
        incomplete: str,
    ) -> list[CompletionItem]:
        """The queues whose names begin so; none if no broker answers at once."""
        try:
            with Client(_endpoint(ctx), timeout=_SECONDS, patient=False) as client:
                names = [str(row["name"]) for row in client.queues()]
        except (SluiceError, ValueError):
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete) and name.isprintable()]


def completes_queues(command: click.Command) -> None:
    """Have the names of queues completed wherever this command takes one."""
    for parameter in command.params:
        if parameter.name in ("queue", "to"):
            parameter.type = QueueName()


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_obj
def completion(invocation: Invocation, shell: str) -> None:
    """Print what makes a SHELL complete commands, options and queues.

    bash: put `eval "$(sluicemq completion bash)"` into ~/.bashrc; zsh: the same with zsh into ~/.zshrc;
    fish: `sluicemq completion fish > ~/.config/fish/completions/sluicemq.fish`.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"{shell} is not known here")
    invocation.line(kind(click.get_current_context().find_root().command, {}, _PROGRAM, _VARIABLE).source())


def _endpoint(ctx: click.Context) -> str | None:
    """Where the broker is, as far as the line says: after the command, before it, or nowhere."""
    given = ctx.meta.get(ENDPOINT) or ctx.find_root().params.get("endpoint")
    return str(given) if given else None
