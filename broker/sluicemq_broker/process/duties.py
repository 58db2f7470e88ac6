"""Duties: steps that a broker repeats, each in a greenlet of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from random import uniform
from typing import NamedTuple

import gevent
from gevent.event import Event

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.runtime import Count, Counters
from sluicemq_broker.store import SetAside

log = logging.getLogger("broker")


class Duty(NamedTuple):
    """A step that is repeated every ``seconds``, plus up to the share ``jitter``; ``what``: for logs."""

    what: str
    seconds: float
    step: Callable[[], None]
    jitter: float = 0.0


def poll(what: str, seconds: float, step: Callable[[], None]) -> Duty:
    """Return a duty that looks for changes by other brokers; jitter keeps brokers from looking together."""
    return Duty(what, seconds, step, 0.25)  # the share of a poll's interval by which one wait may be longer


class Duties:
    """Runs duties until :meth:`stop`; an error of one step is counted or logged, and the duty goes on."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._stopping = Event()
        self._greenlets: list[gevent.Greenlet[..., None]] = []

    def start(self, duties: Iterable[Duty]) -> None:
        """Begin further duties; the first step of each comes after its interval."""
        self._greenlets += [gevent.spawn(self._repeat, duty) for duty in duties]

    def stop(self) -> None:
        """Begin no other step. None is killed: it may be inside a statement."""
        self._stopping.set()

    @property
    def ended(self) -> bool:
        """True if the last step of each duty is over."""
        return all(greenlet.ready() for greenlet in self._greenlets)

    def attempt(self, what: str, step: Callable[[], None]) -> None:
        """Run a step; raises nothing: while MongoDB is away that is counted, other errors are logged."""
        try:
            step()
        except SetAside:
            return  # a document that can't be read: it was counted and logged once
        except UnavailableError as error:
            self._counters.notice(Count.STORE_UNAVAILABLE, f"{what}: {error}")
        except Exception:
            log.exception("%s failed", what)

    def _repeat(self, duty: Duty) -> None:
        while not self._stopping.wait(duty.seconds * uniform(1.0, 1.0 + duty.jitter)):  # noqa: S311 - no secret
            self.attempt(duty.what, duty.step)
