"""Durations of the hub's turns: during one turn no other client is served."""

from __future__ import annotations

import time
from typing import Any, Final

from gevent import get_hub

from sluicemq_broker.runtime.counters import Counters
from sluicemq_broker.runtime.counts import Count, Timing

#: Seconds; a longer turn is counted as ``slow_turns`` and logged.
SLOW: Final = 0.1
#: Seconds between two checks how late timers are.
LOOK: Final = 0.25

_FIRST, _LAST = 2, -2  # libev's priorities


class Turns:
    """Measures the turns of this thread's hub.

    In a turn, between two looks at its sockets and clocks, the hub reads what has come, runs timers, and lets
    every greenlet run until it waits. A client whose bytes came at the beginning waits for the end. The time
    by the clock is ``longest``; ``longest_cpu`` is what this thread computed: a busy machine, or a process
    that was stopped, is not taken for work.

    Measuring takes 1.2 us a turn, and under load a turn serves many clients. A timer every :data:`LOOK`
    seconds measures how late it runs (``hub_delay``), which is how late all timers run.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._longest = self._longest_cpu = 0.0
        self._began = 0.0
        self._cpu = 0.0
        self._watchers: list[Any] = []
        self._due = 0.0
        self.count = 0
        """Turns so far."""
        self.busy = 0.0
        """Seconds that all turns took."""

    def start(self) -> None:
        """Begin to measure; harmless if it has begun."""
        if self._watchers:
            return
        loop = get_hub().loop
        before_all = loop.check(ref=False, priority=_FIRST)
        after_all = loop.prepare(ref=False, priority=_LAST)
        self._watchers = [before_all, after_all]
        self._began, self._cpu = time.monotonic(), time.thread_time()
        before_all.start(self._begin)
        after_all.start(self._end)
        timer = loop.timer(LOOK, LOOK, ref=False)
        self._watchers.append(timer)
        self._wait(timer)

    def stop(self) -> None:
        """End measuring; harmless before start, or twice."""
        for watcher in self._watchers:
            watcher.stop()
            watcher.close()
        self._watchers = []

    def take(self) -> tuple[float, float]:
        """Return the longest turn since the last call, by the clock and by CPU time, in seconds."""
        longest = self._longest, self._longest_cpu
        self._longest = self._longest_cpu = 0.0
        return longest

    def _wait(self, timer: Any) -> None:
        self._due = time.monotonic() + LOOK
        timer.again(self._measure_delay, timer, update=True)

    def _measure_delay(self, timer: Any) -> None:
        self._counters.took(Timing.HUB_DELAY, [max(0.0, time.monotonic() - self._due)])
        self._wait(timer)

    def _begin(self) -> None:
        self._began = time.monotonic()

    def _end(self) -> None:
        cpu = time.thread_time()
        computed, self._cpu = cpu - self._cpu, cpu
        took = time.monotonic() - self._began
        self.count += 1
        self.busy += took
        if took > self._longest or computed > self._longest_cpu:
            self._longest = max(self._longest, took)
            self._longest_cpu = max(self._longest_cpu, computed)
        if took > SLOW:
            text = f"one turn of the hub took {took:.3f} s, {computed:.3f} s of it computing; clients waited"
            self._counters.notice(Count.SLOW_TURNS, text)
