"""``client.events``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sluicemq.arguments import checked
from sluicemq.namespaces.namespace import CalledBefore
from sluicemq.protocol import wire
from sluicemq.protocol.rows import EventRow, EventsRow
from sluicemq.steps import Ask, Finds, Found, Pause, Steps

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
        return self._calls.run(self._page(queue, after))

    def follow(self, queue: str | None = None) -> Iterator[EventRow]:
        """Yield the events of jobs at this broker from now on, for ever; of one queue, or of all."""
        return self._calls.each(self._following(queue))

    def _page(self, queue: str | None, after: int | None) -> Steps[EventsRow]:
        options = {"after": after, "queue": queue}
        given = {name: value for name, value in options.items() if value is not None}
        return (yield from self._calls.reading(EventsRow, Ask(wire.EVENTS, (given,))))

    def _following(self, queue: str | None) -> Finds:
        after: int | None = None
        while True:
            page = yield from self._page(queue, after)
            for event in page.events:
                yield Found(event)
            if not page.events:
                yield Pause(_PAUSE)
            after = page.after
