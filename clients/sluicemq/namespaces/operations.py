"""``client.operations``."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from sluicemq.arguments import checked
from sluicemq.namespaces.namespace import Namespace
from sluicemq.operation import Operation
from sluicemq.protocol import wire
from sluicemq.protocol.rows import OperationRow
from sluicemq.protocol.wire import TaskField


@checked()
class Operations(Namespace):
    """Operations: orders on many jobs that took long, of all brokers."""

    __slots__ = ()

    def list(self) -> builtins.list[OperationRow]:
        """Return the operations of the last day, the latest first.

        ``state``: ``running``, ``done``, ``cancelled``, ``failed`` (``error`` says why), or ``interrupted``:
        its broker has died, and another one may take it over.
        """
        return self._calls.read(builtins.list[OperationRow], wire.TASKS)

    def get(self, id: str) -> OperationRow:  # noqa: A002 - the word that jobs use, too
        """Return one operation, with its ``answer`` if it is done.

        Raises :class:`~sluicemq.NotFoundError`.
        """
        return self._calls.read(OperationRow, wire.TASK, id)

    def cancel(self, id: str) -> None:  # noqa: A002
        """End an operation after its current batch; nothing is undone.

        Raises :class:`~sluicemq.NotFoundError`.
        """
        self._calls.act(wire.TCANCEL, id)

    def wait(
        self,
        id: str,  # noqa: A002
        timeout: float | None = None,
        on_progress: Callable[[OperationRow], None] | None = None,
    ) -> OperationRow:
        """Wait until an operation has ended, and return it, whatever its end.

        Raises :class:`~sluicemq.TimeoutError` if it goes on after ``timeout`` seconds (None: never).
        ``on_progress`` is called with the operation, four times a second.
        """
        operation: Operation[Any] = Operation(self._calls, object, {TaskField.DONE: 0}, id=id)
        return operation.finished(timeout, on_progress)
