"""What is told of jobs to whoever listens."""

from __future__ import annotations

from typing import Any

from sluicemq_broker.runtime import Events
from sluicemq_broker.runtime.events import HELD, LISTENING
from support.virtual_time import VirtualTime


def ids(told: dict[str, list[dict[str, str]]]) -> list[str]:
    return [row["job"] for row in told["events"]]


def test_nothing_is_told_while_nobody_listens() -> None:
    events = Events()
    assert not events.wanted
    events.emit("pushed", 1.0, [{"job": "a"}])
    assert events.read(None, None, 10) == {"events": [], "after": 0, "missed": 0}


def test_who_listens_hears_of_what_happens_from_then_on() -> None:
    events = Events()
    mail = events.of("mail")
    after = events.read(None, None, 10)["after"]
    mail.emit("pushed", 5.0, [{"job": "a"}, {"job": "b"}])
    told = events.read(after, None, 10)
    assert told["events"][0] == {"at": 5.0, "event": "pushed", "queue": "mail", "job": "a"}
    assert ids(told) == ["a", "b"]
    assert events.read(told["after"], None, 10)["events"] == []


def test_one_queue_may_be_listened_to() -> None:
    events = Events()
    events.read(None, None, 10)
    events.of("mail").emit("pushed", 5.0, [{"job": "a"}])
    events.of("other").emit("pushed", 5.0, [{"job": "b"}])
    assert ids(events.read(0, "other", 10)) == ["b"]


def test_who_sees_some_queues_learns_nothing_of_how_much_happens_in_others() -> None:
    def told(after: int | None) -> dict[str, Any]:
        return events.read(after, None, 2, lambda queue: queue == "mail")

    events = Events()
    for name, jobs in (("mail", ["a"]), ("other", ["x", "y", "z"]), ("mail", ["b", "c"]), ("other", ["z"])):
        events.read(None, None, 10)
        events.of(name).emit("redriven", 5.0, [{"job": job, "from": "other"} for job in jobs])
    first = told(0)
    assert ids(first) == ["a", "b"]
    assert (first["after"], first["missed"]) == (2, 0)
    assert all("from" not in event for event in first["events"])
    assert ids(told(first["after"])) == ["c"]
    assert told(None) == {"events": [], "after": 3, "missed": 0}
    events.of("mail").emit("pushed", 5.0, [{"job": "d"}])
    events.of("other").emit("pushed", 5.0, [{"job": str(number)} for number in range(HELD)])
    assert told(3) == {"events": [], "after": 4, "missed": 1}


def test_an_answer_has_so_many_and_the_next_one_goes_on() -> None:
    events = Events()
    events.read(None, None, 10)
    events.emit("pushed", 5.0, [{"job": str(number)} for number in range(25)])
    after, seen = 0, []
    for _ in range(3):
        told = events.read(after, None, 10)
        after = told["after"]
        seen += ids(told)
    assert seen == [str(number) for number in range(25)]


def test_who_is_too_slow_is_told_how_many_were_missed() -> None:
    events = Events()
    events.read(None, None, 10)
    events.emit("pushed", 5.0, [{"job": str(number)} for number in range(HELD + 7)])
    told = events.read(0, None, 3)
    assert told["missed"] == 7
    assert ids(told) == ["7", "8", "9"]
    assert events.read(told["after"], None, 1)["missed"] == 0


def test_when_nobody_asks_any_more_nothing_is_told_and_nothing_held() -> None:
    time = VirtualTime()
    events = Events(time)
    events.read(None, None, 10)
    events.emit("pushed", 5.0, [{"job": "a"}])
    time.value += LISTENING - 1
    events.tick()
    assert events.wanted
    time.value += 1
    events.tick()
    assert not events.wanted
    assert events.read(0, None, 10) == {"events": [], "after": 1, "missed": 1}


def test_a_number_of_a_former_broker_begins_anew() -> None:
    events = Events()
    assert events.read(9999, None, 10) == {"events": [], "after": 0, "missed": 0}
