"""Questions to a broker that a task waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from sluicemq.aio.loop import in_time
from sluicemq.steps import Step, Steps
from sluicemq.transport import questions
from sluicemq.transport.questions import Questions, noted

Answer = TypeVar("Answer")


class _Question(questions.Question):
    __slots__ = ()

    Event = asyncio.Event


async def ask(role: Questions, verb: bytes, *fields: Any, timeout: float | None, repeat: bool = True) -> Any:
    """Send a request and wait for the answer, as ``Questions.ask`` does.

    Cancelled, it is not sent any more, if it has not been; otherwise nobody waits for its answer.
    """
    question = _Question(verb, *fields, repeat=repeat)
    try:
        with noted(verb, fields):
            role.put(question)
            in_its_time = await in_time(question.answered, timeout)
            return question.outcome(timeout, role._connection, in_time=in_its_time)
    finally:
        question.given_up = True


async def run(steps: Steps[Answer], do: Callable[[Step], Awaitable[Any]]) -> Answer:
    """Do one step after the other, as ``run`` of :mod:`sluicemq.steps` does."""
    go: Callable[[Any], Step] = steps.send
    outcome: Any = None
    while True:
        try:
            step = go(outcome)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            go, outcome = steps.send, await do(step)
        except BaseException as error:  # noqa: BLE001 - the steps raise it
            go, outcome = steps.throw, error
