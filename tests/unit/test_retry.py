"""Waiting for MongoDB: repeated until answered, or until the broker gives up."""

from __future__ import annotations

from collections.abc import Callable

import gevent
import pytest
from gevent.event import Event

from sluicemq.protocol.errors import TooLargeError, UnavailableError
from sluicemq_broker.context import Retry
from sluicemq_broker.store import Doubtful, Refused, Unclear


def at_once() -> Retry:
    """With waits that no test notices."""
    return Retry(0.001, 0.004)


def failing(*errors: Exception, answer: str = "answer") -> Callable[[], str]:
    """A statement that fails so many times, and then answers."""
    left = list(errors)

    def statement() -> str:
        if left:
            raise left.pop(0)
        return answer

    return statement


def test_an_answer_is_handed_on() -> None:
    assert at_once().run(failing()) == "answer"


def test_a_statement_is_repeated_until_it_is_answered() -> None:
    away = [UnavailableError("away")] * 5
    assert at_once().run(failing(*away)) == "answer"


def test_only_an_unclear_outcome_is_told_and_before_the_repetition() -> None:
    told: list[str] = []
    statement = failing(
        UnavailableError("not sent"), Unclear("cut"), UnavailableError("not sent"), Unclear("cut again")
    )

    def noted() -> str:
        told.append("sent")
        return statement()

    at_once().run(noted, lambda: told.append("unclear"))
    assert told == ["sent", "sent", "unclear", "sent", "sent", "unclear", "sent"]


def test_an_error_that_waiting_can_not_cure_is_raised_at_once() -> None:
    for error in (TooLargeError("16 MiB"), Refused("16 MiB")):
        with pytest.raises(type(error)):
            at_once().run(failing(error))


def test_what_is_refused_again_and_again_with_a_code_nobody_knows_is_refused_at_last() -> None:
    with pytest.raises(Refused, match="refused 10 times: a strange code"):
        at_once().run(failing(*[Doubtful("a strange code")] * 100))
    assert at_once().run(failing(*[Doubtful("a strange code")] * 9)) == "answer"


def test_trouble_in_between_makes_a_doubt_begin_anew() -> None:
    errors = [*[Doubtful("a strange code")] * 9, Unclear("cut"), *[Doubtful("a strange code")] * 9]
    assert at_once().run(failing(*errors)) == "answer"


def test_when_the_broker_gives_up_every_waiting_statement_raises_its_error() -> None:
    retry, tried = at_once(), Event()

    def away() -> None:
        tried.set()
        raise UnavailableError("away")

    waiting = [gevent.spawn(retry.run, away) for _ in range(3)]
    assert tried.wait(60)
    retry.give_up()
    gevent.joinall(waiting, timeout=60)
    assert retry.over
    assert all(isinstance(future.exception, UnavailableError) for future in waiting)


def test_after_giving_up_a_statement_is_tried_once_and_a_doubt_is_still_told() -> None:
    retry = at_once()
    retry.give_up()
    told: list[str] = []
    answer = retry.run(failing())
    with pytest.raises(Unclear):
        retry.run(failing(Unclear("cut")), lambda: told.append("unclear"))
    assert answer == "answer"
    assert told == ["unclear"]


def test_an_outage_is_two_lines_in_the_log_however_long_it_is(caplog: pytest.LogCaptureFixture) -> None:
    retry = at_once()
    retry.run(failing(*[UnavailableError("no primary")] * 9))
    retry.run(failing())
    said = [record.getMessage() for record in caplog.records if record.name == "broker.store"]
    assert said == ["MongoDB is away, waiting for it: no primary", "MongoDB is back"]
