"""``client.history`` and ``client.incidents``."""

from __future__ import annotations

from typing import Any

from sluicemq.arguments import checked
from sluicemq.namespaces.namespace import CalledBefore, Namespace
from sluicemq.namespaces.words import RecentWord, SpanWord
from sluicemq.protocol import wire
from sluicemq.protocol.enums import Span
from sluicemq.protocol.rows import HistoryRow, IncidentsRow


@checked()
class History(CalledBefore, verb="queue"):
    """Counters of all brokers together, by a ``span`` of time.

    Spans are ``minute`` (of one day), ``hour`` (of the 30 days up to it), ``day`` (of a year), and ``month``.
    ``day`` is a date such as 2026-01-31, in UTC, by default today. Times are Unix seconds.
    """

    __slots__ = ()

    def queue(self, name: str, *, span: SpanWord = Span.MINUTE, day: str | None = None) -> HistoryRow:
        """Return what was counted in a queue."""
        return self._of("queue", name, span, day)

    def kind(
        self, queue: str, kind: str, *, span: SpanWord = Span.MINUTE, day: str | None = None
    ) -> HistoryRow:
        """Return what was counted of the jobs of one kind in a queue."""
        return self._of("kind", f"{queue}:{kind}".replace("/", "_"), span, day)

    def stream(self, name: str, *, span: SpanWord = Span.MINUTE, day: str | None = None) -> HistoryRow:
        """Return what was counted in a stream."""
        return self._of("stream", name, span, day)

    def device(self, name: str, *, span: SpanWord = Span.MINUTE, day: str | None = None) -> HistoryRow:
        """Return what was counted in the devices of a kind and queue or stream, as in ``streamer.mail``."""
        return self._of("device", name, span, day)

    def broker(self, name: str = "*", *, span: SpanWord = Span.MINUTE, day: str | None = None) -> HistoryRow:
        """Return what the brokers on a host have counted; ``*``: those of all."""
        return self._of("broker", name, span, day)

    def _of(self, kind: str, name: str, span: str, day: str | None) -> HistoryRow:
        return self._calls.read(HistoryRow, wire.HISTORY, kind, name, day, span)

    def _called(self, plain: Any, queue: str | None = None, **given: Any) -> Any:
        when = {key: given.pop(key) for key in ("span", "day") if key in given}
        subjects = {"queue": queue, **given}
        about = [(kind, name) for kind, name in subjects.items() if name is not None]
        if len(about) != 1 or about[0][0] not in ("queue", "stream", "device", "broker"):
            raise TypeError("history is of one queue, stream, device, broker")
        (kind, name) = about[0]
        return getattr(plain, kind)(name, **when)


@checked()
class Incidents(Namespace):
    """Incidents: what happened to queues and brokers that is out of the ordinary."""

    __slots__ = ()

    def list(self, queue: str | None = None, *, span: RecentWord = "day") -> IncidentsRow:
        """Return up to 100 incidents of the last hour, day or 30 days, the latest first.

        With ``queue``: those of this queue, and those of brokers. Older brokers don't know incidents:
        :class:`~sluicemq.BadVerbError`.
        """
        return self._calls.read(IncidentsRow, wire.INCIDENTS, span, queue)
