"""``sluicemq tasks`` and ``task``, and how a command follows a bulk operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import click

from sluicemq.cli.output import Invocation, none_seen
from sluicemq.operation import Operation
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rows import OperationRow
from sluicemq.protocol.wire import LOOKED, TaskField

#: Seconds after which a command shows the progress of its bulk operation.
AT_ONCE: Final = 1.0
#: Columns of ``sluicemq tasks``.
_SHOWN: Final = (
    *("id", "kind", "queue", "state", TaskField.DONE, LOOKED, TaskField.TOTAL),
    *("broker", "started_at", "ended_at"),
)
#: Exit code of a command that Ctrl-C has ended.
_INTERRUPTED: Final = 130

Answer = TypeVar("Answer")


def carried_out(invocation: Invocation, order: Callable[[float], Operation[Answer]]) -> Answer:
    """Carry out a bulk operation, and follow it until it ends. ``order`` gets the seconds to wait."""
    operation = order(min(AT_ONCE, invocation.timeout / 2))
    return operation.result() if operation.ended else _followed(invocation, operation)


@click.command()
@click.pass_obj
def tasks(invocation: Invocation) -> None:
    """List the bulk operations of the last day, such as purges and redrives, of all brokers."""
    with invocation.client() as client:
        rows = client.sent.operations.list()
    if invocation.as_json:
        invocation.json({"tasks": rows})
    elif rows:
        invocation.table("", [{key: row.get(key) for key in _SHOWN} for row in rows])
    else:
        none = "no bulk operations in the last day"
        invocation.note(none_seen(client, Action.MANAGE, "bulk operations", none))


@click.group()
def task() -> None:
    """Look at a bulk operation, or cancel it."""


@task.command()
@click.argument("id")
@click.pass_obj
def show(invocation: Invocation, id: str) -> None:  # noqa: A002 - the argument's name
    """Show the task with this ID, and its answer."""
    with invocation.client() as client:
        found = client.sent.operations.get(id)
    if invocation.as_json:
        invocation.json(found)
    else:
        invocation.table("", [{"name": key, "value": value} for key, value in found.items()])


@task.command()
@click.argument("id")
@click.pass_obj
def cancel(invocation: Invocation, id: str) -> None:  # noqa: A002
    """End the task with this ID; what it has done is not undone."""
    with invocation.client() as client:
        client.operations.cancel(id)
    invocation.result(f"task {id} ends after its current batch", id=id)


def _followed(invocation: Invocation, operation: Operation[Answer]) -> Answer:
    from sluicemq.cli import bars  # noqa: PLC0415 - slow to load, and most operations end at once

    try:
        with bars.counted(invocation.err) as bar:
            shown = bar.add_task(f"task {operation.id}", total=operation.total, completed=operation.done)
            return operation.result(on_progress=lambda row: bar.update(shown, completed=_so_far(row)))
    except KeyboardInterrupt:
        invocation.note(
            f"the broker goes on: sluicemq task show {operation.id} shows its progress, "
            f"sluicemq task cancel {operation.id} ends it"
        )
        raise click.exceptions.Exit(_INTERRUPTED) from None


def _so_far(row: OperationRow) -> int:
    """Return the progress of a task; one that looks for a rare reason has looked at more than it has done."""
    return max(row.done, row.looked)
