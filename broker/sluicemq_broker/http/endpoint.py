"""A path of the door at work: its row of the table says what is read, done and answered."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import falcon

from sluicemq.protocol.wire import TaskField
from sluicemq_broker.http.answers import write
from sluicemq_broker.http.fair_turns import FairTurns
from sluicemq_broker.http.handler import CONNECTION
from sluicemq_broker.http.route import Call, Method, read, read_query
from sluicemq_broker.queues import Task
from sluicemq_broker.security import plain


class Endpoint:
    """All paths; the guard has put the row of the one that was asked for into the request's context.

    ``turns``: to ask MongoDB, for a few requests at one time.
    """

    def __init__(self, turns: FairTurns) -> None:
        self._turns = turns

    def on_get(self, request: falcon.Request, response: falcon.Response, **names: str) -> None:
        """Answer with what the caller may see, or carry out what it asks for."""
        context, route = request.context, request.context.route
        context.query = read_query(route, request)
        if route.writes:
            route.do(context.subject, request, response, **names)
        elif route.method == Method.GET:
            with self._turns.turn(request.env[CONNECTION].served) if route.asks_store else nullcontext():
                context.ask_again()  # it may have waited for its turn
                found = route.do(context.subject, Call(context.caller, context.query, None), **names)
                write(response, context.show(found))
        else:
            body = read(route.body, context.body)
            context.answer = route.do(context.subject, Call(context.caller, context.query, body), **names)
            write(response, _outcome(context.answer))

    on_head = on_post = on_get


def _outcome(answer: Any) -> dict[str, Any]:
    """Return ``{answer}``, or ``{task, done, total}`` of an operation that goes on after two seconds."""
    outcome = plain(answer.outcome(2.0) if isinstance(answer, Task) else answer)
    goes_on = isinstance(outcome, dict) and TaskField.TASK in outcome
    return outcome if goes_on else {"answer": outcome}
