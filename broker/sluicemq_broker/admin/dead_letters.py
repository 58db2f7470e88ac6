"""Dead letters: listed, counted, redriven, discarded, chosen by why and when they died."""

from __future__ import annotations

from typing import Any, Final

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFrames
from sluicemq_broker.context import Context
from sluicemq_broker.job import State
from sluicemq_broker.queues import Census, Discard, Queues, Redrive, Task, Tasks
from sluicemq_broker.store import DeadLetters, JobPage, Listing

#: A time after all jobs, in Unix seconds: the year 9999.
_NEVER: Final = 253_370_000_000
_WORDS: Final = frozenset({"ids", "reason", "limit", "since", "until"})


class DeadLetterAdmin:
    """The dead letters of all queues. Each method raises NotFound for an unknown queue."""

    def __init__(self, queues: Queues, census: Census, tasks: Tasks, context: Context) -> None:
        self._queues = queues
        self._census = census
        self._tasks = tasks
        self._clock = context.clock

    def page(self, queue: str, which: DeadLetters, limit: int, after: list[Any] | None) -> JobPage:
        """Return some of these dead letters behind a cursor, the latest first."""
        return self._listing(queue).ended(queue, State.DEAD, which, limit, after, self._clock.now())

    def count(self, queue: str, which: DeadLetters) -> dict[str, Any]:
        """Return ``{count, exact}`` of these dead letters."""
        known = self._census.dead(queue)
        count, exact = self._listing(queue).count(queue, which, self._clock.now(), known)
        return {"count": count, "exact": exact}

    def reasons(self, queue: str, which: DeadLetters) -> list[dict[str, Any]]:
        """Return why the latest of these died, the most frequent reasons first."""
        return self._listing(queue).reasons(queue, which, self._clock.now())

    def redrive(self, name: str, which: dict[str, Any], to: str | None) -> Task:
        """Make dead letters ready again, in their queue or in another."""
        _check(which)
        return self._tasks.begin(Redrive.kind, name, to=to, **which)

    def discard(self, name: str, which: dict[str, Any]) -> Task:
        """Remove dead letters, all or some."""
        _check(which)
        return self._tasks.begin(Discard.kind, name, **which)

    def _listing(self, name: str) -> Listing:
        queue = self._queues.get(name)
        queue.prepare()
        return Listing(self._queues.database_of(queue))


def _check(which: dict[str, Any]) -> None:
    """Raise BadFrames for a choice of dead letters with an unknown word or a wrong value."""
    ids, reason, limit = which.get("ids"), which.get("reason"), which.get("limit")
    if which.keys() - _WORDS:
        raise BadFrames("dead letters are chosen by ids, reason, limit, since and until")
    for name in ("since", "until"):
        when = which.get(name)
        if when is not None and (
            isinstance(when, bool) or not isinstance(when, int | float) or not 0 <= when < _NEVER
        ):
            raise BadFrames(f"{name} is a time in Unix seconds")
    if ids is not None and not (isinstance(ids, list) and all(isinstance(each, str) for each in ids)):
        raise BadFrames("ids are an array of strings")
    if ids is not None and len(ids) > wire.MOST_IDS:
        raise BadFrames(f"dead letters are chosen by at most {wire.MOST_IDS} ids, not by {len(ids)}")
    if reason is not None and not isinstance(reason, str):
        raise BadFrames("reason is a string, a part of the last error's reason")
    whole = isinstance(limit, int) and not isinstance(limit, bool)
    if limit is not None and not (whole and 1 <= limit <= wire.MOST_REDRIVEN):
        raise BadFrames(f"limit {limit!r} is not from 1 to {wire.MOST_REDRIVEN}")
