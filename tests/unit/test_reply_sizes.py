"""How many jobs are asked for in one reply."""

from __future__ import annotations

from sluicemq_broker.store.jobs.reply_sizes import ReplySizes
from support.jobs import a_job, some_jobs

MIB = 2**20


def test_small_jobs_without_headers_come_all_at_once_as_soon_as_some_were_claimed() -> None:
    pages = ReplySizes()
    before = pages.size(1000, 16 * MIB)
    for _ in range(20):
        pages.claimed(some_jobs(10))
    assert (before, pages.size(1000, 16 * MIB)) == (16, 1001)


def test_of_large_jobs_so_many_come_as_there_is_room_for_and_one_at_least() -> None:
    pages = ReplySizes()
    assert not pages.known
    pages.measured(MIB)
    assert [pages.size(1000, room) for room in (4 * MIB, 100)] == [4, 1]


def test_a_large_job_is_reckoned_with_until_many_small_ones_have_come() -> None:
    pages = ReplySizes()
    pages.pushed([a_job(size=8 * MIB)])
    sizes = []
    for _ in range(30):
        sizes.append(pages.size(1000, 16 * MIB))
        pages.claimed(some_jobs(10))
    assert sizes[0] == 2
    assert sizes == sorted(sizes)
    assert sizes[-1] == 1001


def test_jobs_with_dear_headers_come_few_at_a_time() -> None:
    pages = ReplySizes()
    for _ in range(20):
        pages.claimed(some_jobs(10))
    pages.claimed([a_job(headers={"x": 1}, size=7 + 64 * 1024)])
    assert pages.size(1000, 16 * MIB) == 16
