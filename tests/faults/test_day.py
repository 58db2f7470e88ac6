"""What happened in a day can be told by who has seen nothing of it: the API has it, and so the dashboard."""

import os
from typing import Any

import pytest

from faults.day import AWAY, BACK, FLOOD, FLOODED, KILLED, POISON, POISONED, POISONOUS, Day, day
from support.http_reader import Web
from support.waiting import wait_until

#: Seconds of the day by which something may be told early or late: a poll and a count take minutes of it.
NEAR = 1200.0


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_day_is_told_by_what_brokers_have_noticed() -> None:
    with day() as it:
        web = Web(it.a.http)

        def told(kind: str, queue: str = "") -> list[dict[str, Any]]:
            incidents = web.get("/api/v1/incidents?span=day").json["incidents"]
            return [
                incident for incident in incidents if (incident["kind"], incident["queue"]) == (kind, queue)
            ]

        def incident(kind: str, queue: str, part: float) -> dict[str, Any]:
            """The one of that time."""

            def found() -> dict[str, Any] | None:
                when = it.at(part)
                these = (row for row in told(kind, queue) if row["at"] - NEAR < when < row["until"] + NEAR)
                return next(these, None)

            return dict(wait_until(found, what=f"{kind} of {queue or 'a broker'}"))

        # The flood, and the backlog that it left
        assert incident("flood", "mail", FLOODED)["figures"]["pushed"] >= FLOOD / 2
        assert incident("backlog", "mail", FLOODED)["figures"]["ready"] > FLOOD / 4
        # The poison
        dead = incident("dead_letters", "images", POISONED)["figures"]
        assert dead["count"] == POISON
        assert POISONOUS in dead["reason"]
        # The outage
        away = incident("store_away", "", AWAY)
        assert away["until"] == pytest.approx(it.at(BACK), abs=NEAR)
        assert len(away["brokers"]) == 2
        # The broker, and the queue that only it had workers for
        assert incident("died", "", KILLED)["brokers"] == [it.killed]
        assert incident("backlog", "invoices", KILLED)["figures"]["pushed"] > 0
        _nothing_is_told_that_did_not_happen(told)
        _the_dead_one_is_listed(it, web)


def _nothing_is_told_that_did_not_happen(told: Any) -> None:
    for queue in ("orders", "search", "invoices", "images"):
        assert told("flood", queue) == []
    for queue in ("orders", "search", "invoices", "mail"):
        assert told("dead_letters", queue) == []


def _the_dead_one_is_listed(it: Day, web: Web) -> None:
    brokers = {row["name"]: row for row in web.get("/api/v1/brokers").json["brokers"]}
    assert brokers[it.killed]["ended"] > brokers[it.killed]["seen"] >= it.at(KILLED) - NEAR
    assert brokers[f"{os.uname().nodename}:{it.a.pid}"]["ended"] is None
