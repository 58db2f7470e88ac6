"""Going on when MongoDB is away: wait and repeat, until it is back or the broker gives up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from gevent.event import Event

from sluicemq.errors import Unavailable
from sluicemq_broker.store.connection import Doubtful, Refused, Unclear

log = logging.getLogger("broker.store")

Result = TypeVar("Result")

_FIRST_WAIT, _LONGEST_WAIT = 0.05, 1.0
#: Five or six seconds: an election takes no longer, and has codes that are known.
_MOST_DOUBTS = 10


class Patience:
    """Repeats statements until they are answered; shared by all that write, ended by :meth:`give_up`."""

    def __init__(self) -> None:
        self._over = Event()
        self._away = False

    @property
    def over(self) -> bool:
        """Whether the broker has stopped waiting for MongoDB."""
        return bool(self._over.is_set())

    def give_up(self) -> None:
        """Let every statement that waits, and every later failure, raise its error: the broker stops."""
        self._over.set()

    def insist(self, statement: Callable[[], Result], unclear: Callable[[], None] | None = None) -> Result:
        """The answer of ``statement``, repeated for as long as it takes.

        ``unclear`` is called, before the repetition, after an outcome that can't be known. Raises
        :class:`Unavailable` once patience is over, and at once what waiting can't cure
        (:class:`Refused`); what may be either is tried so often that it was waited for, and
        is refused then: else one job would hold up all behind it for ever.
        """
        wait, doubts = _FIRST_WAIT, 0
        while True:
            try:
                answer = statement()
            except Unavailable as error:
                self._note(error)
                if unclear and isinstance(error, Unclear):
                    unclear()
                doubts = doubts + 1 if isinstance(error, Doubtful) else 0
                if doubts == _MOST_DOUBTS:
                    raise Refused(f"refused {doubts} times: {error}") from error
                if self._over.wait(wait):
                    raise
                wait = min(wait * 2, _LONGEST_WAIT)
            else:
                self._answered()
                return answer

    def _note(self, error: Unavailable) -> None:
        if not self._away:
            log.error("MongoDB is away, waiting for it: %s", error)
        self._away = True

    def _answered(self) -> None:
        if self._away:
            log.warning("MongoDB is back")
        self._away = False
