"""The table of what is reserved under our owner ids: what the audit may take for an orphan."""

from __future__ import annotations

import pytest

from sluicemq_broker.job import Job, Pack, Reservation
from sluicemq_broker.queue.reservations import Reservations


@pytest.fixture
def reservations() -> Reservations:
    return Reservations()


def held(job_id: str, hold: int) -> Job:
    job = Job(job_id, b"")
    job.reserve(Reservation("me", hold))
    return job


def test_a_reservation_is_known_by_its_hold_and_not_by_the_id_alone(reservations: Reservations) -> None:
    reservations.add([held("job", 2)])
    assert not reservations.unknown([("job", 2)])
    assert reservations.unknown([("job", 1)])  # a claim that has landed late: nobody has it
    assert reservations.unknown([("other", 2)])


def test_what_lies_under_the_number_of_an_open_claim_is_known(reservations: Reservations) -> None:
    reservations.begin(7)
    assert not reservations.unknown([("job", 7)])
    reservations.end(7)
    assert reservations.unknown([("job", 7)])


def test_two_lives_of_one_id_are_both_known_until_each_is_over(reservations: Reservations) -> None:
    former, later = held("job", 1), held("job", 2)
    reservations.add([former])
    reservations.add([later])
    assert not reservations.unknown([("job", 1)])
    assert not reservations.unknown([("job", 2)])

    reservations.remove([former])
    assert reservations.unknown([("job", 1)])
    assert not reservations.unknown([("job", 2)])
    assert "job" in reservations

    reservations.remove([later])
    assert "job" not in reservations
    assert len(reservations) == 0


def test_a_pack_is_known_while_one_of_its_jobs_is(reservations: Reservations) -> None:
    jobs, pack = [held("a", 3), held("b", 3)], Pack("pack/m/1", 0, 2)
    for job in jobs:
        job.pack_into(pack)
    reservations.add(jobs)
    reservations.remove(jobs[:1])
    assert reservations.unknown([("pack/m/1", 3), ("pack/m/1", 2), ("pack/m/2", 3)]) == [
        ("pack/m/1", 2),
        ("pack/m/2", 3),
    ]
    reservations.remove(jobs[1:])
    assert reservations.unknown([("pack/m/1", 3)])
