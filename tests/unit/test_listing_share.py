"""How many dead letters there are is told in time, whatever MongoDB has in its caches."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.errors import ExecutionTimeout

from sluicemq_broker.store import DeadLetters, Listing
from sluicemq_broker.store.admin import listing

NOW = 1_790_000_000.0


class Cold:
    """A collection of 1,000,000 jobs: so many samples of it take too long; a third of the others match."""

    def __init__(self, slow: int) -> None:
        self.slow = slow
        self.steps: list[list[Any]] = []

    def __getitem__(self, _name: str) -> Cold:
        return self

    def with_options(self, **_: Any) -> Cold:
        return self

    def count_documents(self, *_: Any, **__: Any) -> int:
        raise ExecutionTimeout("too long")

    def estimated_document_count(self) -> int:
        return 1_000_000

    def aggregate(self, steps: list[Any], **options: Any) -> list[dict[str, int]]:
        assert options.get("maxTimeMS", 0) <= 100
        self.steps.append(steps)
        if len(self.steps) <= self.slow:
            raise ExecutionTimeout("too long")
        size = steps[0]["$sample"]["size"] if "$sample" in steps[0] else listing.SAMPLE
        return [{"count": size // 3}]


def count(jobs: Cold, known: int | None = None, **letters: Any) -> listing.HowMany:
    database: Any = jobs
    return Listing(database).count("mail", DeadLetters(**letters), NOW, known)


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_sample_that_takes_too_long_is_followed_by_one_that_does_not(slow: int) -> None:
    jobs = Cold(slow)
    found = count(jobs, reason="disk full")
    assert not found.exact
    assert found.number == pytest.approx(333_333, rel=0.01)
    assert ("$sample" in jobs.steps[-1][0]) == (slow < 2)


def test_what_is_known_from_before_most_died_is_not_told() -> None:
    assert count(Cold(0), known=12).number == pytest.approx(333_333, rel=0.01)


def test_all_of_them_are_told_from_what_is_known() -> None:
    jobs = Cold(0)
    assert count(jobs, known=998_877) == (998_877, False)
    assert jobs.steps == []
