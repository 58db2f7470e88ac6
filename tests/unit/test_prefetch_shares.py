"""Shares of a prefetch: in any order of events, no more jobs are with a worker than it wants."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

import pytest

from sluicemq.transport.shares import Grant, Shares, shares


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
