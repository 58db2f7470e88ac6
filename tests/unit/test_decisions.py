"""Decisions as tables: how a delivery ended, what becomes of the job, and how long it waits."""

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadHeadersError, DuplicateError, TooLargeError
from sluicemq.protocol.readable import MOST_TRACEBACK
from sluicemq.protocol.rules import BACKOFF_BOUNDS, BACKOFF_KINDS
from sluicemq_broker.config import MAX_JOB_BYTES, QueueSettings
from sluicemq_broker.job import Backoff, Failure, Job
from sluicemq_broker.queue import Onward, Verdict
from sluicemq_broker.queue.decisions import (
    DIED,
    NOT_ARRIVED,
    NOT_BEGUN,
    TIMED_OUT,
    AwaitChildren,
    Commit,
    Decision,
    PassOn,
    Release,
    Return,
    on_death,
    on_refusal,
    on_time_out,
    on_verdict,
    reason_of_death,
)
from sluicemq_broker.runtime import Count
from support.jobs import NOW

LINEAR = Backoff("linear", base=10, jitter=0)
ONWARD = Onward("next", b"on", {"priority": 1})


def job_with(attempts: int = 1, *, isolated: bool = False, unanswered: int = 0, **options: Any) -> Job:
    job = Job("job", b"payload", **{"max_attempts": 99, **options})
    job.attempts, job.isolated, job.unanswered = attempts, isolated, unanswered
    return job


def brief(decision: Decision) -> Any:
    """Return a decision; of a return: why, due in how many seconds, and True of what it is or does."""
    if not isinstance(decision, Return):
        return decision
    entry = decision.entry
    flags = [name for name in ("dead", "isolated", "counted") if getattr(entry, name)]
    due = None if entry.due is None else entry.due - NOW
    return (entry.reason, due, " ".join(flags), decision.counts_as)


@pytest.mark.parametrize(
    ("kind", "detail", "job", "decision"),
    [
        (wire.COMMIT, b"42", {}, Commit(b"42")),
        (wire.COMMIT, "text", {}, Commit(b"text")),
        (wire.FORWARD, b"", {}, PassOn(ONWARD)),
        (wire.FAN_OUT, b"42", {}, AwaitChildren((ONWARD,), b"42")),
        (wire.RELEASE, b"", {"max_attempts": 1}, ("", 1.0, "", Count.RETURNED)),
        (wire.ROLLBACK, "why", {}, ("why", 10, "counted", Count.ROLLED_BACK)),
        (wire.ROLLBACK, b"\xff", {}, ("\ufffd", 10, "counted", Count.ROLLED_BACK)),
        (wire.ROLLBACK, b"", {"attempts": 3}, ("rollback", 30, "counted", Count.ROLLED_BACK)),
        (wire.ROLLBACK, b"", {"backoff": Backoff("none")}, ("rollback", None, "counted", Count.ROLLED_BACK)),
        (wire.ROLLBACK, b"", {"max_attempts": 2}, ("rollback", 10, "counted", Count.ROLLED_BACK)),
        (wire.ROLLBACK, b"", {"max_attempts": 1}, ("rollback", None, "dead counted", Count.ROLLED_BACK)),
        (wire.REJECT, "bad", {}, ("bad", None, "dead counted", Count.REJECTED)),
    ],
)
def test_a_verdict_decides(kind: str, detail: Any, job: dict[str, Any], decision: Any) -> None:
    verdict = Verdict(b"receipt", kind, detail, onward=(ONWARD,))
    assert brief(on_verdict(verdict, job_with(**job), "w", LINEAR, NOW)) == decision


@pytest.mark.parametrize(("delay", "due"), [(None, 10), (0.0, None), (7.5, 7.5)])
def test_a_delay_wins_over_the_backoff(delay: float | None, due: float | None) -> None:
    verdict = Verdict(b"receipt", wire.ROLLBACK, delay=delay)
    assert brief(on_verdict(verdict, job_with(), "w", LINEAR, NOW))[1] == due


def test_a_release_comes_again_a_moment_later_or_as_it_says() -> None:
    for delay, decision in [
        (None, ("", 1.0, "", Count.RETURNED)),
        (60.0, ("", 60.0, "", Count.RETURNED)),
        (0.0, Release()),
    ]:
        verdict = Verdict(b"receipt", wire.RELEASE, delay=delay)
        assert brief(on_verdict(verdict, job_with(), "w", LINEAR, NOW)) == decision


@pytest.mark.parametrize("kind", [wire.ROLLBACK, wire.RELEASE])
def test_a_delay_beyond_the_time_to_live_is_refused(kind: str) -> None:
    job = job_with(expires_at=NOW + 5)
    on_verdict(Verdict(b"receipt", kind, delay=4.9), job, "w", LINEAR, NOW)
    with pytest.raises(BadHeadersError, match=r"job 'job' would expire 1\.000 s before it is due"):
        on_verdict(Verdict(b"receipt", kind, delay=6), job, "w", LINEAR, NOW)


@pytest.mark.parametrize("kind", [wire.COMMIT, wire.FAN_OUT])
@pytest.mark.parametrize(
    ("job", "most"),
    [
        ({}, None),
        ({"remember": 9.0}, MAX_JOB_BYTES),
        ({"keep_done": 9.0, "size": 1000}, MAX_JOB_BYTES - 1000),
    ],
)
def test_a_kept_result_has_room_in_one_document(kind: str, job: dict[str, Any], most: int | None) -> None:
    fits, too_large = (Verdict(b"", kind, bytes((most or MAX_JOB_BYTES) + over)) for over in (0, 1))
    assert on_verdict(fits, job_with(**job), "w", LINEAR, NOW).size == len(fits.detail)
    if most is None:
        assert on_verdict(too_large, job_with(**job), "w", LINEAR, NOW).size == len(too_large.detail)
    else:
        with pytest.raises(TooLargeError, match=f"{most} can be kept"):
            on_verdict(too_large, job_with(**job), "w", LINEAR, NOW)


@pytest.mark.parametrize(
    ("job", "decision"),
    [
        ({}, ("DUPLICATE: there", 10, "counted", Count.ROLLED_BACK)),
        ({"max_attempts": 1}, ("DUPLICATE: there", None, "dead counted", Count.ROLLED_BACK)),
    ],
)
def test_a_verdict_that_can_not_be_carried_out_rolls_the_job_back(job: dict[str, Any], decision: Any) -> None:
    assert brief(on_refusal(DuplicateError("there", "job"), job_with(**job), "w", LINEAR, NOW)) == decision


@pytest.mark.parametrize(
    ("job", "begun", "arrived", "decision"),
    [
        ({}, True, True, (DIED, None, "isolated counted", Count.ROLLED_BACK)),
        ({"isolated": True}, True, True, (DIED, 10, "isolated counted", Count.ROLLED_BACK)),
        ({"max_attempts": 1}, True, True, (DIED, None, "dead isolated counted", Count.ROLLED_BACK)),
        ({"max_attempts": 1}, False, True, (NOT_BEGUN, None, "isolated", Count.RETURNED)),
        ({"max_attempts": 1}, False, False, (NOT_ARRIVED, None, "isolated", Count.RETURNED)),
        (
            {"max_attempts": 1, "isolated": True},
            False,
            False,
            (NOT_ARRIVED, 10, "dead isolated counted", Count.ROLLED_BACK),
        ),
        ({"unanswered": 1}, True, True, (DIED, None, "isolated counted", Count.ROLLED_BACK)),
        ({"unanswered": 2}, True, True, (DIED, None, "dead isolated counted", Count.ROLLED_BACK)),
        ({"unanswered": 2}, False, True, (NOT_BEGUN, None, "isolated", Count.RETURNED)),
        (
            {"unanswered": 9, "max_attempts": 0},
            True,
            True,
            (DIED, None, "isolated counted", Count.ROLLED_BACK),
        ),
    ],
)
def test_a_workers_end_decides(job: dict[str, Any], decision: Any, *, begun: bool, arrived: bool) -> None:
    reason = reason_of_death(begun=begun, arrived=arrived)
    decided = on_death(job_with(**job), "w", LINEAR, NOW, reason, max_unanswered=3, begun=begun)
    assert brief(decided) == decision


def test_a_worker_that_is_taken_for_dead_is_said_to_be_that_with_what_was_seen() -> None:
    seen = "nothing heard for 6 s"
    assert reason_of_death(begun=True, seen=seen) == f"the worker is taken for dead: {seen}"
    assert reason_of_death(begun=False, seen=seen) == (
        f"the worker is taken for dead, it had not begun this job: {seen}"
    )
    assert reason_of_death(begun=False, arrived=False, seen=seen) == NOT_ARRIVED


@pytest.mark.parametrize(
    ("job", "begun", "decision"),
    [
        ({}, True, (TIMED_OUT, None, "counted", Count.ROLLED_BACK)),
        ({"attempts": 2}, True, (TIMED_OUT, 20, "counted", Count.ROLLED_BACK)),
        ({"max_attempts": 1}, True, (TIMED_OUT, None, "dead counted", Count.ROLLED_BACK)),
        ({"max_attempts": 1}, False, Release()),
        ({"unanswered": 2}, True, (TIMED_OUT, None, "dead counted", Count.ROLLED_BACK)),
    ],
)
def test_a_visibility_timeout_decides(job: dict[str, Any], decision: Any, *, begun: bool) -> None:
    assert brief(on_time_out(job_with(**job), "w", LINEAR, NOW, max_unanswered=3, begun=begun)) == decision


EVENLY = Random(4).random

backoffs = st.builds(
    Backoff,
    kind=st.sampled_from(BACKOFF_KINDS),
    **{name: st.floats(*bounds) for name, bounds in BACKOFF_BOUNDS.items()},
)
attempts = st.integers(1, 1_000_000)


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        (Backoff(jitter=0), [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600]),
        (Backoff("exponential", base=2, factor=3, cap=50, jitter=0), [2, 6, 18, 50]),
        (Backoff("linear", base=2, cap=7, jitter=0), [2, 4, 6, 7]),
        (Backoff("fixed", base=5, jitter=0), [5, 5, 5]),
        (Backoff("fixed", base=5, cap=3, jitter=0), [3, 3]),
        (Backoff("none"), [0, 0, 0]),
        (Backoff(base=0), [0] * 2000),
    ],
)
def test_each_kind_grows_as_it_is_drawn(backoff: Backoff, waits: list[float]) -> None:
    assert [backoff.wait(attempt) for attempt in range(1, len(waits) + 1)] == waits


@given(backoffs, attempts, st.floats(0, 1))
def test_no_wait_is_negative_endless_or_beyond_its_cap(backoff: Backoff, attempt: int, chance: float) -> None:
    wait = backoff.wait(attempt, lambda: chance)
    assert math.isfinite(wait)
    assert 0 <= wait <= backoff.cap * (1 + backoff.jitter)


@given(backoffs, attempts)
def test_a_later_failure_never_waits_less(backoff: Backoff, attempt: int) -> None:
    even = backoff._replace(jitter=0.0)
    assert even.wait(attempt + 1) >= even.wait(attempt)


@given(backoffs, attempts)
def test_chance_moves_a_wait_by_its_share_and_no_further(backoff: Backoff, attempt: int) -> None:
    even = backoff._replace(jitter=0.0).wait(attempt)
    assert backoff.wait(attempt, lambda: 0.5) == even
    assert backoff.wait(attempt, lambda: 0.0) == pytest.approx(even * (1 - backoff.jitter))
    assert backoff.wait(attempt, lambda: 1.0) == pytest.approx(even * (1 + backoff.jitter))


def test_by_default_a_job_is_tried_again_for_an_hour_at_least() -> None:
    settings = QueueSettings()
    waits = [settings.retries.wait(number, lambda: 0.0) for number in range(1, settings.max_attempts)]
    assert 3600 <= sum(waits) <= 2 * 3600


def test_jobs_that_failed_together_come_again_at_different_times() -> None:
    waits = [Backoff().wait(1, EVENLY) for _ in range(100)]
    assert len(set(waits)) == 100
    assert min(waits) < 0.92
    assert max(waits) > 1.08


def test_what_a_worker_says_wrongly_of_a_failure_is_left_out() -> None:
    assert Failure.read({"type": 7, "place": None, "traceback": "text", "seconds": -1.0}) == Failure()
    assert [Failure.read({"seconds": said}).seconds for said in (1.5, math.nan, "1")] == [1.5, None, None]
    assert len(Failure.read({"traceback": b"x" * 10 * MOST_TRACEBACK}).traceback) == MOST_TRACEBACK
