"""The small part of the hub's time in which peers are read that send what nobody can use."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time
from typing import Any, Final

from gevent import get_hub

from sluicemq_devices.hub.callbacks import shielded
from sluicemq_devices.hub.fair_line import Line, Turn
from sluicemq_devices.hub.time_used import Standing

#: So much time, in seconds, is given in each so many: a tenth.
_GIVEN: Final = 0.001
_EACH: Final = 0.010


class SpareTime:
    """Turns for whoever waits for one, light peers first, together a tenth of the time.

    However many they are, everybody else finds the hub free for the other nine tenths. What counts is CPU
    time: on a busy machine a turn may last long for no fault of theirs. It has a timer only while somebody
    waits. ``cpu_time``: seconds of CPU that this thread has had.
    """

    def __init__(self, cpu_time: Callable[[], float] = thread_time) -> None:
        self._cpu_time = cpu_time
        self._line = Line()
        self._left = 0.0  # seconds of this period; a turn that took longer is paid for by later ones
        self._timer: Any = None

    def __len__(self) -> int:
        """How many wait."""
        return len(self._line)

    def wait(self, turn: Turn, standing: Standing) -> None:
        """Call ``turn``, once, when there is time."""
        self._line.add(turn, standing)
        if not self._timer:
            self._timer = get_hub().loop.timer(_EACH, _EACH)
            self._timer.start(self._give)

    def _give(self) -> None:
        self._left = min(_GIVEN, self._left + _GIVEN)
        for _ in range(len(self._line)):  # who comes again meanwhile has its turn in the next period
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
