"""Times at which jobs are due, and latencies from then, which a slow system can't make look better.

A producer that waits for the system before it sends the next job sends fewer jobs just when the system is
slow, and misses the worst latencies ("coordinated omission"). Here each job is stamped with the time at which
it was *due*, and a late producer sends overdue jobs at once; latency counts from the stamp. All processes of
a machine share the clock (CLOCK_MONOTONIC).
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

    A sleep ends about 70 us late, which is no part of the latency, so the rest is spent awake.
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
    """Yield the stamp of each job, in monotonic ns, at the time to send it.

    With a rate, job i is due at ``start + i / rate``, whatever happened to those before; without one it is
    due at once. The stamps end after ``jobs``, or before the first that is due ``duration`` seconds after the
    start; a producer that is behind still sends the jobs that were due by then.
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
        """Return the job that was due at ``stamp``."""
        return stamp.to_bytes(STAMP_BYTES, "little") + self._rest


def stamp_of(payload: bytes) -> int:
    """Return when this job was due."""
    return int.from_bytes(payload[:STAMP_BYTES], "little")


class Times:
    """Nanoseconds, kept unsorted (8 bytes each), so that measuring costs almost nothing."""

    def __init__(self) -> None:
        self._values = array("q")
        self.add = self._values.append

    def encoded(self) -> str:
        """Return them as an HDR histogram, in its own text form."""
        histogram = empty_histogram()
        for value in self._values:
            histogram.record_value(min(max(value, 1), _LONGEST))
        text: bytes = histogram.encode()
        return text.decode()


def empty_histogram() -> HdrHistogram:
    """Return a histogram for 1 ns to 1 h, exact to 3 digits."""
    return HdrHistogram(1, _LONGEST, _DIGITS)


def merged(texts: list[str]) -> HdrHistogram:
    """Return one histogram of the encoded ones of several processes."""
    histogram = empty_histogram()
    for text in texts:
        histogram.decode_and_add(text.encode())
    return histogram
