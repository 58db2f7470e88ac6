"""The small part of the hub's time for peers that send messages that can't be used."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time
from typing import Any, Final

from gevent import get_hub

from sluicemq_devices.hub.callbacks import shielded
from sluicemq_devices.hub.fair_line import Line, Turn
from sluicemq_devices.hub.time_used import Standing

#: ``_GIVEN`` seconds of each period of ``_EACH`` seconds: a tenth.
_GIVEN: Final = 0.001
_EACH: Final = 0.010


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
        self._timer: Any = None

    def __len__(self) -> int:
        """Return how many turns wait."""
        return len(self._line)

    def wait(self, turn: Turn, standing: Standing) -> None:
        """Call ``turn``, once, when there is time."""
        self._line.add(turn, standing)
        if not self._timer:
            self._timer = get_hub().loop.timer(_EACH, _EACH)
            self._timer.start(self.give)

    def give(self) -> None:
        """Give turns for one period: its timer does that."""
        self._left = min(_GIVEN, self._left + _GIVEN)
        for _ in range(len(self._line)):  # a peer that comes again meanwhile has its turn in the next period
            if self._left <= 0:
                return
            began = self._cpu_time()
            shielded(self._line.take())
            took = self._cpu_time() - began
            self._line.took(took)
            self._left -= took
        if not self._line and self._left > 0:
            self._timer.stop()
            self._timer.close()
            self._timer = None
