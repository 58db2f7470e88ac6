"""The table of what is reserved under our owner ids: what the audit may take for an orphan."""

from __future__ import annotations

import pytest

from sluicemq_broker.job.job import Hold, Job
from sluicemq_broker.queue.holdings import Holdings


@pytest.fixture
def holdings() -> Holdings:
    return Holdings()


def held(job_id: str, hold: int) -> Job:
    job = Job(job_id, b"")
    job.reserve(Hold("me", hold))
    return job


def test_a_reservation_is_known_by_its_hold_and_not_by_the_id_alone(holdings: Holdings) -> None:
    holdings.add([held("job", 2)])

    assert holdings.knows("job", 2)
    assert not holdings.knows("job", 1)  # a claim that has landed late: nobody has it
    assert not holdings.knows("other", 2)


def test_whatever_lies_under_the_number_of_a_claim_under_way_is_known_until_it_ends(
    holdings: Holdings,
) -> None:
    holdings.begin(7)
    assert holdings.knows("job", 7)

    holdings.end(7)
    assert not holdings.knows("job", 7)


def test_two_lives_of_one_id_are_both_known_until_each_is_over(holdings: Holdings) -> None:
    former, later = held("job", 1), held("job", 2)
    holdings.add([former])
    holdings.add([later])
    assert holdings.knows("job", 1)
    assert holdings.knows("job", 2)

    holdings.remove([former])
    assert not holdings.knows("job", 1)
    assert holdings.knows("job", 2)
    assert "job" in holdings

    holdings.remove([later])
    assert "job" not in holdings
    assert len(holdings) == 0
