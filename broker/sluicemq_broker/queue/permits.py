"""Permits and tokens of a limited queue, which all of its brokers share: asked for in MongoDB, given back.

They are asked for when there are jobs to claim and workers for them. A broker that has all permits, or has
some left, asks nobody.

``kill -9`` at any moment: the permits of the dead owner are given back with its jobs, after its lease; tokens
that it had taken and not used are lost, so fewer jobs begin, never more.
"""

from __future__ import annotations

from typing import Final

import gevent
from gevent.lock import BoundedSemaphore

from sluicemq.protocol.errors import SluiceError, UnavailableError
from sluicemq_broker.bus import BusKind
from sluicemq_broker.queue.core import QueueCore
from sluicemq_broker.store import LimitStore

#: Seconds of ``rate`` whose tokens are taken at once, at most; or one token.
BLOCK: Final = 0.25


class Permits:
    """Asks MongoDB for what the scheduler's :class:`QueueLimits` count. Only its public methods may block."""

    def __init__(self, core: QueueCore, store: LimitStore) -> None:
        self._core = core
        self._store = store
        self._limits = core.scheduler.limits
        self._now = core.timer.now
        self._asking = BoundedSemaphore()  # so that the last answer is what MongoDB has
        self._gives_back = False

    @property
    def limited(self) -> bool:
        """True if the queue, or each of its tenants, has limits."""
        return not self._limits.holds_ahead

    @property
    def held(self) -> int:
        """How many permits this broker has, as MongoDB knows it."""
        self._limits.use(self._core.owners.current)
        return self._limits.permits

    def grant(self, wanted: int) -> int:
        """Return how many of ``wanted`` jobs may be reserved at once; asks MongoDB if more are needed."""
        limits = self._limits
        limits.use(self._core.owners.current)
        if limits.free(self._core.scheduler.reserved) < wanted and limits.asks(self._now()):
            self._ask(wanted)
        granted = int(min(wanted, limits.free(self._core.scheduler.reserved)))
        if granted < wanted:
            limits.await_more()
        return granted

    def share(self) -> None:
        """Give idle permits to other brokers, if they have been idle for long enough; never blocks."""
        limits = self._limits
        if self._gives_back or (limits.most is None and not limits.permits):
            return
        if limits.has_spare(self._core.scheduler.reserved, self._core.owners.others):
            limits.give_back_later(self._now())
        if limits.take_give_back(self._now()):
            self._gives_back = True
            gevent.spawn(self._give_back)

    def holders(self) -> set[str]:
        """The owners that have permits."""
        return set() if self._limits.most is None else set(self._store.holders())

    def forget(self, owner: str) -> None:
        """Take the permits of an owner that has gone, and whose jobs were given back."""
        if self._limits.most is not None:
            self._store.forget(owner)
            self._limits.ask_at_once()
            self._core.notify_brokers(BusKind.FREED, 0)

    # ------------------------------------------------------------------- helpers

    def _ask(self, wanted: int) -> None:
        with self._asking:
            try:
                self._ask_for_permits(wanted)
                self._ask_for_tokens(min(wanted, self._limits.permitted(self._core.scheduler.reserved)))
            except SluiceError:
                self._limits.got_no_answer(self._now())
                raise

    def _ask_for_permits(self, wanted: int) -> None:
        limits = self._limits
        if limits.most is None:
            return
        needed = min(limits.most, self._core.scheduler.reserved + wanted)
        if limits.permits < needed:
            self._have(needed, limits.most)
            limits.got_permits(needed, self._now())

    def _have(self, permits: int, most: int) -> None:
        """Tell MongoDB how many permits to have; one order number, however often it is repeated."""
        owner, order = self._core.owners.use(), self._core.owners.new_reservation()
        granted = self._core.retry.run(lambda: self._store.permit(owner, permits, most, order))
        self._limits.use(owner)
        self._limits.permits = granted

    def _ask_for_tokens(self, wanted: float) -> None:
        limits = self._limits
        missing = wanted - limits.tokens
        if limits.rate is None or missing <= 0:
            return
        rate, block = limits.rate, int(min(missing, max(1, limits.rate * BLOCK)))
        tokens = self._core.retry.run(
            lambda: self._store.take(block, rate, limits.burst, self._core.clock.now())
        )
        limits.got_tokens(tokens.taken, self._now(), tokens.wait if tokens.taken < block else 0.0)

    def _give_back(self) -> None:
        limits, scheduler = self._limits, self._core.scheduler
        try:
            with self._asking:
                if limits.has_spare(scheduler.reserved, self._core.owners.others):
                    # The rest is not ours from now on, whatever becomes of the statement.
                    limits.permits = 0 if limits.most is None else scheduler.reserved
                    self._have(limits.permits, limits.permits)
                    self._core.notify_brokers(BusKind.FREED, 0)
        except UnavailableError:
            pass  # the broker stops, and gives back all
        finally:
            self._gives_back = False
