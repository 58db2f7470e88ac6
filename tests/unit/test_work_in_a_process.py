"""Work in one process: shares of a prefetch, interrupted calls, jobs that run alone."""

import sys
import threading
from collections import deque
from collections.abc import Callable
from random import Random
from types import FrameType
from typing import Any

import pytest

from sluicemq import Job
from sluicemq.time_limits import Interruptible, SoftTimeLimitError
from sluicemq.transport.alone import AT_MOST, CHOICES, PAUSE, Alone
from sluicemq.transport.shares import Grant, Shares, shares
from support.waiting import TIMEOUT


@pytest.mark.parametrize(
    ("prefetch", "connected", "expected"),
    [(10, 3, [4, 3, 3]), (1, 3, [1, 0, 0]), (4, 4, [1, 1, 1, 1]), (7, 1, [7]), (5, 0, [])],
)
def test_a_prefetch_is_shared_evenly_and_wholly(prefetch: int, connected: int, expected: list[int]) -> None:
    assert shares(prefetch, connected) == expected


class Part:
    """A part whose I/O thread and broker do one step at a time, whenever the test says so."""

    def __init__(self, number: int, everything: Shares) -> None:
        self.number = number
        self.open = 0
        self.share: int | None = None
        self.seen: Grant | None = None
        self.shares = everything
        self.calls: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self.requests: deque[int] = deque()  # credits on their way to the broker, and back
        self.epochs = 0
        self.known = self.credit = self.held = 0
        everything.add(self)

    @property
    def bound(self) -> int:
        return max(self.credit, self.held)

    @property
    def busy(self) -> bool:
        return bool(self.requests)

    def give_back(self) -> None:
        """No job is to run alone here."""

    def call(self, function: Callable[..., None], *args: object) -> None:
        self.calls.append((function, args))

    def set_share(self, grant: Grant) -> None:
        if grant.epoch == self.open and grant.share != self.share:
            self.share = grant.share
            self.credit = max(self.credit, grant.share)
            self.requests.append(grant.share)
        self.seen = grant
        if grant.most > grant.share:
            self.shares.changed()

    def connect(self) -> None:
        if not self.open:
            self.epochs += 1
            self.open, self.share = self.epochs, None
            self.shares.changed()

    def lose(self) -> None:
        self.open = self.known = self.credit = self.held = 0
        self.requests.clear()
        self.shares.changed()

    def run(self) -> None:
        if self.calls:
            function, args = self.calls.popleft()
            function(*args)

    def answer(self) -> None:
        """The broker takes in a READY, and its answer arrives."""
        if self.requests:
            self.known = self.requests.popleft()
            if not self.requests and self.known < self.credit:
                self.credit = self.known
                self.shares.changed()

    def deliver(self) -> None:
        if self.held < self.known:
            self.held += 1

    def settle(self) -> None:
        if self.held:
            shrinks = self.held > (self.share or 0)
            self.held -= 1
            if shrinks:
                self.shares.changed()


@pytest.mark.one_in(6)
@pytest.mark.parametrize("seed", range(300))
def test_no_order_of_events_brings_more_jobs_than_the_prefetch(seed: int) -> None:
    rng = Random(seed)
    prefetch = rng.randint(1, 8)
    everything = Shares(prefetch, [None])
    parts = [Part(number, everything) for number in range(rng.randint(1, 4))]
    steps = [Part.connect, Part.lose, *[Part.run, Part.answer, Part.deliver, Part.settle] * 4]
    for _ in range(1000):
        rng.choice(steps)(rng.choice(parts))
        assert sum(part.held for part in parts) <= prefetch
        assert sum(max(part.held, part.known) for part in parts) <= prefetch
    # In the end the whole prefetch is with the brokers that are there
    for part in parts:
        part.connect()
    for _ in range(100):
        for part in parts:
            part.run()
            part.answer()
            part.settle()
    assert sorted(part.known for part in parts) == sorted(shares(prefetch, len(parts)))


def interrupted() -> None:
    call = Interruptible()
    begun = threading.Event()

    def handler() -> None:
        begun.set()
        while True:
            pass

    other = threading.Thread(target=lambda: begun.wait(TIMEOUT) and call.interrupt(SoftTimeLimitError))
    other.start()
    with pytest.raises(SoftTimeLimitError):
        call.call(handler)
    other.join(TIMEOUT)


def lengths() -> list[int]:
    return [len(word) for word in ("a", "b")]


def test_what_is_traced_after_an_interrupted_call_ends() -> None:
    """A debugger traces it; CPython may be left looking for an error that was taken back."""
    ended = threading.Event()

    def trace(_frame: FrameType, _event: str, _argument: object) -> Any:
        return trace

    def traced() -> None:
        interrupted()
        sys.settrace(trace)
        lengths()
        sys.settrace(None)
        ended.set()

    threading.Thread(target=traced, daemon=True).start()
    assert ended.wait(TIMEOUT)


class PartOfProcess:
    """A part that has jobs, or may get some, as the test says."""

    bound = 0
    busy = False


class Worker:
    """A worker with parts, and with jobs that have begun."""

    def __init__(self, *parts: PartOfProcess) -> None:
        self.parts = parts
        self.at_work: list[Job | None] = []
        self.changes = 0

    def changed(self) -> None:
        self.changes += 1


class Process:
    """A process of two workers, each with one part: one gets a job that is to run alone."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.suspect, self.other = PartOfProcess(), PartOfProcess()
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


def hung(part: PartOfProcess) -> None:
    part.bound = 1


def asking(part: PartOfProcess) -> None:
    part.busy = True


@pytest.mark.parametrize("state", [hung, asking])
def test_a_restless_part_is_not_waited(process: Process, state: Callable[[PartOfProcess], None]) -> None:
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
