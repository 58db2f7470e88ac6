"""A short memory of the jobs of a queue that have ended at this broker: most are stored no longer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, ClassVar, Final
from weakref import WeakSet

from sluicemq.protocol.rows import EndRow
from sluicemq_broker.queue.decisions import PassOn, Settled

#: Ends that are remembered of all queues together, about, and of one at least and at most.
MOST_OF_ALL: Final = 50_000
_LEAST, _MOST = 20, 1000

#: How a job ended, when, at which worker, in which attempt, after how many seconds there, its kind, and the
#: queue to which it went.
End = tuple[str, float, str | None, int | None, float | None, str | None, str | None]


class Ends:
    """The latest ends of one queue by the ids of its jobs: half of its share at least."""

    #: Those of all queues of this process that have any; each has a share of the bound over all.
    _all: ClassVar[WeakSet[Ends]] = WeakSet()

    def __init__(self) -> None:
        self._latest: dict[str, End] = {}
        self._before: dict[str, End] = {}

    def ended(self, how: str, settled: Sequence[Settled[Any]], now: float, at: float) -> None:
        """Note jobs that workers have ended ``now``, in monotonic seconds ``at``; of many the last ones."""
        latest = self._room()
        for end in settled[-_MOST // 2 :]:
            delivery = end.delivery
            job = delivery.job
            worker, seconds = delivery.worker.name, at - delivery.handed_at
            to = end.decision.onward.queue if isinstance(end.decision, PassOn) else None
            latest[job.id] = (how, now, worker, job.attempts, seconds, job.kind, to)

    def note(self, how: str, ids: Sequence[str], now: float) -> None:
        """Note jobs that have ended without a worker; of many the last ones."""
        end = (how, now, None, None, None, None, None)
        self._room().update((job_id, end) for job_id in ids[-_MOST // 2 :])

    def _room(self) -> dict[str, End]:
        """Return where to note some more; the oldest of too many are forgotten."""
        if not self._latest:
            self._all.add(self)
        share = min(_MOST, max(_LEAST, MOST_OF_ALL // max(1, len(self._all))))
        if len(self._latest) >= share // 2:
            self._before, self._latest = self._latest, {}
        return self._latest

    def find(self, job_id: str | None, limit: int) -> list[EndRow]:
        """Return the end of one job, if it is remembered; with None the latest ends, the last first."""
        if job_id is not None:
            end = self._latest.get(job_id) or self._before.get(job_id)
            return [_row(job_id, end)] if end else []
        known = {**self._before, **self._latest}
        return [_row(ended_job, end) for ended_job, end in islice(reversed(known.items()), limit)]


def _row(job_id: str, end: End) -> EndRow:
    how, at, worker, attempt, seconds, kind, to = end
    return EndRow(
        id=job_id,
        end=how,
        at=at,
        worker=worker,
        attempt=attempt,
        seconds=None if seconds is None else round(seconds, 3),
        kind=kind,
        to=to,
    )
