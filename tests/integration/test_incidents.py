"""Incidents: what is out of the ordinary is told once, with when, which queue and how much."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo.database import Database

from sluicemq.protocol.errors import BadFramesError, UnavailableError
from sluicemq.protocol.rows import plain
from sluicemq_broker.config import Config
from sluicemq_broker.history import Incidents
from sluicemq_broker.history.incidents import FLUSH, GAP, LONG
from sluicemq_broker.queues import Queues
from sluicemq_broker.store import IncidentStore, Seen
from support.fakes import Clock, FakeOwners, a_context, a_maker
from support.jobs import NOW
from support.virtual_time import VirtualTime


class Waits:
    """How many jobs of each queue are ready, and for how long the oldest waits."""

    def __init__(self) -> None:
        self.now = (0, 0.0)

    def waiting(self, _queue: object) -> tuple[int, float]:
        return self.now


class IncidentsRig:
    """A broker that counts in queue ``mail``; its time passes with :meth:`later`."""

    def __init__(self, documents: Database[dict[str, Any]], name: str = "a:1") -> None:
        self.time, self.clock, self.waits, self.owners = VirtualTime(), Clock(), Waits(), FakeOwners()
        self.clock.time = NOW
        context = a_context(self.owners, clock=self.clock, timer=self.time)
        self.queues = Queues(Config.default(), context, lambda _name: documents, a_maker())
        census: Any = self.waits
        self.incidents = Incidents(self.queues, census, context, lambda _name: documents, "own", name)
        self.mail = self.queues.open("mail")
        self.incidents.tick()

    def later(self, seconds: float, step: float = 5.0, **counted: int) -> None:
        """Time passes; in each step so much is counted."""
        for _ in range(int(seconds / step)):
            for name, count in counted.items():
                self.mail.counters.add(name, count)
            self.time.value += step
            self.clock.time += step
            self.incidents.tick()

    def told(self, **asked: Any) -> list[dict[str, Any]]:
        return [plain(incident) for incident in self.incidents.read("day", **asked).incidents]

    def one(self) -> dict[str, Any]:
        (told,) = self.told()
        return told


@pytest.fixture
def rig(documents: Database[dict[str, Any]]) -> IncidentsRig:
    return IncidentsRig(documents)


def test_a_flood_is_told_with_its_beginning_its_end_and_what_is_usual(rig: IncidentsRig) -> None:
    # Given twenty minutes of 60 jobs each
    rig.later(1200, pushed=5)
    assert rig.told() == []
    began = rig.clock.time
    rig.later(300, pushed=200)
    rig.later(1200, pushed=5)
    flood = rig.one()
    assert (flood["kind"], flood["queue"]) == ("flood", "mail")
    assert began <= flood["at"] < began + 60
    assert began + 240 < flood["until"] <= began + 360
    assert flood["figures"]["pushed"] == pytest.approx(300 / 5 * 200, abs=60)
    assert flood["figures"]["usual"] == pytest.approx(60, abs=20)


def test_what_a_queue_begins_with_is_no_flood(rig: IncidentsRig) -> None:
    rig.later(500, pushed=1000)
    assert rig.told() == []


def test_dead_letters_of_some_minutes_are_one_incident_with_the_reason_of_the_latest(
    rig: IncidentsRig, documents: Database[dict[str, Any]]
) -> None:
    died = datetime.fromtimestamp(NOW, UTC)
    documents["queue.mail"].insert_one(
        {"_id": "a", "state": "dead", "ended_at": died, "errors": [{"at": died, "reason": "no such address"}]}
    )
    rig.later(60, dead=2)
    dying = rig.incidents.dying()
    rig.later(GAP + 5)
    rig.later(60, dead=1)
    assert dying == {"mail": 24}
    counts = [(row["kind"], row["figures"]["count"], row["figures"]["reason"]) for row in rig.told()]
    assert counts == [("dead_letters", 12, "no such address"), ("dead_letters", 24, "no such address")]


def test_what_happens_in_a_queue_before_the_first_look_at_it_is_told(rig: IncidentsRig) -> None:
    rig.queues.open("new").counters.add("dead", 3)
    rig.incidents.tick()
    assert rig.incidents.dying() == {"new": 3}


def test_jobs_that_wait_for_long_are_told_since_when_they_do(rig: IncidentsRig) -> None:
    rig.waits.now = (7, LONG - 1)
    rig.later(60)
    assert rig.told() == []
    rig.waits.now = (400, LONG + 60)
    rig.later(5, pushed=3, committed=2)
    told = rig.one()
    assert (told["kind"], told["at"]) == ("backlog", rig.clock.time - LONG - 60)
    assert told["figures"] == {"ready": 400, "longest": LONG + 60, "pushed": 3, "committed": 2}


def test_a_pause_and_its_end_are_told(rig: IncidentsRig) -> None:
    rig.mail.pause(frozenset({"delivery"}))
    rig.later(60)
    rig.mail.pause(frozenset())
    rig.later(60)
    assert [(row["kind"], row["figures"]) for row in rig.told()] == [
        ("resumed", {"what": "delivery"}),
        ("paused", {"what": "delivery"}),
    ]


def test_what_several_brokers_noticed_is_one(rig: IncidentsRig, documents: Database[dict[str, Any]]) -> None:
    other = IncidentsRig(documents, "b:2")
    for broker, count in ((rig, 3), (other, 4)):
        broker.later(FLUSH, step=FLUSH, timed_out=count)
        broker.incidents.store_returned(100.0)
        broker.incidents.flush()
    away, timed_out = sorted(rig.told(), key=lambda incident: str(incident["kind"]))
    assert (timed_out["kind"], timed_out["figures"], timed_out["brokers"]) == (
        "timed_out", {"count": 7}, ("a:1", "b:2"),
    )  # fmt: skip
    assert (away["kind"], away["until"] - away["at"], away["brokers"]) == (
        "store_away",
        100.0,
        ("a:1", "b:2"),
    )


def test_a_broker_hears_of_others_deaths(rig: IncidentsRig, documents: Database[dict[str, Any]]) -> None:
    other = IncidentsRig(documents, "b:2")
    rig.owners.others = 1
    other.later(FLUSH, step=FLUSH, dead=4)
    rig.later(FLUSH, step=FLUSH, dead=1)
    assert rig.incidents.dying() == {"mail": 5}


def test_each_broker_that_comes_goes_or_dies_is_told_by_its_name(rig: IncidentsRig) -> None:
    rig.incidents.prepare()
    for name in ("b:2", "c:3"):
        rig.incidents.found_dead(Seen(name, NOW - 900, NOW - 60, NOW))
    rig.incidents.lease_lost()
    rig.incidents.clock_set(-2_592_000.04)
    rig.incidents.close()
    told = {(row["kind"], row["brokers"][0]): row for row in rig.told()}
    assert set(told) == {
        ("started", "a:1"), ("died", "b:2"), ("died", "c:3"), ("lease_lost", "a:1"), ("stopped", "a:1"),
        ("clock_set", "a:1"),
    }  # fmt: skip
    assert told["clock_set", "a:1"]["figures"] == {"seconds": -2_592_000.0}
    assert told["died", "c:3"]["at"] == NOW - 60


def test_a_broker_not_started_writes_nothing(rig: IncidentsRig, documents: Database[dict[str, Any]]) -> None:
    rig.incidents.close()
    assert documents["incidents"].count_documents({}) == 0


def test_what_cannot_be_written_is_told_and_written_later(
    rig: IncidentsRig, documents: Database[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise UnavailableError("MongoDB is away")

    with monkeypatch.context() as patched:
        patched.setattr(IncidentStore, "write", away)
        rig.later(5, dead=1)
        with pytest.raises(UnavailableError):
            rig.later(FLUSH, dead=1)
    assert rig.one()["figures"]["count"] == 2
    rig.later(2 * FLUSH, dead=1)
    (stored,) = documents["incidents"].find()
    assert stored["figures"]["count"] >= 3


def test_a_queue_is_told_what_is_its_own_and_what_all_of_them_feel(rig: IncidentsRig) -> None:
    rig.later(5, dead=1)
    rig.incidents.store_returned(5.0)
    assert {row["kind"] for row in rig.told(queue="mail")} == {"dead_letters", "store_away"}
    assert {row["kind"] for row in rig.told(queue="other")} == {"store_away"}


def test_what_cannot_be_asked_is_refused(rig: IncidentsRig) -> None:
    with pytest.raises(BadFramesError):
        rig.incidents.read("week")
