"""What happened in a day can be told by who has seen nothing of it: the API has it, and so the dashboard."""

from __future__ import annotations

import os
from typing import Any

import pytest

from faults.day import AWAY, BACK, FLOOD, FLOODED, KILLED, POISON, POISONED, POISONOUS, Day, day
from launcher import wait_until
from web import Web

#: Seconds of the day by which something may be told early or late: a poll and a count take minutes of it.
NEAR = 1200.0


@pytest.mark.full
def test_a_day_is_told_by_what_brokers_have_noticed() -> None:
    with day() as it:
        web = Web(it.a.http)

        def found(kind: str, queue: str = "") -> dict[str, Any] | None:
            told = web.get("/api/v1/incidents?span=day").json["incidents"]
            return next((each for each in told if (each["kind"], each["queue"]) == (kind, queue)), None)

        def await_incident(kind: str, queue: str = "") -> dict[str, Any]:
            return dict(wait_until(lambda: found(kind, queue), what=f"{kind} of {queue or 'a broker'}"))

        # The flood, and the backlog that it left
        flood = await_incident("flood", "mail")
        assert flood["at"] == pytest.approx(it.at(FLOODED), abs=NEAR)
        assert flood["figures"]["pushed"] >= FLOOD / 2
        backlog = await_incident("backlog", "mail")
        assert backlog["at"] == pytest.approx(it.at(FLOODED), abs=NEAR)
        assert backlog["figures"]["ready"] > FLOOD / 4
        # The poison
        dead = await_incident("dead_letters", "images")
        assert dead["at"] == pytest.approx(it.at(POISONED), abs=NEAR)
        assert dead["figures"]["count"] == POISON
        assert POISONOUS in dead["figures"]["reason"]
        # The outage
        away = await_incident("store_away")
        assert away["at"] == pytest.approx(it.at(AWAY), abs=NEAR)
        assert away["until"] == pytest.approx(it.at(BACK), abs=NEAR)
        assert len(away["brokers"]) == 2
        # The broker, and the queue that only it had workers for
        died = await_incident("died")
        assert (died["brokers"], died["at"]) == ([it.killed], pytest.approx(it.at(KILLED), abs=NEAR))
        assert await_incident("backlog", "invoices")["at"] == pytest.approx(it.at(KILLED), abs=NEAR)
        _nothing_is_told_that_did_not_happen(found)
        _the_dead_one_is_listed(it, web)


def _nothing_is_told_that_did_not_happen(found: Any) -> None:
    for queue in ("orders", "search", "invoices", "images"):
        assert found("flood", queue) is None
    for queue in ("orders", "search", "invoices", "mail"):
        assert found("dead_letters", queue) is None


def _the_dead_one_is_listed(it: Day, web: Web) -> None:
    brokers = {each["name"]: each for each in web.get("/api/v1/brokers").json["brokers"]}
    assert brokers[it.killed]["ended"] > brokers[it.killed]["seen"] >= it.at(KILLED) - NEAR
    assert brokers[f"{os.uname().nodename}:{it.a.pid}"]["ended"] is None
