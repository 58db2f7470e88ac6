"""Every moment that can be reached, breadth first: what is wrong is found by the shortest way to it."""

from __future__ import annotations

import gc
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

from protocol_model.protocol import ended, steps
from protocol_model.world import Bounds, Moment, Rules, World


class Step(Protocol):
    """One step: in words, what it leads to, what is wrong with it, and whether it is a fault or a choice."""

    @property
    def words(self) -> str: ...
    @property
    def after(self) -> Moment: ...
    @property
    def complaint(self) -> str: ...
    @property
    def fault(self) -> bool: ...


class Found(NamedTuple):
    """What an exploration came to: moments, steps between them, and the first thing that is wrong.

    ``trace``: the words of each step to it; empty if nothing is wrong.
    """

    moments: int
    steps: int
    complaint: str
    trace: list[str]
    seconds: float


def explore(rules: Rules, bounds: Bounds, *, looking_for: str = "", most: int = 5_000_000) -> Found:
    """Go over all moments within the bounds; stop at the first complaint that begins with ``looking_for``.

    When there is none: every moment must have a way, without a fault and without a new push, to one
    in which no job is left ("stuck" otherwise).
    """
    following = partial(steps, rules=rules, bounds=bounds)
    return search(World.beginning(bounds), following, ended, looking_for, most)


def search(
    first: Moment,
    steps: Callable[[Moment], Iterator[Step]],
    ended: Callable[[Moment], bool],
    looking_for: str,
    most: int,
) -> Found:
    """Go over all moments that come after the first one, as :func:`explore`; ``ended``: no job is left."""
    gc.disable()  # nothing here is garbage in a circle, and it takes half of the time
    try:
        return _Exploration(first, steps, ended, looking_for, most).run()
    finally:
        gc.enable()


class _Exploration:
    def __init__(
        self,
        first: Moment,
        steps: Callable[[Moment], Iterator[Step]],
        ended: Callable[[Moment], bool],
        looking_for: str,
        most: int,
    ) -> None:
        self.steps, self.ended, self.looking_for, self.most = steps, ended, looking_for, most
        self.numbers: dict[Moment, int] = {first: 0}
        self.parents = array("q", [-1])
        self.queue: deque[Moment] = deque([first])
        self.good = array("q")  # numbers of moments in which no job is left
        self.sources = array("q")  # the steps that are no faults: from, to
        self.targets = array("q")
        self.taken = 0
        self.parts: dict[object, object] = {}
        self.began = time.perf_counter()

    def run(self) -> Found:
        while self.queue:
            moment = self.queue.popleft()
            here = self.numbers[moment]
            if self.ended(moment):
                self.good.append(here)
            for step in self.steps(moment):
                self.taken += 1
                if step.complaint:
                    if step.complaint.startswith(self.looking_for):
                        return self._found(step.complaint, [*self._words(here), step.words])
                    continue
                there = self._number(step.after, here)
                if not step.fault and there != here:
                    self.sources.append(here)
                    self.targets.append(there)
            assert len(self.numbers) <= self.most, "more moments than this exploration is meant for"
        stuck = self._stuck()
        if stuck is None:
            return self._found("", [])
        return self._found("stuck: a job has no way to its end", self._words(stuck))

    def _number(self, moment: Moment, parent: int) -> int:
        number = self.numbers.get(moment)
        if number is None:
            number = len(self.numbers)
            moment = tuple(self.parts.setdefault(part, part) for part in moment)
            self.numbers[moment] = number
            self.parents.append(parent)
            self.queue.append(moment)
        return number

    def _stuck(self) -> int | None:
        """The first moment from which no moment without jobs is reached."""
        before: list[list[int]] = [[] for _ in self.parents]
        for source, target in zip(self.sources, self.targets, strict=True):
            before[target].append(source)
        well = bytearray(len(self.parents))
        ways = list(self.good)
        for way in ways:
            well[way] = 1
        while ways:
            for state in before[ways.pop()]:
                if not well[state]:
                    well[state] = 1
                    ways.append(state)
        at = well.find(0)
        return None if at < 0 else at

    def _words(self, number: int) -> list[str]:
        """The steps from the beginning, found again between each moment and the next."""
        chain = [number]
        while self.parents[chain[-1]] >= 0:
            chain.append(self.parents[chain[-1]])
        wanted = set(chain)
        by_number = {number: moment for moment, number in self.numbers.items() if number in wanted}
        words = []
        for former, following in zip(chain[:0:-1], chain[-2::-1], strict=True):
            after = by_number[following]
            step = next(s for s in self.steps(by_number[former]) if s.after == after)
            words.append(step.words)
        return words

    def _found(self, complaint: str, trace: list[str]) -> Found:
        seconds = time.perf_counter() - self.began
        return Found(len(self.numbers), self.taken, complaint, trace, seconds)
