"""A path of the door at work: its row of the table says what is read, done and answered."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Final

import falcon
from msgspec import Struct

from sluicemq.protocol.wire import TaskField
from sluicemq_broker.http.answers import write
from sluicemq_broker.http.fair_turns import FairTurns
from sluicemq_broker.http.handler import CONNECTION
from sluicemq_broker.http.route import Call, Route, read, read_query
from sluicemq_broker.queues import Task
from sluicemq_broker.security import plain

#: Seconds to wait for an operation on many jobs before the answer is its id.
_WAIT: Final = 2.0


class Endpoint:
    """All paths; the guard has put the row of the one that was asked for into the request's context.

    ``turns``: to ask MongoDB, for a few requests at one time.
    """

    def __init__(self, turns: FairTurns) -> None:
        self._turns = turns

    def on_get(self, request: falcon.Request, response: falcon.Response, **names: str) -> None:
        """Answer with what the caller may see."""
        route, query = self._begun(request)
        if route.writes:
            route.do(request.context.subject, request, response, **names)
            return
        context = request.context
        with self._turns.turn(request.env[CONNECTION].served) if route.asks_store else nullcontext():
            context.ask_again()  # it may have waited for its turn
            write(response, context.show(_done(route, request, query, None, names)))

    on_head = on_get

    def on_post(self, request: falcon.Request, response: falcon.Response, **names: str) -> None:
        """Answer ``{answer}``, or ``{task, done, total}`` of an operation that goes on."""
        route, query = self._begun(request)
        if route.writes:
            route.do(request.context.subject, request, response, **names)
            return
        context = request.context
        body = read(route.body, context.body)
        outcome = context.answer = _done(route, request, query, body, names)
        if isinstance(outcome, Task):
            outcome = outcome.outcome(_WAIT)
        outcome = plain(outcome)
        goes_on = isinstance(outcome, dict) and TaskField.TASK in outcome
        write(response, outcome if goes_on else {"answer": outcome})

    def _begun(self, request: falcon.Request) -> tuple[Route, Struct]:
        route: Route = request.context.route
        query = request.context.query = read_query(route, request)
        return route, query


def _done(route: Route, request: falcon.Request, query: Struct, body: Any, names: dict[str, str]) -> Any:
    context = request.context
    return route.do(context.subject, Call(context.caller, query, body), **names)
