"""What a rollback's delay is, and what is kept of a done job."""

from typing import Any

import pytest

from sluicemq.protocol import wire
from sluicemq.protocol.errors import TooLargeError
from sluicemq_broker.config import MAX_JOB_BYTES, QueueSettings
from sluicemq_broker.job import RESULT_WANTED_FOR, Backoff
from sluicemq_broker.queue.decisions import DIED, NOT_ARRIVED, NOT_BEGUN, TIMED_OUT
from support.jobs import NOW
from unit.settling_rig import SettlingRig

LINEAR = QueueSettings(backoff="linear", backoff_base=10, backoff_jitter=0)


def failed(rig: SettlingRig) -> list[tuple[str, float | None, bool]]:
    return [(queue.reason, queue.due and queue.due - NOW, queue.dead) for queue in rig.store.rolled_back]


@pytest.mark.parametrize(
    ("attempts", "delay", "wait"),
    [(1, None, 10), (2, None, 20), (5, None, 50), (1, 0, None), (5, 0.0, None), (1, 7.5, 7.5), (5, 7.5, 7.5)],
)
def test_a_rollback_waits_by_its_attempts(attempts: int, delay: float | None, wait: float | None) -> None:
    rig = SettlingRig(1, max_attempts=0, attempts=attempts - 1, queue=LINEAR)
    rig.hire()
    rig.verdict(wire.ROLLBACK, delay=delay)
    assert failed(rig) == [("rollback", wait, False)]


def test_a_jobs_own_backoff_wins_over_its_queues() -> None:
    rig = SettlingRig(1, max_attempts=0, queue=LINEAR)
    rig.store.ready[0].backoff = Backoff("fixed", base=3, jitter=0)
    rig.hire()
    rig.verdict(wire.ROLLBACK)
    assert failed(rig) == [("rollback", 3, False)]
    began_at = rig.store.rolled_back[0].began_at
    assert began_at
    assert NOW - 60 < began_at <= NOW


@pytest.mark.parametrize(("attempts", "wait"), [(1, None), (2, 20), (3, 30)])
def test_a_job_not_answered_in_time_comes_at_once_then_later(attempts: int, wait: float | None) -> None:
    rig = SettlingRig(1, max_attempts=0, attempts=attempts - 1, visibility_timeout=0, queue=LINEAR)
    rig.hire()
    rig.look_twice()
    rig.wait()
    assert failed(rig) == [(TIMED_OUT, wait, False)]


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize(
    ("over_at", "failure"),
    [("limit_at", ("hard_time_limit of 100 s passed", 10, False)), ("overdue_at", (TIMED_OUT, None, False))],
)
def test_a_job_whose_time_is_over_has_failed_unless_its_verdict_was_read_between_two_looks(
    over_at: str, failure: tuple[str, float | None, bool], *, answers: bool
) -> None:
    # Given a job that is at work
    rig = SettlingRig(1, max_attempts=0, hard_time_limit=100.0, queue=LINEAR)
    rig.hire()
    rig.tick()
    # When its time has passed while the broker stood still
    setattr(rig.hand.deliveries[0], over_at, rig.now())
    rig.tick()
    if answers:
        rig.verdict(wire.COMMIT)
    rig.tick()
    rig.wait()
    assert failed(rig) == ([] if answers else [failure])


@pytest.mark.parametrize("answers", [True, False])
def test_a_worker_is_hung_up_unless_its_late_verdict_was_read_between_two_looks(*, answers: bool) -> None:
    # Given a job whose visibility timeout has passed
    rig = SettlingRig(1, max_attempts=0)
    rig.hire()
    [delivery] = rig.hand.deliveries
    delivery.overdue_at = rig.now()
    rig.look_twice()
    # When another one has passed while the broker stood still
    delivery.overdue_at = rig.now()
    rig.tick()
    assert not rig.hand.hung_up
    if answers:
        rig.verdict(wire.COMMIT)
    rig.tick()
    assert rig.hand.hung_up is not answers


@pytest.mark.parametrize(
    ("attempts", "isolated", "wait"), [(1, False, None), (3, False, None), (2, True, 20), (4, True, 40)]
)
def test_a_job_whose_worker_died_comes_again_at_once_and_if_another_dies_with_backoff(
    attempts: int, *, isolated: bool, wait: float | None
) -> None:
    rig = SettlingRig(1, max_attempts=0, attempts=attempts - 1, queue=LINEAR)
    rig.store.ready[0].isolated = isolated
    rig.hire()
    rig.queue.settling.worker_gone(rig.hand)
    rig.wait()
    assert failed(rig) == [(DIED, wait, False)]
    assert rig.store.rolled_back[0].isolated


@pytest.mark.parametrize(("isolated", "wait", "dead"), [(False, None, False), (True, 10, True)])
def test_a_job_on_its_way_when_its_connection_ended_is_charged_with_it_the_second_time(
    wait: float | None, *, isolated: bool, dead: bool
) -> None:
    rig = SettlingRig(1, max_attempts=1, queue=LINEAR)
    rig.store.ready[0].isolated = isolated
    rig.hand.commits_on_arrival = True
    rig.hire()
    rig.queue.settling.worker_gone(rig.hand)
    rig.wait()
    assert failed(rig) == [(NOT_ARRIVED, wait, dead)]
    [entry] = rig.store.rolled_back
    assert (entry.isolated, entry.counted) == (True, isolated)


def test_a_job_on_its_way_for_its_visibility_timeout_is_released() -> None:
    rig = SettlingRig(2, max_attempts=1, visibility_timeout=0)
    rig.hand.commits_on_arrival = True
    rig.hire()
    rig.look_twice()
    rig.wait()
    assert failed(rig) == []
    assert rig.counters.values["released"] == 2


@pytest.mark.parametrize(("max_attempts", "counted"), [(1, False), (2, True)])
def test_a_worker_that_dies_at_once_is_charged_with_what_it_may_have_begun_unless_that_is_the_end_of_it(
    max_attempts: int, *, counted: bool
) -> None:
    rig = SettlingRig(2, max_attempts=max_attempts, queue=LINEAR)
    rig.hand.concurrency = 1
    rig.hire()
    rig.queue.settling.worker_gone(rig.hand)
    rig.wait()
    assert [entry.counted for entry in rig.store.rolled_back] == [True, counted]
    assert [queue.dead for queue in rig.store.rolled_back] == [max_attempts == 1, False]


def test_a_worker_that_dies_is_charged_with_what_it_had_begun() -> None:
    # Given: a worker that begins one job at a time, in order, and has had these for a while
    rig = SettlingRig(3, max_attempts=2, queue=LINEAR)
    rig.hand.concurrency = 1
    rig.hire()
    for delivery in rig.hand.in_flight.values():
        delivery.handed_at -= 1
    rig.queue.settling.worker_gone(rig.hand)
    rig.wait()
    assert failed(rig) == [(DIED, None, False), (NOT_BEGUN, None, False), (NOT_BEGUN, None, False)]
    assert [entry.counted for entry in rig.store.rolled_back] == [True, False, False]
    assert all(entry.isolated for entry in rig.store.rolled_back)


def test_jobs_behind_one_that_times_out_are_released() -> None:
    rig = SettlingRig(3, max_attempts=1, visibility_timeout=0)
    rig.hand.concurrency = 1
    rig.hire()
    rig.look_twice()
    rig.wait()
    assert failed(rig) == [(TIMED_OUT, None, True)]
    assert rig.counters.values["released"] == 2


def test_a_job_that_dies_is_not_due_again_and_who_listens_hears_of_it() -> None:
    rig = SettlingRig(1, queue=LINEAR)
    rig.hire()
    rig.events.read(None, None, 1)
    rig.verdict(wire.ROLLBACK, delay=5)
    assert failed(rig) == [("rollback", None, True)]
    assert [row["event"] for row in rig.events.read(0, None, 9)["events"]] == ["dead"]


def test_a_job_that_waits_for_its_backoff_is_claimed_when_that_is_over_and_not_looked_for_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = SettlingRig(1, max_attempts=0, queue=LINEAR)
    rig.hire()
    claims, times = len(rig.store.claims), list[float]()
    monkeypatch.setattr(rig.scheduler.due_times, "add", lambda due, _now: times.extend(due))
    rig.verdict(wire.ROLLBACK)
    assert len(rig.store.claims) == claims
    assert times == [NOW + 10]


@pytest.mark.parametrize("settings", [{"remember": 60.0}, {"keep_done": 60.0}])
def test_a_kept_job_is_finished_with_its_worker_and_its_start(settings: dict[str, Any]) -> None:
    rig = SettlingRig(1, **settings)
    rig.hire()
    rig.verdict(wire.COMMIT)
    [one] = rig.store.finished
    assert (one.job.id, one.worker, one.result) == (rig.hand.jobs[0], "worker", b"")
    assert NOW - 1 < one.started_at <= NOW


@pytest.mark.parametrize(("waits", "kept"), [(True, []), (False, [RESULT_WANTED_FOR])])
def test_a_job_that_somebody_waits_for_is_kept_for_a_while_if_that_is_at_another_broker(
    kept: list[float], *, waits: bool
) -> None:
    rig = SettlingRig(1, waits=waits)
    rig.store.ready[0].result_wanted = True
    rig.hire()
    rig.verdict(wire.COMMIT)
    assert [done.job.remember for done in rig.store.finished] == kept


def test_a_job_whose_result_has_no_room_is_rolled_back() -> None:
    rig = SettlingRig(1, remember=9.0)
    rig.hire()
    rig.verdict(wire.COMMIT, detail=bytes(MAX_JOB_BYTES + 1))
    assert len(rig.store.rolled_back) == 1
    assert rig.answers == [{0: TooLargeError}]
