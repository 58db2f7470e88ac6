"""Going on when MongoDB is away: wait and repeat, until it is back or the broker gives up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from gevent.event import Event

from sluicemq.protocol.errors import Unavailable
from sluicemq_broker.store import Aborted, Doubtful, Refused, Unclear

log = logging.getLogger("broker.store")

Result = TypeVar("Result")

#: Five or six seconds: an election takes no longer, and has codes that are known.
_MOST_DOUBTS = 10


class Retry:
    """Repeats statements until they are answered; shared by all that write, ended by :meth:`give_up`.

    The waits between two tries, in seconds: the first, and the longest, to which they double.
    """

    def __init__(self, first_wait: float = 0.05, longest_wait: float = 1.0) -> None:
        self._first_wait = first_wait
        self._longest_wait = longest_wait
        self._over = Event()
        self._away = False

    @property
    def over(self) -> bool:
        """True if nothing is repeated any more: the broker stops."""
        return bool(self._over.is_set())

    def give_up(self) -> None:
        """Let every statement that waits, and every later failure, raise its error: the broker stops."""
        self._over.set()

    def run(self, statement: Callable[[], Result], unclear: Callable[[], None] | None = None) -> Result:
        """The answer of ``statement``, repeated for as long as it takes.

        ``unclear`` is called, before the repetition, after an outcome that can't be known. Raises
        :class:`Unavailable` once :meth:`give_up` was called, and at once what waiting can't cure
        (:class:`Refused`), or what fewer items may cure (:class:`Aborted`); what may be either is tried so
        often that it was waited for, and is refused then: else one job would hold up all behind it for ever.
        """
        wait, doubts = self._first_wait, 0
        while True:
            try:
                answer = statement()
            except Aborted:
                self._answered()
                raise
            except Unavailable as error:
                self._note(error)
                if unclear and isinstance(error, Unclear):
                    unclear()
                doubts = doubts + 1 if isinstance(error, Doubtful) else 0
                if doubts == _MOST_DOUBTS:
                    raise Refused(f"refused {doubts} times: {error}") from error
                if self._over.wait(wait):
                    raise
                wait = min(wait * 2, self._longest_wait)
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
