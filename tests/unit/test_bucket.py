from __future__ import annotations

from sluicemq_broker.runtime.bucket import Bucket


def test_it_gives_so_many_at_once_and_then_so_many_a_second() -> None:
    bucket = Bucket(rate=10.0, most=100.0)
    assert [bucket.take(50.0) for _ in range(101)] == [True] * 100 + [False]
    assert [bucket.take(50.5) for _ in range(6)] == [True] * 5 + [False]


def test_it_is_full_again_after_a_rest_and_no_fuller() -> None:
    bucket = Bucket(rate=10.0, most=3.0)
    assert [bucket.take(now) for now in (1.0, 1.0, 1.0, 1.0)] == [True, True, True, False]
    assert [bucket.take(1000.0) for _ in range(4)] == [True, True, True, False]
