"""Questions to a broker that a task waits for."""

from __future__ import annotations

import asyncio
from typing import Any

from sluicemq.aio.loop import in_time
from sluicemq.transport import questions
from sluicemq.transport.questions import Questions, noted


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
