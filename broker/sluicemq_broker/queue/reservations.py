"""The one table of the jobs that a broker has reserved in a queue."""

from __future__ import annotations

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

    def unknown(self, found: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return those of these reservations, by id and number, that are not in here, nor may be in a moment.

        That of a pack is in here while any of its jobs is.
        """
        packs = {job.pack: job.reservation.number for job in self if job.pack is not None}
        held = {(pack.id, number) for pack, number in packs.items()}
        return [
            (name, hold)
            for name, hold in found
            if hold not in self._being_made and (name, hold) not in held and not self._has(name, hold)
        ]

    def _has(self, job_id: str, hold: int) -> bool:
        job = self._jobs.get(job_id)
        return (job is not None and job.reservation.number == hold) or (job_id, hold) in self._doubles

    def under(self, owner: str) -> list[Job]:
        """The jobs reserved under one owner id."""
        return [job for job in self if job.owner == owner]

    def _promote(self, job_id: str) -> None:
        for key in [key for key in self._doubles if key[0] == job_id][:1]:
            self._jobs[job_id] = self._doubles.pop(key)
