"""What a broker does again and again: each duty in a greenlet of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from random import uniform
from typing import Final, NamedTuple

import gevent
from gevent.event import Event

from sluicemq.protocol.errors import Unavailable
from sluicemq_broker.runtime import Count, Counters

log = logging.getLogger("broker")


#: The share of a poll's time by which each may be longer.
_JITTER: Final = 0.25


class Duty(NamedTuple):
    """``step`` is done every so many ``seconds``, or up to ``jitter`` times more; ``what`` names it."""

    what: str
    seconds: float
    step: Callable[[], None]
    jitter: float = 0.0


def poll(what: str, seconds: float, step: Callable[[], None]) -> Duty:
    """A look for what other brokers have done, whatever they told of it; they don't look in step."""
    return Duty(what, seconds, step, _JITTER)


class Duties:
    """What a broker does again and again: it goes on, whatever one of them meets, until :meth:`stop`."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._stopping = Event()
        self._greenlets: list[gevent.Greenlet[..., None]] = []

    def start(self, duties: Iterable[Duty]) -> None:
        """Begin with these too; the first step of each comes after its time."""
        self._greenlets += [gevent.spawn(self._repeat, duty) for duty in duties]

    def stop(self) -> None:
        """Begin no other step. None is killed: it may be inside a statement."""
        self._stopping.set()

    @property
    def ended(self) -> bool:
        """True if the last step of each is over."""
        return all(each.ready() for each in self._greenlets)

    def attempt(self, what: str, step: Callable[[], None]) -> None:
        """Do it; MongoDB being away is counted, and nothing that goes wrong is raised."""
        try:
            step()
        except Unavailable as error:
            self._counters.notice(Count.STORE_UNAVAILABLE, f"{what}: {error}")
        except Exception:
            log.exception("%s failed", what)

    def _repeat(self, duty: Duty) -> None:
        while not self._stopping.wait(duty.seconds * uniform(1.0, 1.0 + duty.jitter)):  # noqa: S311 - no secret
            self.attempt(duty.what, duty.step)
