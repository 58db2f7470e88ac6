"""How many jobs of a queue may be reserved by this broker, as far as it knows: ``max_running`` and ``rate``.

*Running* is what is reserved: at a worker, on its way to one, or until its verdict is durable. A broker
reserves no job without a permit of its own where ``max_running`` is set, and takes a token of ``rate`` for
each that it reserves. ``permits.py`` asks MongoDB for both. A queue without limits has the neutral values:
``free`` is infinite, ``may_grant`` true.

Times are monotonic seconds.
"""

from __future__ import annotations

import math
import random

from sluicemq_broker.config import QueueSettings

#: Seconds between two questions to MongoDB while others have the permits: the first, and the longest.
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 1.0


class QueueLimits:
    """The limits of one queue, and the permits and tokens that this broker has of them."""

    def __init__(self, settings: QueueSettings) -> None:
        self.permits = self.tokens = 0
        """Numbers that this broker has, as MongoDB knows them."""
        self._owner = ""  # whose the permits are
        self._asks_again = -math.inf
        self._awaits_more = False
        self._gives_back_at = math.inf
        self._wait = _FIRST_WAIT
        self.reconfigure(settings)

    def reconfigure(self, settings: QueueSettings) -> None:
        """Take other limits: nothing that runs is stopped, and no more begins than these allow."""
        self.most, self.rate, self.burst = settings.max_running, settings.rate, settings.tokens
        self.of_tenants = settings.limits_tenants
        """True if each tenant has limits of its own, which only claims know: nothing is inserted reserved."""
        limited = self.most is not None or self.rate is not None or self.of_tenants
        self.holds_ahead = not limited
        """True if more may be reserved than workers take now: what waits here keeps no other broker idle."""
        self.tokens = min(self.tokens, self.burst)
        self._asks_again = -math.inf

    def use(self, owner: str) -> None:
        """Follow the id of this broker: permits of a former id are not ours any more."""
        if owner != self._owner:
            self._owner, self.permits = owner, 0
            self._gives_back_at = math.inf

    # ------------------------------------------------------- how many, right now

    def permitted(self, reserved: int) -> float:
        """Return how many more jobs the permits allow, with ``reserved`` reserved."""
        return math.inf if self.most is None else min(self.most, self.permits) - reserved

    def free(self, reserved: int) -> float:
        """Return how many more jobs may be reserved without asking MongoDB."""
        permitted = self.permitted(reserved)
        return max(0, permitted if self.rate is None else min(permitted, self.tokens))

    def cover(self, reserved: int) -> bool:
        """Return False if permits are missing for what is reserved: the owner id is a new one."""
        return self.most is None or reserved <= self.permits

    def may_grant(self, reserved: int, now: float) -> bool:
        """Return True if more may be reserved, or asking is worthwhile: not if all permits are used here."""
        used_up = self.most is not None and reserved >= self.most
        return self.free(reserved) > 0 or (not used_up and now >= self._asks_again)

    def spend(self, count: int) -> None:
        """Spend tokens for jobs that are reserved; a negative number gives some back."""
        if self.rate is not None:
            self.tokens -= count

    def has_spare(self, reserved: int, others: int) -> bool:
        """Return True if permits lie idle here that other brokers could use, or nobody needs any more."""
        if self.most is None:
            return self.permits > 0
        return self.permits > reserved and others > 0

    # ------------------------------------------------------------- when to ask

    def asks(self, now: float) -> bool:
        """Return True if MongoDB may be asked for more now."""
        return now >= self._asks_again

    def got_permits(self, needed: int, now: float) -> None:
        """Note the answer to a question for permits: where they are fewer than needed, others have them."""
        if self.permits >= needed:
            self._wait = _FIRST_WAIT
            return
        self._asks_again = now + self._wait * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        self._wait = min(self._wait * 2, _LONGEST_WAIT)

    def got_tokens(self, taken: int, now: float, wait: float = 0.0) -> None:
        """Note the answer to a question for tokens; ``wait``: the seconds until there are more."""
        self.tokens += taken
        if wait:
            self._asks_again = max(self._asks_again, now + wait)

    def got_no_answer(self, now: float) -> None:
        """Ask no more for a while: a claim would ask again at once."""
        self._asks_again = now + _LONGEST_WAIT

    def await_more(self) -> None:
        """Note that jobs wait for more permits or tokens than there are."""
        self._awaits_more = True

    def ask_at_once(self) -> None:
        """Ask again without waiting: permits were given back somewhere."""
        self._asks_again = -math.inf

    def on_freed(self) -> None:
        """Ask again, if jobs wait: another broker has given back permits; only time brings tokens."""
        if self._awaits_more and self.most is not None:
            self._wait, self._asks_again = _FIRST_WAIT, -math.inf

    def give_back_later(self, now: float) -> None:
        """Give the idle permits to other brokers in a moment."""
        # Seconds for which permits may lie idle before other brokers get them: most are wanted again
        # before.
        self._gives_back_at = min(self._gives_back_at, now + 0.05)

    def take_give_back(self, now: float) -> bool:
        """Return True, once, if permits have lain idle for long enough."""
        if now < self._gives_back_at:
            return False
        self._gives_back_at = math.inf
        return True

    def next(self, now: float) -> float:
        """Return when to look again: to ask for more, or to give permits back."""
        if self._awaits_more and self._asks_again <= now:
            self._awaits_more = False
        return min(self._asks_again if self._awaits_more else math.inf, self._gives_back_at)
