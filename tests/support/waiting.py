"""Wait for what a broker does, with a time-out."""

import time
from collections.abc import Callable
from typing import Any

from sluicemq import UnavailableError

#: Seconds that a test waits for what must happen: a busy machine is slow, so only a failure takes them.
TIMEOUT = 60.0
_LONGEST_PAUSE = 0.1


def wait_until(
    condition: Callable[[], Any], timeout: float = TIMEOUT, what: str = "it", pause: float = 0.01
) -> Any:
    """Poll ``condition`` until it is true and return its value; AssertionError after ``timeout`` s.

    ``pause``: seconds between two looks, more for one that asks much. After a while it is a twentieth of what
    was waited, up to :data:`_LONGEST_PAUSE`: each look asks a broker or MongoDB, which takes them CPU.

    A broker that could count nothing, as its MongoDB did not answer for seconds, is asked again: on a busy
    machine that happens.
    """
    began, why = time.monotonic(), ""
    while True:
        try:
            if value := condition():
                return value
        except UnavailableError as error:
            if "nothing can be counted" not in str(error):
                raise
            why = f": {error}"
        waited = time.monotonic() - began
        assert waited < timeout, f"{what} did not happen within {timeout} s{why}"
        time.sleep(max(pause, min(waited / 20, _LONGEST_PAUSE)))
