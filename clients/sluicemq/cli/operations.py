"""``sluicemq operations``, and how a command follows a bulk operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import click

from sluicemq.cli.nouns import Noun
from sluicemq.cli.output import Invocation, none_seen
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
#: Exit code of a command that Ctrl-C has ended.
_INTERRUPTED: Final = 130

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
    with invocation.client() as client:
        rows = client.sent.operations.list()
    if invocation.as_json:
        former = click.get_current_context().info_name == "tasks"  # as in version 0.3
        invocation.json({"tasks" if former else "operations": rows})
    elif rows:
        invocation.table("", [{key: row.get(key) for key in _SHOWN} for row in rows])
    else:
        none = "no bulk operations in the last day"
        invocation.note(none_seen(client, Action.MANAGE, "bulk operations", none))


@operations.command()
@click.argument("id")
@click.pass_obj
def show(invocation: Invocation, id: str) -> None:  # noqa: A002 - the argument's name
    """Show the operation with this ID, and its answer."""
    with invocation.client() as client:
        found = client.sent.operations.get(id)
    if invocation.as_json:
        invocation.json(found)
    else:
        invocation.table("", [{"name": key, "value": value} for key, value in found.items()])


@operations.command()
@click.argument("id")
@click.pass_obj
def cancel(invocation: Invocation, id: str) -> None:  # noqa: A002
    """End the operation with this ID; what it has done is not undone."""
    with invocation.client() as client:
        client.operations.cancel(id)
    invocation.result(f"operation {id} ends after its current batch", id=id)


@operations.command()
@click.argument("id")
@click.pass_obj
def wait(invocation: Invocation, id: str) -> None:  # noqa: A002
    """Wait until the operation with this ID has ended, and show it; exits with 1 if it did not succeed."""
    with invocation.client() as client:
        found = client.operations.wait(id)
    if invocation.as_json:
        invocation.json(plain(found))
    else:
        invocation.table("", [{"name": key, "value": value} for key, value in plain(found).items()])
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
        raise click.exceptions.Exit(_INTERRUPTED) from None


def _so_far(row: OperationRow) -> int:
    """Return the progress of a task; one that looks for a rare reason has looked at more than it has done."""
    return max(row.done, row.looked)
