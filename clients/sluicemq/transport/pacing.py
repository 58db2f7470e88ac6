"""Pace of the messages to a broker, for all roles."""

from __future__ import annotations

import time
from typing import Final

#: Messages in flight at once, for a producer or publisher.
IN_FLIGHT: Final = 8
#: With as many in flight, only full messages follow, so that they grow with the load.
EAGER: Final = 2
#: Seconds until a broker that could not do something just now is asked again.
RETRY_AFTER: Final = 0.5

_GOES_ON: Final = getattr(time, "CLOCK_BOOTTIME", None)


def awake_or_not() -> float:
    """Return the seconds of a clock that goes on while the machine is suspended, where there is one."""
    return time.monotonic() if _GOES_ON is None else time.clock_gettime(_GOES_ON)
