"""The time of a turn of the hub, which all connections share: it ends soon however many have sent."""

from __future__ import annotations

import time
from time import monotonic, thread_time
from typing import Any, Final

from gevent import get_hub

from sluicemq_devices.hub.callbacks import shielded
from sluicemq_devices.hub.fair_line import Line, Turn
from sluicemq_devices.hub.time_used import TimeUsed
from sluicemq_devices.hub.turns import NEXT_TURN

#: Seconds of a turn, after which connections that have not been read wait for the next.
_MOST: Final = 0.008
#: Seconds in which connections that wait are read in a crowd, before the hub looks who else has sent.
_SLICE: Final = 0.0002
#: Seconds of CPU during which peers waited all the time: then it is a crowd.
_SOON: Final = 0.010
#: Seconds for which slices are short after a light peer has had to wait. Without one they are long: what
#: heavy peers push in one turn is written to MongoDB in one batch, and small batches cost more.
_LIGHT_FOR: Final = 0.25
_LAST: Final = -1  # libev's priority: after sockets, so that a light peer that has just sent is next


class TurnTime:
    """Turns for connections that have to wait because a turn has been long, or others wait.

    Each connection is read in short pieces. In a crowd with light peers the hub looks at its sockets after
    each piece, so a light peer waits for one piece of one heavy peer, however many there are
    (:class:`~sluicemq_devices.hub.Line`). There is a timer only while a connection waits.
    """

    def __init__(self) -> None:
        self._line = Line()
        self._began = 0.0  # when the first began to wait, in this thread's CPU time
        self._light_until = 0.0
        self._timer: Any = None  # there is one while a connection waits

    @property
    def is_crowded(self) -> bool:
        """True if light peers wait for heavy ones again and again: pieces are to be short."""
        return self._timer is not None and self._is_crowded(thread_time())

    @property
    def is_over(self) -> bool:
        """True if this turn has been long enough, or others wait: call :meth:`wait` then."""
        return self._timer is not None or time.time() - get_hub().loop.now() > _MOST

    def wait(self, turn: Turn, time_used: TimeUsed) -> None:
        """Call ``turn`` once, when its time has come."""
        self._line.add(turn, time_used)
        if self._timer is None:
            self._began = thread_time()
            self._timer = get_hub().loop.timer(NEXT_TURN, priority=_LAST)
            self._timer.start(self._give)
        elif time_used.is_light:
            self._light_until = monotonic() + _LIGHT_FOR

    def _give(self) -> None:
        line = self._line
        now = thread_time()
        until = now + (_SLICE if self._is_crowded(now) else _MOST)
        for _ in range(len(line)):
            shielded(line.take())
            began, now = now, thread_time()
            line.took(now - began)
            if now > until:
                break
        if line:
            self._timer.start(self._give)
        else:
            self._timer.close()
            self._timer = None

    def _is_crowded(self, now: float) -> bool:
        return now - self._began > _SOON and monotonic() < self._light_until
