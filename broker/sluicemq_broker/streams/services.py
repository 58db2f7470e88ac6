"""The services that all streams of a broker use, as one object for their constructors."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sluicemq_broker.context import NewNames, Retry
from sluicemq_broker.runtime import Counters, Timer
from sluicemq_broker.store import GUARD, ServerClock
from sluicemq_broker.streams.choosing import Choosing
from sluicemq_broker.streams.publishers import Publishers

_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(frozen=True, slots=True)
class StreamServices:
    """Services for streams, beside those of queues in :class:`~sluicemq_broker.context.Context`.

    ``clock``: MongoDB's; ``passed()``: seconds that also pass while the machine sleeps; ``guard``: seconds
    for which a known tail may be used.
    """

    clock: ServerClock
    counters: Counters
    retry: Retry
    timer: Timer = field(default_factory=Timer)
    names: NewNames = field(default_factory=lambda: NewNames(Counters()))
    choosing: Choosing = field(default_factory=Choosing)
    publishers: Publishers = field(default_factory=Publishers)
    passed: Callable[[], float] = lambda: time.clock_gettime(_CLOCK)
    guard: float = GUARD
