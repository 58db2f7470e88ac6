"""Operations: orders on many jobs, which the broker carries out beside the jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sluicemq.protocol import wire
from sluicemq.protocol.errors import TimeoutError, UnfinishedError, from_code
from sluicemq.protocol.rows import OperationRow
from sluicemq.protocol.wire import TaskField, TaskState
from sluicemq.steps import Ask, Finds, Found, Pause, Steps

if TYPE_CHECKING:
    from sluicemq.namespaces.calls import Calls

#: Seconds between two questions about an operation.
_PAUSE = 0.25

Answer = TypeVar("Answer")


OnProgress = Callable[[OperationRow], None]


class Operation(Generic[Answer]):
    """A purge, deletion, redrive or discard: done already, or carried out by the broker, with progress.

    >>> removed = client.queues.purge("mail").result()
    >>> for progress in client.queues.purge("mail", "dead"):
    ...     print(progress.done, "of", progress.total)

    A small one is done when the call returns. A larger one goes on at the broker, whether the program waits
    for it or not, and other brokers take it over if that one dies.
    """

    def __init__(
        self,
        calls: Calls,
        kind: type[Answer],
        answered: Any,
        *,
        id: str | None = None,  # noqa: A002
    ) -> None:
        self._calls = calls
        self._kind = kind
        self._answered = answered
        self._row: OperationRow | None = None
        self.id = id
        """The id, with which ``client.operations`` finds it; None: it was done before it needed one."""

    @classmethod
    def begun(cls, calls: Calls, kind: type[Answer], answer: Any) -> Operation[Answer]:
        """Return the operation of a broker's first answer: the result, or where it goes on."""
        if isinstance(answer, dict) and TaskField.TASK in answer:
            return cls(calls, kind, answer, id=str(answer[TaskField.TASK]))
        return cls(calls, kind, answer)

    @property
    def ended(self) -> bool:
        """Return whether it has ended, as seen last: done, cancelled or failed."""
        return self.id is None or (self._row is not None and self._row.ended_at is not None)

    @property
    def state(self) -> str:
        """Return its state, as seen last: one of :class:`~sluicemq.OperationState`."""
        if self._row is not None:
            return self._row.state
        return TaskState.DONE if self.id is None else TaskState.RUNNING

    @property
    def done(self) -> int:
        """Return the number of jobs that it has changed, as seen last."""
        if self._row is not None:
            return self._row.done
        if self.id is not None:
            return int(self._answered[TaskField.DONE])
        return int(self._answered["moved"] if isinstance(self._answered, dict) else self._answered or 0)

    @property
    def total(self) -> int | None:
        """Return about how many jobs it is about; None: not known."""
        if self._row is not None:
            return self._row.total
        return self.done if self.id is None else self._answered.get(TaskField.TOTAL)

    def wait(self, timeout: float | None = None, on_progress: OnProgress | None = None) -> bool:
        """Wait until it has ended, at most ``timeout`` seconds (None: for ever); returns whether it has.

        ``on_progress`` is called with what is known of it, four times a second.
        """
        return self._calls.run(self._waiting(timeout, on_progress))

    def result(self, timeout: float | None = None, on_progress: OnProgress | None = None) -> Answer:
        """Wait as :meth:`wait` does, and return the outcome.

        Raises :class:`~sluicemq.TimeoutError` if it goes on after ``timeout`` seconds,
        :class:`~sluicemq.UnfinishedError` if it was cancelled, and the error that has ended it.
        """
        return self._calls.run(self._resulting(timeout, on_progress))

    def finished(self, timeout: float | None = None, on_progress: OnProgress | None = None) -> OperationRow:
        """Wait as :meth:`wait` does, and return what is known of it, whatever its end.

        Raises :class:`~sluicemq.TimeoutError` if it goes on after ``timeout`` seconds.
        """
        return self._calls.run(self._finishing(timeout, on_progress))

    def cancel(self) -> None:
        """End it after its current batch; nothing is undone. Does nothing if it has ended."""
        return self._calls.run(self._cancelling())

    def __iter__(self) -> Iterator[OperationRow]:
        """Yield what is known of it, four times a second until it has ended."""
        return self._calls.each(self._following())

    def __repr__(self) -> str:
        named = f" {self.id}" if self.id else ""
        return f"<Operation{named}: {self.state}, {self._so_far} jobs>"

    @property
    def _so_far(self) -> str:
        return f"{self.done}" if self.total is None else f"{self.done} of {self.total}"

    def _following(self) -> Finds:
        while not (yield from self._refreshing()):
            if self._row is not None:
                yield Found(self._row)
            yield Pause(_PAUSE)
        if self._row is not None:
            yield Found(self._row)

    def _waiting(self, timeout: float | None, on_progress: OnProgress | None) -> Steps[bool]:
        until = None if timeout is None else monotonic() + timeout
        while not (yield from self._refreshing()):
            if on_progress is not None and self._row is not None:
                on_progress(self._row)
            left = _PAUSE if until is None else min(_PAUSE, until - monotonic())
            if left <= 0:
                return False
            yield Pause(left)
        if on_progress is not None and self._row is not None:
            on_progress(self._row)
        return True

    def _ending(self, timeout: float | None, on_progress: OnProgress | None) -> Steps[None]:
        if not (yield from self._waiting(timeout, on_progress)):
            raise TimeoutError(f"operation {self.id} goes on after {timeout:g} s: {self._so_far} jobs so far")

    def _resulting(self, timeout: float | None, on_progress: OnProgress | None) -> Steps[Answer]:
        yield from self._ending(timeout, on_progress)
        row = self._row
        if row is None:
            return self._calls.converted(self._kind, self._answered)
        if row.error is not None:
            raise from_code(row.error.code, row.error.message)
        if row.state != TaskState.DONE:
            raise UnfinishedError(f"operation {row.id} was {row.state}", row.id, row.done, row.total)
        return self._calls.converted(self._kind, row.answer)

    def _finishing(self, timeout: float | None, on_progress: OnProgress | None) -> Steps[OperationRow]:
        yield from self._ending(timeout, on_progress)
        return self._row or OperationRow(
            id="",
            kind="",
            queue="",
            state=self.state,
            done=self.done,
            looked=0,
            total=self.total,
            answer=self._answered,
        )

    def _cancelling(self) -> Steps[None]:
        if not self.ended:
            yield Ask(wire.TCANCEL, (self.id,), repeat=False)

    def _refreshing(self) -> Steps[bool]:
        """Ask for its state unless it has ended; returns whether it has."""
        if not self.ended:
            self._row = yield from self._calls.reading(OperationRow, Ask(wire.TASK, (self.id,)))
        return self.ended
