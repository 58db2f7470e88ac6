"""Retries while MongoDB is away: wait and repeat, until it is back or the broker gives up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from gevent.event import Event

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.store import Aborted, Doubtful, Refused, Unclear

log = logging.getLogger("broker.store")

Result = TypeVar("Result")


class Retry:
    """Repeats statements until MongoDB answers; shared by all that write, ended by :meth:`give_up`.

    ``first_wait`` and ``longest_wait``: seconds between two tries, which double from the one to the other.
    """

    def __init__(self, first_wait: float = 0.05, longest_wait: float = 1.0) -> None:
        self._first_wait = first_wait
        self._longest_wait = longest_wait
        self._over = Event()
        self._away = False

    @property
    def over(self) -> bool:
        """True if no statement is repeated any more: the broker stops."""
        return bool(self._over.is_set())

    def give_up(self) -> None:
        """End all retries, now and later: statements raise their errors, as the broker stops."""
        self._over.set()

    def run(self, statement: Callable[[], Result], unclear: Callable[[], None] | None = None) -> Result:
        """Return the answer of ``statement``, repeated until there is one.

        ``unclear`` is called before a repetition if the statement may have been applied. Raises
        :class:`Unavailable` after :meth:`give_up`; and at once :class:`Refused`, which waiting can't cure,
        and :class:`Aborted`, which fewer items may cure. A doubtful error is retried for some seconds and
        then raised as :class:`Refused`: otherwise one job could block all jobs behind it for ever.
        """
        wait, doubts = self._first_wait, 0
        while True:
            try:
                answer = statement()
            except Aborted:
                self._answered()
                raise
            except UnavailableError as error:
                self._note(error)
                if unclear and isinstance(error, Unclear):
                    unclear()
                doubts = doubts + 1 if isinstance(error, Doubtful) else 0
                # Five or six seconds of tries: an election takes no longer, and has codes that are known
                if doubts == 10:
                    raise Refused(f"refused {doubts} times: {error}") from error
                if self._over.wait(wait):
                    raise
                wait = min(wait * 2, self._longest_wait)
            else:
                self._answered()
                return answer

    def _note(self, error: UnavailableError) -> None:
        if not self._away:
            log.error("MongoDB is away, waiting for it: %s", error)
        self._away = True

    def _answered(self) -> None:
        if self._away:
            log.warning("MongoDB is back")
        self._away = False
