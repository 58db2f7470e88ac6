"""The one table of the jobs that a broker has reserved in a queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from sluicemq_broker.job import Job


class Reservations:
    """Everything reserved under this broker's owner ids in one queue, by id and number.

    ::

        being made ──▶ staged ──▶ at a worker ──▶ being settled ──▶ out of the table
        (a number)        │            │
                          └────────────┴──▶ being given back ─────▶ out of the table

    A reservation has its number in here from before its claim or insert is sent, its jobs from when
    they are known until the last statement about them was answered. So what the audit finds in MongoDB
    under our owner and not in here is nobody's: it was reserved by a statement that landed after its
    answer had been given up. ``in`` asks for a job's id.

    One id is in here twice while the removal of one job has no answer yet, and another was pushed under
    its id meanwhile.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._doubles: dict[tuple[str, int], Job] = {}
        self._being_made: set[int] = set()
        self._packs: Counter[tuple[str, int]] = Counter()  # jobs of each, by its id and number
        self._pack_of: dict[tuple[str, int], tuple[str, int]] = {}

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._jobs

    def __iter__(self) -> Iterator[Job]:
        yield from self._jobs.values()
        yield from self._doubles.values()

    def __len__(self) -> int:
        return len(self._jobs) + len(self._doubles)

    def begin(self, hold: int) -> None:
        """A claim, or an insert of jobs that are inserted reserved, is about to be sent under this number."""
        self._being_made.add(hold)

    def end(self, hold: int) -> None:
        """The statement was answered, and the jobs that it has reserved were given to :meth:`add`."""
        self._being_made.discard(hold)

    def add(self, jobs: Iterable[Job]) -> None:
        """Add jobs that are reserved under our owner ids."""
        held = self._jobs
        for job in jobs:
            if held.setdefault(job.id, job) is not job:
                self._doubles[(job.id, job.reservation.number)] = job
            if job.pack is not None:
                number = job.reservation.number
                pack = self._pack_of[job.id, number] = (job.pack.id, number)
                self._packs[pack] += 1

    def remove(self, jobs: Iterable[Job]) -> None:
        """The last statement about these jobs was answered; jobs that are not in here are skipped."""
        held = self._jobs
        for job in jobs:
            if held.get(job.id) is job:
                del held[job.id]
                if self._doubles:
                    self._promote(job.id)
            else:
                self._doubles.pop((job.id, job.reservation.number), None)
            if self._pack_of:
                self._leave_pack((job.id, job.reservation.number))

    def _leave_pack(self, job: tuple[str, int]) -> None:
        pack = self._pack_of.pop(job, None)
        if pack is not None:
            self._packs[pack] -= 1
            if not self._packs[pack]:
                del self._packs[pack]

    def knows(self, job_id: str, hold: int) -> bool:
        """True if this reservation, of a job or of a pack, is in here, or may be in a moment."""
        job = self._jobs.get(job_id)
        return (
            hold in self._being_made
            or (job is not None and job.reservation.number == hold)
            or (job_id, hold) in self._doubles
            or (job_id, hold) in self._packs
        )

    def under(self, owner: str) -> list[Job]:
        """The jobs reserved under one owner id."""
        return [job for job in self if job.owner == owner]

    def _promote(self, job_id: str) -> None:
        for key in [key for key in self._doubles if key[0] == job_id][:1]:
            self._jobs[job_id] = self._doubles.pop(key)
