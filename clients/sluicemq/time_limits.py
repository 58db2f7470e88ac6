"""Time limits of handlers: at the soft one it is interrupted, at the hard one its worker ends if it must."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sluicemq import forks
from sluicemq.complaints import complain, log
from sluicemq.transport.native import is_patched

if TYPE_CHECKING:
    from sluicemq.job import Job

_T = TypeVar("_T")

#: Seconds from the hard limit of a handler, at which it is interrupted once more, to the end of its worker.
ENDS_AFTER: Final = 5.0


class SoftTimeLimitError(TimeoutError):
    """A handler took longer than the soft time limit of its job; raised in it."""

    def __str__(self) -> str:
        return super().__str__() or "the soft time limit of the job is over"


class HardTimeLimitError(TimeoutError):
    """A handler took longer than the hard time limit of its job; raised in it.

    Raised by ``run`` of a worker, too, whose handler did not end then: end the process.
    """


class Interruptible:
    """A call of a function that can be interrupted from another thread."""

    def __init__(self) -> None:
        self._change = threading.Lock()
        self._stop: Callable[[type[Exception]], object] | None = None
        self.stopped_by: type[Exception] | None = None
        """The last error by which it was interrupted."""

    @property
    def is_running(self) -> bool:
        """Return whether it runs, and can be interrupted."""
        return self._stop is not None

    def interrupt(self, error: type[Exception]) -> bool:
        """Raise ``error`` in the function; a coroutine is cancelled. False: it does not run."""
        with self._change:
            if self._stop is None or self.stopped_by is error:
                return False
            self.stopped_by = error
            self._stop(error)
            return True

    def call(self, function: Callable[..., _T], *args: Any, **keywords: Any) -> _T:
        """Call the function in this thread."""
        thread = threading.get_ident()
        try:
            with self.stopping(lambda error: _raise_in(thread, error)):
                return function(*args, **keywords)
        finally:
            if self.stopped_by is not None:
                _raise_pending(self.stopped_by)

    @contextmanager
    def stopping(self, stop: Callable[[type[Exception]], object]) -> Iterator[None]:
        """Interrupt what runs in this block by calling ``stop``."""
        self._stop = stop
        try:
            yield
        finally:
            with self._change:
                self._stop = None


@contextmanager
def limited(
    job: Job, interrupt: Callable[[type[Exception]], object], on_hung: Callable[[Job], object]
) -> Iterator[None]:
    """Have the handler of a job with time limits interrupted in time.

    ``interrupt``: raises an error in it, unless what runs in it sets another way for its job. ``on_hung`` is
    called, in a thread of its own, if it has not ended soon after the hard limit.
    """
    soft, hard = job.time_limits or (None, None)
    job.interrupt = interrupt
    steps: list[tuple[float, Callable[[], object]]] = []
    if soft is not None:
        steps.append((soft, lambda: job.interrupt(SoftTimeLimitError)))
    if hard is not None:
        steps.append((hard, lambda: job.interrupt(HardTimeLimitError)))
        steps.append((hard + ENDS_AFTER, lambda: on_hung(job)))
    try:
        with Alarm(steps):
            yield
    except (SoftTimeLimitError, HardTimeLimitError) as error:
        if not error.args:
            name, limit = ("hard", hard) if isinstance(error, HardTimeLimitError) else ("soft", soft)
            error.args = (f"it ran for longer than its {name}_time_limit of {limit:g} s",)
        raise


class Alarm:
    """Calls functions at their seconds after the begin of a block, unless that has ended."""

    def __init__(self, steps: list[tuple[float, Callable[[], object]]]) -> None:
        self._steps = sorted(steps, key=lambda step: step[0])
        self.is_over = False

    def __enter__(self) -> None:
        self._began = monotonic()
        self._set_alarm()

    def __exit__(self, *_error: object) -> None:
        self.is_over = True
        _clock.forget()

    def ring(self) -> None:
        """Do the next step; called by the clock."""
        _seconds, call = self._steps.pop(0)
        try:
            call()
        except Exception:  # noqa: BLE001 - the clock goes on
            complain("a time limit could not be enforced")
        self._set_alarm()

    def _set_alarm(self) -> None:
        # Threads of gevent can't be interrupted.
        if self._steps and not is_patched():
            _clock.ring_at(self._began + self._steps[0][0], self)


class _Clock:
    """A thread that rings alarms at their times; it begins with the first one."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._alarms: list[tuple[float, int, Alarm]] = []
        self._over: int = 0
        self._begin()
        forks.on_fork(self, _Clock._begin)

    def ring_at(self, time: float, alarm: Alarm) -> None:
        """Ring an alarm at a monotonic time."""
        with self._change:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sluicemq-time-limits", daemon=True)
                self._thread.start()
            heappush(self._alarms, (time, next(self._numbers), alarm))
            if self._alarms[0][2] is alarm:
                self._change.notify()

    def forget(self) -> None:
        """Note that an alarm is over; those are removed when they are many."""
        with self._change:
            self._over += 1
            if self._over > 1000 + len(self._alarms) // 2:
                self._alarms = [alarm for alarm in self._alarms if not alarm[2].is_over]
                heapify(self._alarms)
                self._over = 0

    def _begin(self) -> None:
        """Begin without a thread; in the child of a fork, too, because it is the parent's."""
        self._change = threading.Condition()
        self._alarms = []
        self._numbers = itertools.count()
        self._over = 0
        self._thread = None

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._alarms or self._alarms[0][0] > monotonic():
                    self._change.wait(self._alarms[0][0] - monotonic() if self._alarms else None)
                alarm = heappop(self._alarms)[2]
            if not alarm.is_over:
                alarm.ring()


_clock: Final = _Clock()


def log_hung(job: Job) -> HardTimeLimitError:
    """Log that a handler does not end, and return the error with which its worker ends."""
    _soft, hard = job.time_limits or (None, None)
    text = (
        f"the handler of job {job.id} of queue {job.queue} does not end, {ENDS_AFTER:g} s after its "
        f"hard_time_limit of {hard:g} s"
    )
    log.critical("%s: its worker ends", text)
    return HardTimeLimitError(text)


def _raise_in(thread: int, error: type[Exception]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def _raise_pending(error: type[Exception]) -> None:
    """Have an error of :func:`_raise_in` that comes too late raised here, in its thread, and drop it.

    To take it back (``PyThreadState_SetAsyncExc`` with NULL) leaves CPython 3.11 looking for it after each
    jump, for as long as the process lives: all is slower then, and what is traced never ends.
    """
    try:
        for _ in range(2):  # pending errors are raised at jumps
            pass
    except error:
        pass
