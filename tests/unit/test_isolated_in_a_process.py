"""Jobs that are to run alone: nobody waits without a bound, neither they nor the others of the process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluicemq import Job
from sluicemq.transport.alone import AT_MOST, CHOICES, PAUSE, Alone


class Part:
    """A part that has jobs, or may get some, as the test says."""

    bound = 0
    busy = False


class Worker:
    """A worker with parts, and with jobs that have begun."""

    def __init__(self, *parts: Part) -> None:
        self.parts = parts
        self.at_work: list[Job | None] = []
        self.changes = 0

    def changed(self) -> None:
        self.changes += 1


class Process:
    """A process of two workers, each with one part: one gets a job that is to run alone."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.suspect, self.other = Part(), Part()
        self.worker = Worker(self.other)
        self.alone = Alone(lambda: self.now)
        self.alone.join(Worker(self.suspect))
        self.alone.join(self.worker)

    def comes(self) -> bool:
        """A job comes that is to run alone; returns whether it begins."""
        return self.alone.admits(self.suspect, alone=True)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.alone.end_when_due(self.suspect)

    def in_vain(self) -> None:
        """Wait for what does not end."""
        assert not self.comes()
        assert self.alone.part is self.suspect
        self.pass_time(AT_MOST)
        assert self.alone.part is None


def job(receipt: bytes) -> Job:
    made = Job()
    made.receipt = receipt
    return made


@pytest.fixture
def process() -> Process:
    return Process()


def test_a_choice_in_vain_ends_and_is_repeated_after_a_pause(process: Process) -> None:
    process.worker.at_work = [job(b"long")]
    process.in_vain()
    assert process.alone.may_request(process.other)
    assert not process.comes()
    assert process.alone.part is None
    process.pass_time(PAUSE)
    process.in_vain()


def test_the_pause_ends_with_the_jobs_that_were_at_work(process: Process) -> None:
    process.worker.at_work = [job(b"long")]
    process.in_vain()
    process.worker.at_work = [job(b"later")]
    assert not process.comes()
    assert process.alone.part is process.suspect


def test_the_last_choice_of_a_row_has_its_job_beside_what_is_still_at_work(process: Process) -> None:
    process.worker.at_work = [job(b"long")]
    for _ in range(CHOICES - 1):
        process.in_vain()
        process.pass_time(PAUSE)
    assert not process.comes()
    process.pass_time(AT_MOST)
    assert process.alone.may_request(process.suspect)
    assert process.comes()
    assert not process.alone.may_request(process.other)
    # And the row begins anew
    process.pass_time(AT_MOST)
    process.in_vain()


def hung(part: Part) -> None:
    part.bound = 1


def asking(part: Part) -> None:
    part.busy = True


@pytest.mark.parametrize("state", [hung, asking])
def test_a_part_that_never_rests_is_not_waited_for(process: Process, state: Callable[[Part], None]) -> None:
    state(process.other)
    for _ in range(CHOICES - 1):
        process.in_vain()
    assert not process.comes()
    process.pass_time(AT_MOST)
    assert process.comes()


def test_others_go_on_beside_a_job_that_has_run_alone_for_some_seconds(process: Process) -> None:
    assert process.comes()
    changes = process.worker.changes
    process.pass_time(AT_MOST - 1)
    assert not process.alone.may_request(process.other)
    process.pass_time(1)
    assert process.alone.may_request(process.other)
    assert process.worker.changes > changes
