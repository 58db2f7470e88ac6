"""A stream's messages become jobs: with their watermark, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.database import Database

from sluicemq.protocol.errors import LeaseLostError
from sluicemq_broker.job import Job
from sluicemq_broker.store import Holder, QueueStore, RouteStore, Subscription, SubscriptionStore
from support.jobs import NOW


@pytest.fixture
def subscriptions(documents: Database[dict[str, Any]]) -> SubscriptionStore:
    return SubscriptionStore(documents)


@pytest.fixture
def routes(subscriptions: SubscriptionStore, store: QueueStore) -> RouteStore:
    return RouteStore(subscriptions, store)


def hold(subscriptions: SubscriptionStore, token: str) -> Subscription:
    return subscriptions.hold(
        "prices", "route.mail", "route", Holder("b1", token, token), NOW, is_lost=lambda _holder: True
    )


def messages(first: int, last: int) -> list[Job]:
    made = [Job(f"prices-{number}", b"%d" % number, eligible_at=NOW) for number in range(first, last + 1)]
    for number, job in enumerate(made, first):
        job.accept(number, NOW)
    return made


def watermark(subscriptions: SubscriptionStore) -> int:
    (found,) = subscriptions.of("prices")
    return found.watermark


def test_messages_become_ready_jobs_in_their_order_and_the_watermark_is_behind_them(
    routes: RouteStore, subscriptions: SubscriptionStore, store: QueueStore
) -> None:
    held = hold(subscriptions, "a")
    assert len(routes.route(held, 3, messages(1, 3), NOW)) == 3
    assert len(routes.route(held, 9, messages(7, 8), NOW)) == 2
    claim = store.reserve(10, NOW + 1, "worker")
    assert [job.id for job in claim.jobs] == [f"prices-{number}" for number in (1, 2, 3, 7, 8)]
    assert watermark(subscriptions) == 9


def test_of_a_hold_that_has_ended_nothing_is_stored(
    routes: RouteStore, subscriptions: SubscriptionStore, store: QueueStore
) -> None:
    early = hold(subscriptions, "a")
    hold(subscriptions, "b")
    with pytest.raises(LeaseLostError):
        routes.route(early, 3, messages(1, 3), NOW)
    assert store.jobs.count_documents({}) == 0
    assert watermark(subscriptions) == 0


def test_what_is_in_the_queue_already_stays_as_it_is(
    routes: RouteStore, subscriptions: SubscriptionStore, store: QueueStore
) -> None:
    held = hold(subscriptions, "a")
    store.push([Job("prices-2", b"other")], NOW)
    assert [job.id for job in routes.route(held, 3, messages(1, 3), NOW)] == ["prices-1", "prices-3"]
    assert store.jobs.count_documents({"_id": "prices-2", "payload": b"other"}) == 1
    assert watermark(subscriptions) == 3


def test_one_whose_id_comes_up_meanwhile_is_seen(
    routes: RouteStore, subscriptions: SubscriptionStore, store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given another that pushes an id just after the route has looked which are there
    held = hold(subscriptions, "a")
    look = QueueStore.which_exist
    meanwhile = [lambda: store.push([Job("prices-2", b"other")], NOW)]

    def look_then_push(self: QueueStore, ids: list[str]) -> set[str]:
        there = look(self, ids)
        if meanwhile:
            meanwhile.pop()()
        return there

    monkeypatch.setattr(QueueStore, "which_exist", look_then_push)
    # When, then
    assert [job.id for job in routes.route(held, 3, messages(1, 3), NOW)] == ["prices-1", "prices-3"]
    assert store.jobs.count_documents({}) == 3


def test_without_messages_the_watermark_goes_on(routes: RouteStore, subscriptions: SubscriptionStore) -> None:
    assert routes.route(hold(subscriptions, "a"), 12, [], NOW) == []
    assert watermark(subscriptions) == 12
