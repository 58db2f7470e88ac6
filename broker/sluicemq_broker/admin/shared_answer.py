"""One answer for all who ask one question at about one time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import gevent
from gevent.event import AsyncResult
from gevent.lock import BoundedSemaphore

T = TypeVar("T")


class SharedAnswer(Generic[T]):
    """Finds an answer for all who wait for it, so that the cost doesn't grow with their number.

    An answer is never older than its question: those who ask while one is being found share the next one.
    """

    def __init__(self, find_out: Callable[[], T]) -> None:
        self._find_out = find_out
        self._one_at_a_time = BoundedSemaphore(1)
        self._next: Any = None  # it is not begun yet

    def get(self) -> T:
        """Return, or raise, what a later call of ``find_out`` does; waits for it."""
        answer = self._next
        if answer is None:
            answer = self._next = AsyncResult()
            gevent.spawn(self._answer, answer)
        return cast("T", answer.get())

    def _answer(self, answer: Any) -> None:
        with self._one_at_a_time:
            self._next = None
            try:
                answer.set(self._find_out())
            except Exception as error:  # noqa: BLE001 - it is raised to all who wait
                answer.set_exception(error)
