"""The plans of what groups cost, over 40,000 jobs in 4,000 groups; in `full` over 1,000,000 in 100,000."""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from integration.explained_plans import Explainer
from sluicemq_broker.store import (
    COUNTED_EXACTLY,
    DeadLetters,
    Inspector,
    QueueDefaults,
    QueueStore,
    collection,
    date,
)
from sluicemq_broker.store.jobs.documents import document
from support.jobs import NOW, ChangesAtOnce, a_job

#: Jobs of one group, the first of which is its head; every fiftieth group has none.
EACH, HEADLESS = 10, 50
AT_ONCE = 256


@pytest.fixture(scope="module", params=[4_000, pytest.param(100_000, marks=pytest.mark.full)])
def groups(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


@pytest.fixture(scope="module")
def lined_up(mongo_uri: str, explainer: Explainer, groups: int) -> Iterator[QueueStore]:
    name = f"test_{token_hex(6)}"
    with MongoClient[dict[str, Any]](mongo_uri, event_listeners=[explainer]) as client:
        store = QueueStore(client[name], collection("mail"))
        fast = store.jobs.with_options(write_concern=WriteConcern(1))
        for place in range(EACH):
            for start in range(0, groups, 2_000):
                fast.insert_many(
                    [_job(at, place) for at in range(start, min(groups, start + 2_000))], ordered=False
                )
        store.prepare()
        store.groups.prepare()
        store.claims.reply_sizes.measured(200)  # else its first claim would
        yield store
        client.drop_database(name)


def _job(group: int, place: int) -> dict[str, Any]:
    expires_at = NOW + 60 if (group, place) == (1, 1) else None
    job = a_job(f"{group}-{place}", group=f"group-{group}", expires_at=expires_at)
    job.line_up(1 + place)
    found = document(job, date(NOW), QueueDefaults())
    if place == 0 and group % HEADLESS:
        del found["wait"]
        found |= {"state": "ready", "head": job.group}
    return found


def test_a_promotion_takes_two_keys_for_each_group_and_no_more(
    lined_up: QueueStore, explainer: Explainer, groups: int
) -> None:
    ended = lined_up.reserve(AT_ONCE, NOW, "me").jobs
    names = [job.group or "" for job in ended]
    with explainer.plans() as plans:
        lined_up.commit(ended)
        promoted = lined_up.groups.promote(names, NOW)
        claimed = lined_up.reserve(AT_ONCE, NOW, "me")
    removed, heads, first, made, found, _ = plans
    assert (len(promoted.ready), len(claimed.jobs)) == (AT_ONCE, AT_ONCE)
    assert (removed.documents, heads.documents, heads.returned) == (AT_ONCE, 0, 0)
    assert heads.keys <= AT_ONCE + 1
    assert first.stages >= {"DISTINCT_SCAN"}
    assert (first.documents, first.keys <= 2 * AT_ONCE) == (AT_ONCE, True)
    assert (made.documents, made.keys <= 2 * AT_ONCE) == (AT_ONCE, True)
    assert found.keys <= AT_ONCE * 1.05 + 1
    assert all(plan.stages & {"COLLSCAN", "SORT"} == set() for plan in plans)


def test_groups_that_have_heads_cost_a_key_each(lined_up: QueueStore, explainer: Explainer) -> None:
    names = [f"group-{at}" for at in range(AT_ONCE * 3, AT_ONCE * 4) if at % HEADLESS]
    with explainer.plans() as plans:
        lined_up.groups.promote(names, NOW)
    (heads,) = plans
    assert heads.documents == 0
    assert heads.keys <= 2 * len(names)


def test_headless_groups_are_found_by_a_key_for_each_group(
    lined_up: QueueStore, explainer: Explainer, groups: int
) -> None:
    with explainer.plans() as plans:
        found = [group for page in lined_up.groups.headless() for group in page]
    assert len(found) == groups // HEADLESS
    walk, *heads = plans
    assert (walk.documents, walk.keys <= groups + 1, walk.stages >= {"DISTINCT_SCAN"}) == (0, True, True)
    assert sum(head.keys for head in heads) <= 2 * groups
    assert sum(head.documents for head in heads) == 0


def test_who_expires_in_a_line_is_found_by_key(lined_up: QueueStore, explainer: Explainer) -> None:
    with explainer.plans() as plans:
        assert lined_up.will_expire()
        assert lined_up.expire(NOW).ids == []
        assert lined_up.expire(NOW + 60).ids == ["1-1"]
    assert all(plan.keys <= 1 and "COLLSCAN" not in plan.stages for plan in plans)


def test_what_waits_is_counted_and_shown_by_its_keys(lined_up: QueueStore, explainer: Explainer) -> None:
    inspector = Inspector(lined_up.jobs.database)
    with explainer.plans() as plans:
        counts = inspector.counts("mail", NOW)
        shown = inspector.peek("mail", "waiting", 10, 10**6, NOW)
    assert counts["waiting"] > COUNTED_EXACTLY
    assert (len(shown), plans[-1].keys) == (10, 10)
    assert all(plan.keys <= COUNTED_EXACTLY + 2 for plan in plans)
    assert all(plan.stages & {"COLLSCAN", "SORT"} == set() for plan in plans[:-1])


def test_a_redrive_lines_its_page_up_by_ids(lined_up: QueueStore, explainer: Explainer) -> None:
    ids = [f"{at}-0" for at in range(2001, 2040)]
    dead = {"$set": {"state": "dead", "ended_at": date(NOW)}, "$unset": {"head": ""}}
    lined_up.jobs.update_many({"_id": {"$in": ids}}, dead)
    with explainer.plans() as plans:
        redriven = ChangesAtOnce(lined_up.jobs.database).redrive("mail", DeadLetters(), NOW)
    assert (redriven.moved, len(redriven.groups)) == (39, 39)
    assert all(plan.documents <= 40 and plan.stages & {"COLLSCAN", "SORT"} == set() for plan in plans)
