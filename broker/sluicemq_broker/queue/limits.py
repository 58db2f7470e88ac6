"""How many jobs of a queue may run at once, and begin in a second, over all of its brokers.

*Running* is what is reserved: at a worker, on its way to one, or until its verdict is durable. A broker
reserves no job without a permit of its own where ``max_running`` is set, and takes a token of ``rate`` for
each that it reserves. Both lie in MongoDB, and are asked for when there are jobs to claim and workers for
them; a broker that has all permits, or some left, asks nobody.

``kill -9`` at any moment: the permits of the dead owner are given back with its jobs, after its lease; tokens
that it had taken and not used are lost, so fewer jobs begin, never more.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Final

from gevent.lock import BoundedSemaphore

from sluicemq.protocol.errors import SluiceError, Unavailable
from sluicemq_broker.bus import BusKind
from sluicemq_broker.config import QueueSettings
from sluicemq_broker.context import Context
from sluicemq_broker.store import LimitStore
from sluicemq_devices.hub import nothing

#: Tokens taken at once, at most: what so many seconds bring, or one.
BLOCK: Final = 0.25
#: Seconds that permits may lie idle before other brokers get them: most are wanted again before.
_IDLE: Final = 0.05
#: Seconds between two questions to MongoDB while others have the permits: the first, and the longest.
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 1.0


class Limits:
    """The limits of one queue at this broker. Only :meth:`grant`, :meth:`holders` and :meth:`forget` wait."""

    def __init__(self, store: LimitStore, context: Context, settings: QueueSettings) -> None:
        self._store = store
        self._owners = context.owners
        self._clock = context.clock
        self._tell = context.notify_brokers
        self._retry = context.retry
        self._timer = context.timer
        self._asking = BoundedSemaphore()  # so that the last answer is what MongoDB has
        self._owner = ""  # whose the permits are
        self._permits = self._tokens = 0
        self._asks_again = -math.inf
        self._wait = _FIRST_WAIT
        self._awaits_more = self._awaits_idle = False
        self._reserved: Callable[[], int] = lambda: 0
        self._go_on: Callable[[], None] = nothing
        self.reconfigure(settings)

    def follow(self, reserved: Callable[[], int], go_on: Callable[[], None]) -> None:
        """``reserved``: jobs that are reserved here, or may be by statements under way.

        ``go_on`` is called when more may be granted than before.
        """
        self._reserved, self._go_on = reserved, go_on

    def reconfigure(self, settings: QueueSettings) -> None:
        """Take other limits: nothing that runs is stopped, and no more begins than these allow."""
        self._most, self._rate, self._burst = settings.max_running, settings.rate, settings.tokens
        self.of_tenants = settings.limits_tenants
        """True if tenants are, each for itself: of what each may have claims alone know."""
        self.active = self._most is not None or self._rate is not None or self.of_tenants
        """True if anything is limited."""
        self._tokens = min(self._tokens, self._burst)
        self._asks_again = -math.inf
        self.share()
        self._go_on()

    @property
    def permits(self) -> int:
        """How many jobs this broker may have reserved, as MongoDB has it."""
        return self._permits if self._owner == self._owners.current else 0

    # ----------------------------------------------------------------- to reserve

    @property
    def free(self) -> float:
        """How many more may be reserved now, without asking anybody."""
        permitted = self._permitted
        return max(0, permitted if self._rate is None else min(permitted, self._tokens))

    @property
    def covers_all(self) -> bool:
        """True if all that is reserved has a permit still: it has none if the owner id is a new one."""
        return self._most is None or self._reserved() <= self.permits

    @property
    def may_grant(self) -> bool:
        """True if more may be reserved, or it is worth asking: not while all permits are used here."""
        used_up = self._most is not None and self._reserved() >= self._most
        return self.free > 0 or (not used_up and self._timer.now() >= self._asks_again)

    def grant(self, wanted: int) -> int:
        """How many of so many jobs may be reserved at once; :meth:`spend` those that are."""
        if self.free < wanted and self._timer.now() >= self._asks_again:
            self._ask(wanted)
        granted = int(min(wanted, self.free))
        if granted < wanted:
            self._await_more()
        return granted

    def spend(self, count: int) -> None:
        """So many jobs were reserved; less than none: so many were not after all."""
        if self._rate is not None:
            self._tokens -= count

    # ------------------------------------------------------------ for the others

    def share(self) -> None:
        """Give to other brokers the permits that are not used here in a moment."""
        if self._has_spare and not self._awaits_idle:
            self._awaits_idle = True
            self._timer.after(_IDLE, self._give_back)

    def holders(self) -> set[str]:
        """The owners that have permits."""
        return set() if self._most is None else set(self._store.holders())

    def forget(self, owner: str) -> None:
        """An owner is gone, and what it had reserved is given back: others may have its permits."""
        if self._most is not None:
            self._store.forget(owner)
            self._asks_again = -math.inf
            self._tell(BusKind.FREED, 0)

    def on_freed(self) -> None:
        """Another broker has given back permits: ask for those waited for here; time brings tokens."""
        if self._awaits_more and self._most is not None:
            self._wait, self._asks_again = _FIRST_WAIT, -math.inf
            self._go_on()

    # ------------------------------------------------------------------- helpers

    @property
    def _permitted(self) -> float:
        return math.inf if self._most is None else min(self._most, self.permits) - self._reserved()

    @property
    def _has_spare(self) -> bool:
        """True if permits lie idle here that other brokers could use, or that nobody needs any more."""
        if self._most is None:
            return self.permits > 0
        return self.permits > self._reserved() and self._owners.others > 0

    def _ask(self, wanted: int) -> None:
        with self._asking:
            try:
                self._ask_for_permits(wanted)
                self._ask_for_tokens(min(wanted, self._permitted))
            except SluiceError:  # who claims would ask again at once, and again
                self._asks_again = self._timer.now() + _LONGEST_WAIT
                raise

    def _ask_for_permits(self, wanted: int) -> None:
        if self._most is None:
            return
        needed = min(self._most, self._reserved() + wanted)
        if self.permits >= needed:
            return
        self._say(needed, self._most)
        if self.permits >= needed:
            self._wait = _FIRST_WAIT
            return
        self._asks_again = self._timer.now() + self._wait * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        self._wait = min(self._wait * 2, _LONGEST_WAIT)

    def _say(self, permits: int, most: int) -> None:
        """Have so many permits; one order number, however often it is repeated."""
        owner, order = self._owners.use(), self._owners.new_reservation()
        mine = self._retry.run(lambda: self._store.permit(owner, permits, most, order))
        self._owner, self._permits = owner, mine

    def _ask_for_tokens(self, wanted: float) -> None:
        missing = wanted - self._tokens
        if self._rate is None or missing <= 0:
            return
        rate, block = self._rate, int(min(missing, max(1, self._rate * BLOCK)))
        tokens = self._retry.run(lambda: self._store.take(block, rate, self._burst, self._clock.now()))
        self._tokens += tokens.taken
        if tokens.taken < block:
            self._asks_again = max(self._asks_again, self._timer.now() + tokens.wait)

    def _await_more(self) -> None:
        """Until others may have given back permits, or time has brought tokens; what ends here is told."""
        left = self._asks_again - self._timer.now()
        if left > 0 and not self._awaits_more:
            self._awaits_more = True
            self._timer.after(left, self._more)

    def _more(self) -> None:
        self._awaits_more = False
        self._await_more()  # a timer may be early
        self._go_on()

    def _give_back(self) -> None:
        try:
            with self._asking:
                if self._has_spare:
                    # The rest is not ours from now on, whatever becomes of the statement.
                    self._permits = 0 if self._most is None else self._reserved()
                    self._say(self._permits, self._permits)
                    self._tell(BusKind.FREED, 0)
        except Unavailable:
            pass  # the broker stops, and gives back all
        finally:
            self._awaits_idle = False
