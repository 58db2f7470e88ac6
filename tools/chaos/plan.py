"""Which faults a chaos run has, and when: the same ones for the same seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

from chaos.fault_kinds import Fault

#: Seconds between the beginnings of two faults, on average: so two or three go on at one time.
PACE: Final = 4.0
#: Seconds for which faults begin, and seconds without any, in which all has time to recover.
_ROUND: Final = 25.0
_QUIET: Final = 8.0
_FIRST: Final = 2.0  # seconds without a fault at the beginning
_TRIES: Final = 20  # to find a victim that is free


class Step(NamedTuple):
    """One fault of a plan; times are seconds from the beginning."""

    at: float
    until: float
    fault: str
    victim: str

    def __str__(self) -> str:
        return f"{self.at:7.1f} to {self.until:6.1f} s  {self.fault}: {self.victim}"


def plan(
    seed: int, seconds: float, faults: Sequence[Fault], may: Mapping[str, frozenset[str]], pace: float = PACE
) -> list[Step]:
    """Return the faults of a run that lasts so long.

    All kinds of faults come in turn, shuffled anew each time, so that a long run has all of them. Now and
    then all is well for a while: else nothing would run that a fault can hit. ``may``: what may happen to
    the programs of the load.
    """
    random = Random(seed)
    steps: list[Step] = []
    deck: list[Fault] = []
    at, rest = _FIRST, _FIRST + _ROUND
    while at < seconds and faults:
        if at > rest:
            at = max([rest, *(step.until for step in steps)]) + _QUIET
            rest = at + _ROUND
        deck = deck or random.sample(faults, len(faults))
        if step := _step(random, deck.pop(), at, seconds, _touched(steps, faults, at), may):
            steps.append(step)
        at += random.expovariate(1 / pace)
    return steps


def _step(
    random: Random,
    fault: Fault,
    at: float,
    end: float,
    touched: frozenset[str],
    may: Mapping[str, frozenset[str]],
) -> Step | None:
    """Return this fault with a victim that is free; None if all are busy, or it would last beyond the end."""
    kinds = [kind for kind in fault.victims(may) if kind]
    until = at + random.uniform(*fault.seconds)
    if not kinds or until > end:
        return None
    tried = (random.choice(random.choice(kinds)) for _ in range(_TRIES))
    victim = next((one for one in tried if not fault.touches(one) & touched), None)
    return Step(round(at, 1), round(until, 1), fault.name, victim) if victim else None


def _touched(steps: Sequence[Step], faults: Sequence[Fault], at: float) -> frozenset[str]:
    """Return the places and links that are not free at this time."""
    by_name = {fault.name: fault for fault in faults}
    going_on = (step for step in steps if step.until + 1.0 > at)
    return frozenset(thing for step in going_on for thing in by_name[step.fault].touches(step.victim))
