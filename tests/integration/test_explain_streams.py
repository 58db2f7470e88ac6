"""What reads of a stream cost MongoDB where ten million messages lie: a key or two, wherever they begin."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from secrets import token_hex
from typing import Any

import pytest
from bson.int64 import Int64
from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from integration.explained_plans import Explainer, Plan
from sluicemq_broker.store import StreamStore, date
from sluicemq_broker.streams import BatchNumber
from support.jobs import NOW

MESSAGES = 10_000_000
#: Messages a second, as their times say.
PACE = 1000.0


@pytest.fixture(scope="module", params=[4096, pytest.param(64, marks=pytest.mark.full)])
def log(mongo_uri: str, explainer: Explainer, request: pytest.FixtureRequest) -> Iterator[StreamStore]:
    """A stream of ten million messages, so many a segment; no more of them than a test needs is stored."""
    name = f"test_{token_hex(6)}"
    with MongoClient[dict[str, Any]](mongo_uri, event_listeners=[explainer]) as client:
        log = StreamStore(client[name], "prices")
        log.prepare(NOW)
        # What a majority has: reads see nothing else.
        segments = client[name].get_collection("stream.prices", write_concern=WriteConcern("majority"))
        firsts = range(1, MESSAGES + 1, request.param)
        for at in range(0, len(firsts), 10_000):
            segments.insert_many([_segment(first, request.param) for first in firsts[at : at + 10_000]])
        yield log
        client.drop_database(name)


def _segment(first: int, count: int) -> dict[str, Any]:
    return {
        "_id": Int64(first),
        "count": count,
        "at": date(NOW + first / PACE),
        "size": 0,
        "total": Int64(0),
        "mark": f"a:{first}",
        "packed": b"",
        "topics": [],
    }


def searched(plans: list[Plan]) -> list[Plan]:
    """Without the look at the head, which is found by its ``_id``."""
    return [plan for plan in plans if "IDHACK" not in plan.stages and "EXPRESS" not in str(plan.stages)]


@pytest.mark.parametrize("seed", range(5))
def test_any_number_is_found_with_two_keys(log: StreamStore, explainer: Explainer, seed: int) -> None:
    number = Random(seed).randrange(1, MESSAGES)
    with explainer.plans() as plans:
        page = log.read(number, 1)
    assert page.segments[0].first <= number < page.segments[0].next
    assert sum(plan.keys for plan in searched(plans)) <= 2
    assert all("IXSCAN" in plan.stages for plan in searched(plans))


def test_a_time_is_found_with_a_key_or_two_for_each_half(log: StreamStore, explainer: Explainer) -> None:
    with explainer.plans() as plans:
        found = log.since(NOW + MESSAGES / 2 / PACE)
    assert abs(found - MESSAGES / 2) <= 4096
    assert len(plans) <= 2 * 24  # halves of ten million, and their ends
    assert all(plan.keys <= 2 for plan in plans)


def test_the_end_is_found_with_one_key(log: StreamStore, explainer: Explainer) -> None:
    with explainer.plans() as plans:
        assert log.tail().next > MESSAGES
    assert [plan.keys for plan in plans] == [1]


def test_later_batches_of_a_publisher_are_searched_among_its(explainer: Explainer, mongo_uri: str) -> None:
    name = f"test_{token_hex(6)}"
    with MongoClient[dict[str, Any]](mongo_uri, event_listeners=[explainer]) as client:
        log = StreamStore(client[name], "prices")
        log.prepare(NOW)
        ids = [f"#{publisher}/{number:012}" for number in range(500) for publisher in ("p", "q", "r")]
        segments = client[name].get_collection("stream.prices", write_concern=WriteConcern("majority"))
        for at in range(0, len(ids), 10):
            some = {"ids": ids[at : at + 10], "places": [0] * 10}
            segments.insert_one({**_segment(1 + at, 10), **some})
        ends = [BatchNumber(f"#{publisher}", 499).later_ids for publisher in ("p", "q", "r")]
        with explainer.plans() as plans:
            found = [log.has_between(ends), log.has_between([BatchNumber("#p", 7).later_ids])]
        client.drop_database(name)

    assert found == [False, True]
    assert all("COLLSCAN" not in plan.stages for plan in plans)
    assert sum(plan.keys for plan in plans) <= 10
