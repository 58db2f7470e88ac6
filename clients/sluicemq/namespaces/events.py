"""``client.events``."""

from __future__ import annotations

from collections.abc import Iterator
from time import sleep
from typing import Final

from sluicemq.arguments import checked
from sluicemq.namespaces.namespace import CalledBefore
from sluicemq.protocol import wire
from sluicemq.protocol.rows import EventRow, EventsRow

#: Seconds between two questions for events, if the last one brought none.
_PAUSE: Final = 0.25


@checked()
class Events(CalledBefore, verb="read"):
    """Events: what happens to jobs at this broker."""

    __slots__ = ()

    def read(self, queue: str | None = None, after: int | None = None) -> EventsRow:
        """Return the events of jobs at this broker since ``after``.

        Make the first call without ``after``. Give each next one the ``after`` of the last answer, within ten
        seconds. ``missed``: events of all queues that the broker could not keep until then.
        """
        options = {"after": after, "queue": queue}
        given = {name: value for name, value in options.items() if value is not None}
        return self._calls.read(EventsRow, wire.EVENTS, given)

    def follow(self, queue: str | None = None) -> Iterator[EventRow]:
        """Yield the events of jobs at this broker from now on, for ever; of one queue, or of all."""
        after: int | None = None
        while True:
            page = self.read(queue, after)
            yield from page.events
            if not page.events:
                sleep(_PAUSE)
            after = page.after
