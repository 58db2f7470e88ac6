"""One answer for all who ask the same at about the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import gevent
from gevent.event import AsyncResult
from gevent.lock import BoundedSemaphore

T = TypeVar("T")


class SharedAnswer(Generic[T]):
    """Finds something out for all who ask; it costs the same however many they are.

    Nobody gets an answer that was begun before the question: who asks while one is being found out shares
    the next one with all others who do.
    """

    def __init__(self, find_out: Callable[[], T]) -> None:
        self._find_out = find_out
        self._one_at_a_time = BoundedSemaphore(1)
        self._next: Any = None  # not begun yet

    def get(self) -> T:
        """What ``find_out`` returns or raises, called after this was; waits for it."""
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
            except Exception as error:  # noqa: BLE001 - those who asked hear of it
                answer.set_exception(error)
