"""The small part of the hub's time for peers that send messages that can't be used, and for strangers."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, thread_time
from typing import Any, Final

from gevent import get_hub

from sluicemq_devices.hub.callbacks import shielded
from sluicemq_devices.hub.fair_line import Line, Turn
from sluicemq_devices.hub.time_used import TimeUsed

#: ``_GIVEN`` seconds of each period of ``_EACH`` seconds: a tenth.
_GIVEN: Final = 0.001
_EACH: Final = 0.010
#: Seconds that strangers may use at once after a rest: some sixty handshakes of CURVE.
_SAVED: Final = 0.010
_LAST: Final = -2  # libev's priority of idle time: after all sockets and turns


class SpareTime:
    """Turns for badly behaved peers, light ones first, together a tenth of the time.

    However many they are, the other nine tenths are free for everybody else. CPU time is counted: on a busy
    machine a turn may last long without any fault of the peer. There is a timer only while a peer waits.
    ``cpu_time``: seconds of CPU that this thread has used.
    """

    def __init__(self, cpu_time: Callable[[], float] = thread_time) -> None:
        self._cpu_time = cpu_time
        self._line = Line()
        self._left = 0.0  # seconds of this period; a longer turn is paid for by later ones
        self._timer: Any = None  # there is one while a peer waits

    def __len__(self) -> int:
        """Return how many turns wait."""
        return len(self._line)

    @property
    def is_over(self) -> bool:
        """True: a peer that is read in this time must :meth:`wait`."""
        return True

    def wait(self, turn: Turn, time_used: TimeUsed) -> None:
        """Call ``turn``, once, when there is time."""
        self._line.add(turn, time_used)
        if not self._timer:
            self._timer = get_hub().loop.timer(_EACH, _EACH)
            self._timer.start(self.give)

    def give(self) -> None:
        """Give turns for one period: its timer does that."""
        self._earn()
        for _ in range(len(self._line)):  # a peer that comes again meanwhile has its turn in the next period
            if self._left <= 0:
                return
            took = self._take()
            self._left -= took
        if not self._line and self._left > 0:
            self._stop()

    def _earn(self) -> None:
        self._left = min(_GIVEN, self._left + _GIVEN)

    def _take(self) -> float:
        """Give the next turn; return the seconds of CPU that it took."""
        began = self._cpu_time()
        shielded(self._line.take())
        took = self._cpu_time() - began
        self._line.took(took)
        return took

    def _stop(self) -> None:
        self._timer.stop()
        self._timer.close()
        self._timer = None


class StrangersTime(SpareTime):
    """Turns for peers that are not known yet: a tenth of the time, and all that nobody else needs.

    Its tenth can be used at once, without waiting, up to some milliseconds that were not used before. The
    rest waits, and the hub takes one turn after the other whenever it has nothing else to do.
    """

    def __init__(
        self, cpu_time: Callable[[], float] = thread_time, now: Callable[[], float] = monotonic
    ) -> None:
        """``now``: monotonic seconds."""
        super().__init__(cpu_time)
        self._now = now
        self._earned_at = float("-inf")
        self._idle: Any = None

    @property
    def is_over(self) -> bool:
        """True if others wait, or the tenth is used up: call :meth:`wait` then."""
        if not self._line:
            self._earn()
        return bool(self._line) or self._left <= 0

    def used(self, seconds: float) -> None:
        """Note CPU time that was used at once."""
        self._left = max(-_SAVED, self._left - seconds)

    def wait(self, turn: Turn, time_used: TimeUsed) -> None:
        """Call ``turn``, once, when there is time."""
        super().wait(turn, time_used)
        if not self._idle:
            self._idle = get_hub().loop.idle(priority=_LAST)
            self._idle.start(self.give_idle)

    def give_idle(self) -> None:
        """Give one turn: the hub calls that while it has nothing else to do."""
        if self._line:
            self._take()
        if not self._line:
            self._stop()

    def _earn(self) -> None:
        now = self._now()
        self._left = min(_SAVED, self._left + _GIVEN / _EACH * (now - self._earned_at))
        self._earned_at = now

    def _stop(self) -> None:
        if self._timer:
            super()._stop()
        if self._idle:
            self._idle.stop()
            self._idle.close()
            self._idle = None
