"""Whether MongoDB answers, as a broker tells it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pymongo.errors import AutoReconnect, NotPrimaryError, OperationFailure

from sluicemq_broker.store import StoreAvailability
from sluicemq_broker.store.availability import SILENCE, UNCONFIRMED


class Server:
    """A MongoDB that answers as it is told, or does something else while it is asked."""

    def __init__(self) -> None:
        self.now = 100.0
        self.state = StoreAvailability(lambda: self.now)
        self.meanwhile: Callable[[], Any] = lambda: None

    @property
    def admin(self) -> Any:
        return self

    def command(self, _name: Any) -> dict[str, Any]:
        self.meanwhile()
        return {"ok": 1}

    def ask(self, meanwhile: Callable[[], Any] = lambda: None) -> None:
        self.meanwhile = meanwhile
        client: Any = self
        self.state.watch(client)

    def confirm(self, meanwhile: Callable[[], Any] = lambda: None) -> None:
        self.meanwhile = meanwhile
        client: Any = {"broker": self}
        self.state.watch_majority(client, "broker")

    def fail(self, seconds: float = 0.0) -> None:
        self.now += seconds
        raise AutoReconnect("connection refused")


def test_one_that_answers_is_reachable_and_has_no_problem() -> None:
    server = Server()
    server.ask()
    assert (server.state.reachable, server.state.problem, server.state.silent) == (True, "", 0.0)


def test_one_that_does_not_answer_is_away_before_the_question_has_failed() -> None:
    server, seen = Server(), list[tuple[bool, str]]()

    def stand_still() -> None:
        for _ in range(2):
            server.now += SILENCE / 2
            seen.append((server.state.reachable, server.state.problem))

    server.ask(stand_still)
    assert seen == [(True, ""), (False, "MongoDB has not answered for 2.0 s")]
    assert server.state.reachable


def test_questions_that_fail_are_counted_from_the_first_one_and_the_last_error_is_told() -> None:
    server = Server()
    for _ in range(3):
        server.ask(lambda: server.fail(1.0))
    assert not server.state.reachable
    assert server.state.problem.startswith("MongoDB has not answered for 3.0 s: AutoReconnect")


def test_one_answer_makes_it_reachable_again() -> None:
    server = Server()
    server.ask(lambda: server.fail(60.0))
    server.ask()
    assert server.state.reachable


def test_one_that_has_no_primary_is_not_reachable() -> None:
    server = Server()

    def refuse() -> None:
        server.now += SILENCE
        raise NotPrimaryError("not primary")

    server.ask(refuse)
    assert "not primary" in server.state.problem


def test_one_whose_every_answer_takes_long_is_said_to_be_slow_once_until_it_is_quick_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server()

    def takes(seconds: float) -> Callable[[], None]:
        def passes() -> None:
            server.now += seconds

        return passes

    def ask(*times: float) -> list[str]:
        caplog.clear()
        for seconds in times:
            server.ask(takes(seconds))
        return [record.getMessage() for record in caplog.records]

    # A busy moment is none
    assert ask(0.05, 0.05, 0.001, 0.05, 0.05, 0.05, 0.05) == []
    said = "MongoDB is slow: it takes 50 ms for each answer at least, and a job takes several"
    assert ask(*[0.05] * 20) == [said]
    assert ask(0.001, 0.001) == ["MongoDB is not slow any more: it takes 1 ms for an answer"]


def test_one_that_answers_and_has_no_majority_is_not_reachable_until_it_has_one() -> None:
    server, back = Server(), list[float]()
    server.state.on_return(back.append)

    def too_late() -> None:
        server.now += UNCONFIRMED
        raise OperationFailure("operation exceeded time limit", 50)

    server.confirm(too_late)
    server.ask()
    assert not server.state.reachable
    assert server.state.problem.startswith("MongoDB answers, but no majority of its members has confirmed")
    assert not back
    server.confirm()
    assert (server.state.reachable, back) == (True, [UNCONFIRMED])


def test_one_that_is_silent_is_not_said_to_lack_a_majority() -> None:
    server = Server()
    server.confirm(lambda: server.fail(60.0))
    server.ask(lambda: server.fail(60.0))
    assert server.state.problem.startswith("MongoDB has not answered for")


def test_a_stand_alone_server_has_nothing_to_confirm() -> None:
    server = Server()

    def refuse() -> None:
        server.now += UNCONFIRMED
        raise OperationFailure("node needs to be a replica set member to use read concern", 123)

    server.confirm(refuse)
    assert server.state.reachable
