"""Subscriptions in MongoDB: one holder of one kind, a fence for each hold, a watermark stored under it."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.database import Database

from sluicemq_broker.store import Holder, Subscription, SubscriptionStore
from support.jobs import NOW

STREAM, NAME = "prices", "sums"


@pytest.fixture
def store(documents: Database[dict[str, Any]]) -> SubscriptionStore:
    """Of an empty database."""
    return SubscriptionStore(documents)


def holder(token: str, owner: str = "b1") -> Holder:
    return Holder(owner, token, f"worker {token}")


def hold(store: SubscriptionStore, token: str, kind: str = "update", **options: Any) -> Subscription:
    options = {"is_lost": lambda _holder: False, **options}
    return store.hold(STREAM, NAME, kind, holder(token), NOW, **options)


def watermark_of(store: SubscriptionStore) -> int | None:
    found = store.get(STREAM, NAME)
    return found.watermark if found else None


def gone(_holder: Holder) -> bool:
    return True


class TestHold:
    def test_the_first_makes_it_and_holds_it_from_the_beginning_on(self, store: SubscriptionStore) -> None:
        found = hold(store, "a")
        assert found.used_at
        made = Subscription(STREAM, NAME, 0, found.fence, "update", holder("a"), NOW, used_at=found.used_at)
        assert found == made

    def test_one_that_is_made_may_begin_elsewhere(self, store: SubscriptionStore) -> None:
        assert hold(store, "a", initial=70).watermark == 70
        store.release(STREAM, NAME)
        assert hold(store, "b", initial=90).watermark == 70

    @pytest.mark.parametrize("kind", ["update", "rebuild"])
    def test_while_somebody_holds_it_nobody_else_does(self, store: SubscriptionStore, kind: str) -> None:
        held = hold(store, "a")
        assert hold(store, "b", kind) == held

    def test_one_of_the_same_kind_takes_over_from_a_lost_holder(self, store: SubscriptionStore) -> None:
        fence = hold(store, "a").fence
        store.mark(STREAM, NAME, fence, 5, NOW)
        found = hold(store, "b", is_lost=gone, after=0)
        assert (found.holder, found.fence, found.watermark) == (holder("b"), fence + 1, 5)

    def test_one_of_another_kind_does_not_before_it_is_released(self, store: SubscriptionStore) -> None:
        hold(store, "a")
        assert hold(store, "b", "rebuild", is_lost=gone).holder == holder("a")
        assert store.release(STREAM, NAME)
        assert hold(store, "b", "rebuild").holder == holder("b")

    def test_when_the_holder_has_vanished_its_kind_keeps_the_lock(self, store: SubscriptionStore) -> None:
        held = hold(store, "a")
        store.vanish(STREAM, NAME, held.fence)
        assert hold(store, "b", "rebuild").kind == "update"
        assert hold(store, "c").holder == holder("c")

    def test_the_end_of_an_earlier_hold_does_not_end_a_later_one(self, store: SubscriptionStore) -> None:
        early = hold(store, "a")
        late = hold(store, "b", is_lost=gone)
        store.vanish(STREAM, NAME, early.fence)
        assert not store.release(STREAM, NAME, early.fence)
        assert store.get(STREAM, NAME) == late

    def test_a_hold_whose_answer_was_lost_is_found_again(self, store: SubscriptionStore) -> None:
        held = hold(store, "a")
        assert hold(store, "a", after=9) == held

    def test_a_hold_taken_from_nobody_may_begin_anywhere(self, store: SubscriptionStore) -> None:
        fence = hold(store, "a").fence
        store.mark(STREAM, NAME, fence, 8, NOW)
        store.release(STREAM, NAME, fence)
        assert hold(store, "b", "rebuild", after=0).watermark == 0

    def test_of_two_that_have_seen_the_same_one_holds_it(
        self, store: SubscriptionStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Given one that reads how it stands, and another that holds it before the first can
        read = SubscriptionStore.get
        meanwhile = [lambda: hold(store, "b")]

        def read_then_other(self: SubscriptionStore, stream: str, name: str) -> Subscription | None:
            found = read(self, stream, name)
            if meanwhile:
                meanwhile.pop()()
            return found

        hold(store, "z")
        store.release(STREAM, NAME)
        monkeypatch.setattr(SubscriptionStore, "get", read_then_other)
        found = hold(store, "a")
        assert found.holder == holder("b")


class TestMark:
    def test_it_rises_and_never_falls(self, store: SubscriptionStore) -> None:
        fence = hold(store, "a").fence
        for watermark in (3, 9, 5):
            assert store.mark(STREAM, NAME, fence, watermark, NOW + watermark)
        assert watermark_of(store) == 9

    def test_a_late_one_of_an_earlier_hold_is_refused(self, store: SubscriptionStore) -> None:
        early = hold(store, "a").fence
        hold(store, "b", is_lost=gone)
        assert not store.mark(STREAM, NAME, early, 100, NOW)
        assert watermark_of(store) == 0

    def test_a_late_one_of_a_hold_that_was_given_up_is_refused(self, store: SubscriptionStore) -> None:
        fence = hold(store, "a").fence
        store.release(STREAM, NAME)
        assert not store.mark(STREAM, NAME, fence, 100, NOW)

    def test_a_late_one_of_a_subscription_that_was_forgotten_is_refused_by_the_next_of_its_name(
        self, store: SubscriptionStore
    ) -> None:
        early = hold(store, "a").fence
        store.release(STREAM, NAME)
        assert store.delete(STREAM, NAME)
        assert hold(store, "b").fence > early
        assert not store.mark(STREAM, NAME, early, 100, NOW)
        assert not store.release(STREAM, NAME, early)

    def test_one_of_a_vanished_holder_counts_until_another_is(self, store: SubscriptionStore) -> None:
        fence = hold(store, "a").fence
        store.vanish(STREAM, NAME, fence)
        assert store.mark(STREAM, NAME, fence, 4, NOW)


class TestSeek:
    def test_it_sets_the_watermark_both_ways_and_voids_late_marks(self, store: SubscriptionStore) -> None:
        assert store.seek(STREAM, NAME, 50).watermark == 50
        assert store.seek(STREAM, NAME, 10).watermark == 10
        fence = hold(store, "a").fence
        store.release(STREAM, NAME)
        store.seek(STREAM, NAME, 20)
        assert not store.mark(STREAM, NAME, fence, 30, NOW)

    def test_one_that_is_held_stays_as_it_is(self, store: SubscriptionStore) -> None:
        held = hold(store, "a")
        assert store.seek(STREAM, NAME, 50) == held
        assert not store.delete(STREAM, NAME)

    def test_one_that_nobody_holds_can_be_removed(self, store: SubscriptionStore) -> None:
        store.seek(STREAM, NAME, 50)
        store.seek("other", NAME, 1)
        assert store.delete(STREAM, NAME)
        assert [subscription.stream for subscription in store.of()] == ["other"]
        assert store.of(STREAM) == []
