"""One deadline for everything that waits together."""

from __future__ import annotations

import time

import gevent
import pytest

from broker.deadline import Deadline


@pytest.fixture
def deadline() -> Deadline:
    return Deadline()


def never() -> bool:
    return False


def test_what_holds_already_is_not_waited_for(deadline: Deadline) -> None:
    deadline.begin(0.0)
    assert deadline.until(lambda: True)


def test_a_wait_ends_when_its_condition_holds(deadline: Deadline) -> None:
    done: list[bool] = []
    gevent.spawn_later(0.02, done.append, True)  # noqa: FBT003 - anything
    assert deadline.until(lambda: bool(done))


def test_two_waits_one_after_the_other_share_the_deadline(deadline: Deadline) -> None:
    began = time.monotonic()
    deadline.begin(0.1)
    assert not deadline.until(never)
    assert not deadline.until(never)
    assert 0.1 <= time.monotonic() - began < 0.19


def test_a_wait_may_end_before_the_deadline(deadline: Deadline) -> None:
    deadline.begin(60.0)
    assert not deadline.until(never, within=0.02)
    assert deadline.left > 59.0


def test_a_wait_may_be_given_a_moment_after_the_deadline(deadline: Deadline) -> None:
    deadline.begin(0.0)
    done: list[bool] = []
    gevent.spawn_later(0.02, done.append, True)  # noqa: FBT003 - anything
    assert deadline.until(lambda: bool(done), at_least=5.0)
    assert not deadline.until(never, at_least=0.02)


def test_hurry_ends_a_wait_that_is_under_way_and_every_later_one(deadline: Deadline) -> None:
    # Given
    waiting = [gevent.spawn(deadline.until, never, within=60.0) for _ in range(2)]
    gevent.idle()
    # When
    deadline.hurry()
    gevent.joinall(waiting, timeout=5.0)
    deadline.begin(60.0)
    # Then
    assert [each.value for each in waiting] == [False, False]
    assert not deadline.until(never)
