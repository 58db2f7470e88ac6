"""``sluicemq operations``, and how a command follows a bulk operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import click

from sluicemq.cli.nouns import Noun
from sluicemq.cli.output import Invocation, fields
from sluicemq.operation import Operation
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rows import OperationRow, plain
from sluicemq.protocol.wire import LOOKED, TaskField, TaskState

#: Seconds after which a command shows the progress of its bulk operation.
AT_ONCE: Final = 1.0
#: Columns of ``sluicemq operations list``.
_SHOWN: Final = (
    *("id", "kind", "queue", "state", TaskField.DONE, LOOKED, TaskField.TOTAL),
    *("broker", "started_at", "ended_at"),
)

Answer = TypeVar("Answer")


def carried_out(invocation: Invocation, order: Callable[[float], Operation[Answer]]) -> Answer:
    """Carry out a bulk operation, and follow it until it ends. ``order`` gets the seconds to wait."""
    operation = order(min(AT_ONCE, invocation.timeout / 2))
    return operation.result() if operation.ended else _followed(invocation, operation)


@click.group(cls=Noun, default="list")
def operations() -> None:
    """Look at operations on many jobs, such as purges and redrives; wait for them, or cancel them."""


@operations.command("list")
@click.pass_obj
def list_(invocation: Invocation) -> None:
    """List the bulk operations of the last day, such as purges and redrives, of all brokers."""
    rows = invocation.broker.sent.operations.list()
    named = "tasks" if click.get_current_context().info_name == "tasks" else "operations"  # as in version 0.3
    invocation.answer(
        {named: rows},
        [{key: row.get(key) for key in _SHOWN} for row in rows],
        invocation.none_seen(Action.MANAGE, "bulk operations", "no bulk operations in the last day"),
    )


@operations.command()
@click.argument("id")
@click.pass_obj
def show(invocation: Invocation, id: str) -> None:  # noqa: A002 - the argument's name
    """Show the operation with this ID, and its answer."""
    found = invocation.broker.sent.operations.get(id)
    invocation.answer(found, fields(found))


@operations.command()
@click.argument("id")
@click.pass_obj
def cancel(invocation: Invocation, id: str) -> None:  # noqa: A002
    """End the operation with this ID; what it has done is not undone."""
    invocation.broker.operations.cancel(id)
    invocation.result(f"operation {id} ends after its current batch", id=id)


@operations.command()
@click.argument("id")
@click.pass_obj
def wait(invocation: Invocation, id: str) -> None:  # noqa: A002
    """Wait until the operation with this ID has ended, and show it; exits with 1 if it did not succeed."""
    found = invocation.broker.operations.wait(id)
    invocation.answer(plain(found), fields(plain(found)))
    if found.state != TaskState.DONE:
        click.get_current_context().exit(1)


def _followed(invocation: Invocation, operation: Operation[Answer]) -> Answer:
    from sluicemq.cli import bars  # noqa: PLC0415 - slow to load, and most operations end at once

    try:
        with bars.counted(invocation.err) as bar:
            shown = bar.add_task(f"operation {operation.id}", total=operation.total, completed=operation.done)
            return operation.result(on_progress=lambda row: bar.update(shown, completed=_so_far(row)))
    except KeyboardInterrupt:
        invocation.note(
            f"the broker goes on: sluicemq operations show {operation.id} shows its progress, "
            f"sluicemq operations cancel {operation.id} ends it"
        )
        # Exit code of a command that Ctrl-C has ended
        raise click.exceptions.Exit(130) from None


def _so_far(row: OperationRow) -> int:
    """Return the progress of a task; one that looks for a rare reason has looked at more than it has done."""
    return max(row.done, row.looked)
