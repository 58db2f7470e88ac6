"""Operations that an async client awaits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

from sluicemq import operation
from sluicemq.operation import OnProgress
from sluicemq.protocol.rows import OperationRow

Answer = TypeVar("Answer")


class Operation(Generic[Answer]):
    """A purge, deletion, redrive or discard: done already, or carried out by the broker, with progress.

    >>> removed = await (await client.queues.purge("mail")).result()
    >>> async for progress in await client.queues.purge("mail", "dead"):
    ...     print(progress.done, "of", progress.total)
    """

    def __init__(self, steps: operation.Operation[Answer]) -> None:
        self._steps: Any = steps

    @property
    def id(self) -> str | None:
        """Return the id for ``client.operations``; None: it was done before it needed one."""
        return self._steps.id  # type: ignore[no-any-return]

    @property
    def ended(self) -> bool:
        """Return whether it has ended, as seen last: done, cancelled or failed."""
        return self._steps.ended  # type: ignore[no-any-return]

    @property
    def done(self) -> int:
        """Return the number of jobs that it has changed, as seen last."""
        return self._steps.done  # type: ignore[no-any-return]

    @property
    def total(self) -> int | None:
        """Return about how many jobs it is about; None: not known."""
        return self._steps.total  # type: ignore[no-any-return]

    async def wait(self, timeout: float | None = None, on_progress: OnProgress | None = None) -> bool:
        """Wait until it has ended, at most ``timeout`` seconds (None: for ever); returns whether it has."""
        return await self._steps.wait(timeout, on_progress)  # type: ignore[no-any-return]

    async def result(self, timeout: float | None = None, on_progress: OnProgress | None = None) -> Answer:
        """Wait as :meth:`wait` does, and return the outcome; raises what :class:`sluicemq.Operation` does."""
        return await self._steps.result(timeout, on_progress)  # type: ignore[no-any-return]

    async def cancel(self) -> None:
        """End it after its current batch; nothing is undone. Does nothing if it has ended."""
        await self._steps.cancel()

    def __aiter__(self) -> AsyncIterator[OperationRow]:
        """Yield what is known of it, four times a second until it has ended."""
        return self._steps.__iter__()  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return repr(self._steps)
