"""One deadline for everything that waits together."""

from __future__ import annotations

import gevent
import pytest

from sluicemq_broker.process.deadline import Deadline


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
    looks: list[object] = []
    deadline.begin(0.1)
    assert not deadline.until(never)
    assert deadline.left == 0.0
    assert not deadline.until(lambda: bool(looks.append(None)))
    assert len(looks) == 1


def test_a_wait_may_end_before_the_deadline(deadline: Deadline) -> None:
    deadline.begin(1000.0)
    assert not deadline.until(never, within=0.02)
    assert deadline.left > 0.0


def test_a_wait_may_be_given_a_moment_after_the_deadline(deadline: Deadline) -> None:
    deadline.begin(0.0)
    done: list[bool] = []
    gevent.spawn_later(0.02, done.append, True)  # noqa: FBT003 - anything
    assert deadline.until(lambda: bool(done), at_least=60.0)
    assert not deadline.until(never, at_least=0.02)


def test_hurry_ends_a_wait_that_is_under_way_and_every_later_one(deadline: Deadline) -> None:
    waiting = [gevent.spawn(deadline.until, never, within=1000.0) for _ in range(2)]
    gevent.idle()
    deadline.hurry()
    gevent.joinall(waiting, timeout=60)
    deadline.begin(1000.0)
    assert [job.value for job in waiting] == [False, False]
    assert not deadline.until(never)
