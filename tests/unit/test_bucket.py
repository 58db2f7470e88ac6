from __future__ import annotations

from sluicemq_broker.runtime import Bucket, Buckets


def test_it_gives_so_many_at_once_and_then_so_many_a_second() -> None:
    bucket = Bucket(rate=10.0, most=100.0)
    assert [bucket.take(50.0) for _ in range(101)] == [True] * 100 + [False]
    assert [bucket.take(50.5) for _ in range(6)] == [True] * 5 + [False]


def test_it_is_full_again_after_a_rest_and_no_fuller() -> None:
    bucket = Bucket(rate=10.0, most=3.0)
    assert [bucket.take(now) for now in (1.0, 1.0, 1.0, 1.0)] == [True, True, True, False]
    assert [bucket.take(1000.0) for _ in range(4)] == [True, True, True, False]


def test_one_key_can_not_use_up_the_tokens_of_another_and_all_together_are_bounded() -> None:
    buckets = Buckets(per_key=(1.0, 2.0), every=(1.0, 4.0))
    assert [buckets.take("a", 5.0) for _ in range(4)] == [True, True, False, False]
    assert [buckets.take("b", 5.0) for _ in range(2)] == [True, True]
    assert not buckets.take("c", 5.0)


def test_a_token_that_was_given_back_can_be_taken_again() -> None:
    buckets = Buckets(per_key=(0.0, 1.0), every=(0.0, 1.0))
    assert buckets.take("a", 5.0)
    buckets.give_back("a")
    assert buckets.take("a", 5.0)


def test_keys_beyond_the_known_ones_are_forgotten() -> None:
    buckets = Buckets(per_key=(0.0, 1.0), every=(0.0, 100.0), known=2)
    for key in ("a", "b", "c"):
        assert buckets.take(key, 5.0)
    assert buckets.take("a", 5.0)
    assert not buckets.take("c", 5.0)


def test_tokens_that_are_not_there_yet_can_be_spent_and_must_come_first() -> None:
    bucket = Bucket(rate=10.0, most=10.0)
    bucket.spend(30.0, 50.0)
    assert bucket.wait(50.0) == 2.0
    assert bucket.wait(51.0) == 1.0
    assert not bucket.take(52.05)
    assert bucket.take(52.2)
