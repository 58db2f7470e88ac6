"""One answer for all who ask at about the same time: none is older than its question, all hear of errors."""

from __future__ import annotations

import itertools

import gevent
import pytest
from gevent.event import Event

from sluicemq_broker.admin.shared_answer import SharedAnswer
from support.fakes import go_on


class Work:
    """Finds out how often it was asked to, when it may."""

    def __init__(self, *errors: Exception | None) -> None:
        self.let_go = Event()
        self._numbers = itertools.count(1)
        self._errors = list(errors)

    def __call__(self) -> int:
        number = next(self._numbers)
        self.let_go.wait()
        if self._errors and (error := self._errors.pop(0)):
            raise error
        return number


def test_all_who_ask_while_one_is_found_out_share_the_next() -> None:
    work = Work()
    answer = SharedAnswer(work)
    first = gevent.spawn(answer.get)
    go_on()
    others = [gevent.spawn(answer.get) for _ in range(100)]
    go_on()
    work.let_go.set()
    gevent.joinall([first, *others])

    assert first.value == 1
    assert [other.value for other in others] == [2] * 100
    assert answer.get() == 3


def test_an_error_is_told_to_those_who_asked_and_to_nobody_else() -> None:
    work = Work(ValueError("it can't be counted"))
    answer = SharedAnswer(work)
    work.let_go.set()
    asked = [gevent.spawn(answer.get) for _ in range(3)]
    gevent.joinall(asked)
    assert [str(future.exception) for future in asked] == ["it can't be counted"] * 3
    assert answer.get() == 2


def test_one_who_gives_up_leaves_the_others_their_answer() -> None:
    work = Work()
    answer = SharedAnswer(work)
    asked = [gevent.spawn(answer.get) for _ in range(3)]
    go_on()
    asked[0].kill()
    work.let_go.set()
    gevent.joinall(asked)
    assert [answer.value for answer in asked[1:]] == [1, 1]


def test_who_asks_alone_has_a_new_answer_each_time() -> None:
    work = Work()
    work.let_go.set()
    answer = SharedAnswer(work)
    assert [answer.get() for _ in range(3)] == [1, 2, 3]
    with pytest.raises(ZeroDivisionError):
        SharedAnswer(lambda: 1 // 0).get()
