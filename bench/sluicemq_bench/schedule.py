"""When jobs are due, and how long they took from then: times that a slow system can't make look better.

A producer that waits for the system before it sends the next job sends fewer jobs just when it is
slow, and misses the worst latencies ("coordinated omission"). Here each job is stamped with the
time at which it was *due*, and a late producer sends what is overdue at once; latency counts from
the stamp. All processes of a machine share the clock (CLOCK_MONOTONIC).
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable, Iterator
from time import monotonic_ns

from hdrh.histogram import HdrHistogram

from sluicemq_bench.plan import STAMP_BYTES

SECOND = 1_000_000_000
_LONGEST = 3600 * SECOND
_DIGITS = 3
_AWAKE = 200_000  # ns

Clock = Callable[[], int]


def sleep_until(due: int) -> None:
    """Return at ``due`` (monotonic ns), at once if it is past.

    A sleep ends some 70 us late, which is no part of what is measured, so its end is waited for awake.
    """
    left = due - monotonic_ns() - _AWAKE
    if left > 0:
        time.sleep(left / SECOND)
    while monotonic_ns() < due:
        pass


def stamps(
    start: int, jobs: int, *, rate: float | None = None, duration: float | None = None,
    clock: Clock = monotonic_ns, wait_until: Callable[[int], None] = sleep_until,
) -> Iterator[int]:  # fmt: skip
    """The stamp of each job, in monotonic ns, at the time to send it.

    With a rate the i-th is due at ``start + i / rate``, whatever became of those before; without one
    it is due as soon as it is asked for. They end after ``jobs``, or before the first that is due
    ``duration`` seconds after the start; a producer that is behind still sends what was due by then.
    """
    deadline = start + int(duration * SECOND) if duration else None
    for number in range(jobs):
        due = clock() if rate is None else start + int(number / rate * SECOND)
        if deadline is not None and due >= deadline:
            return
        if rate is not None:
            wait_until(due)
        yield due


class Payloads:
    """Jobs of one size that begin with their stamp."""

    def __init__(self, size: int) -> None:
        self._rest = os.urandom(size - STAMP_BYTES)

    def of(self, stamp: int) -> bytes:
        """The job that was due at ``stamp``."""
        return stamp.to_bytes(STAMP_BYTES, "little") + self._rest


def stamp_of(payload: bytes) -> int:
    """When this job was due."""
    return int.from_bytes(payload[:STAMP_BYTES], "little")


class Times:
    """Nanoseconds, kept as they come (8 bytes each), so that measuring costs next to nothing."""

    def __init__(self) -> None:
        self._values = array("q")
        self.add = self._values.append

    def encoded(self) -> str:
        """As an HDR histogram, in its own text form."""
        histogram = empty_histogram()
        for value in self._values:
            histogram.record_value(min(max(value, 1), _LONGEST))
        text: bytes = histogram.encode()
        return text.decode()


def empty_histogram() -> HdrHistogram:
    """1 ns to 1 h, exact to 3 digits."""
    return HdrHistogram(1, _LONGEST, _DIGITS)


def merged(texts: list[str]) -> HdrHistogram:
    """One histogram of the encoded ones of several processes."""
    histogram = empty_histogram()
    for text in texts:
        histogram.decode_and_add(text.encode())
    return histogram
