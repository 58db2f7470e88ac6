"""The queues of one broker: what becomes of those who wait when one is removed, or when one fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from pymongo.database import Database

from broker.backends import PopWorker
from broker.config import Config
from broker.counters import Counters
from broker.deadline import Deadline
from broker.intake import Push
from broker.job import Dedupe
from broker.patience import Patience
from broker.queue import House
from broker.queues import Queues
from broker.server import Server
from broker.store_inspect import collection
from fakes import Clock, FakeOwners, FakeWorker, Held
from jobs import a_job
from sluicemq import wire
from sluicemq.errors import NotFound, Paused


@pytest.fixture
def queues(documents: Database[dict[str, Any]]) -> Queues:
    house = House(lambda _name: documents, FakeOwners(), Clock(), Patience(), Counters())  # type: ignore[arg-type]
    return Queues(Config.default(), house)


@pytest.fixture
def server() -> Iterator[Server]:
    """A broker that is not started."""
    server = Server(Config.default(), "mongodb://127.0.0.1:9", alone=False)
    yield server
    server._mongo.close()


def test_who_waits_for_a_job_of_a_removed_queue_is_told_and_nothing_of_it_is_held(queues: Queues) -> None:
    # Given
    queue, told = queues.open("mail"), list[Any]()
    queue.answers.wait("a", told.append)
    staged, held = a_job("a", owner="owner-1"), a_job("b", owner="owner-1")
    queue.dispatch.held = {"a": staged, "b": held}
    queue.dispatch._staged.add([staged])
    # When
    queues.forget("mail")
    # Then
    assert [type(each) for each in told] == [NotFound]
    assert queue.dispatch.held == {}
    assert queue.dispatch.withdraw() == []
    assert list(queues) == []


def test_a_queue_that_fails_costs_the_others_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given
    failing, others = server._queues.open("failing"), [server._queues.open(name) for name in ("b", "c")]
    ticked: list[str] = []
    monkeypatch.setattr(failing, "tick", lambda: 1 / 0)
    for queue in others:
        monkeypatch.setattr(queue, "tick", lambda name=queue.name: ticked.append(name))
    # When
    with caplog.at_level(logging.ERROR, "broker"):
        server._tick()
    # Then
    assert ticked == ["b", "c"]
    assert "queue failing failed" in caplog.text


class LaneThatFills:
    """Takes jobs until one is on its way."""

    peer = "peer"
    backlog = 0  # nothing was sent

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    @property
    def writable(self) -> bool:
        return not self._counters.values["delivered"]


@pytest.mark.parametrize(
    "settings", [{}, {"keep_done": 60.0}, {"remember": 60.0}, {"dedupe": Dedupe("d", 60.0)}]
)
def test_what_was_popped_and_could_not_be_sent_is_ready_again_also_where_it_is_kept_as_done(
    queues: Queues, settings: dict[str, Any]
) -> None:
    # Given a worker whose socket takes nothing more once a job was popped for it
    queue, deadline, counters = queues.open("mail"), Deadline(), queues._house.counters
    device = SimpleNamespace(envelope="payload")
    backend: Any = SimpleNamespace(
        queue=queue, prefetch=1, room=9, workers=set(), counters=counters, settings=device
    )
    worker = PopWorker(backend, LaneThatFills(counters))  # type: ignore[arg-type]
    queue.dispatch.attach(worker)
    queue.push(Push([a_job("a", b"payload", **settings)], lambda *_: None))
    deadline.begin(5.0)
    assert deadline.until(lambda: bool(worker._popped))
    # When
    worker.gone = True
    worker._closed()
    # Then
    assert deadline.until(lambda: not queue.busy)
    [stored] = queue.store.jobs.find()
    expected = {"_id": "a", "state": "ready", "payload": b"payload", "attempts": 0}
    assert {name: stored[name] for name in expected} == expected
    assert "remove_at" not in stored


def test_what_a_pop_that_ends_late_pushes_anew_is_waited_for(
    documents: Database[dict[str, Any]], queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a queue where nothing is taken in, and a removal for a worker that is gone is under way
    queue, ending, deadline = queues.open("mail"), Held(), Deadline()

    def pushes_anew(_pops: object) -> None:
        ending()
        queue.push(Push([a_job("again")], lambda *_: None))

    monkeypatch.setattr(queue.settle._pops, "_write", pushes_anew)
    queue.settle._pops.add((FakeWorker(), []))
    # When
    gevent.spawn_later(0.05, ending.set)
    deadline.begin(5.0)
    # Then
    assert deadline.until(lambda: not queue.busy)
    assert documents[collection("mail")].count_documents({"_id": "again"}) == 1


def test_a_queue_that_is_opened_after_it_was_paused_elsewhere_is_paused_from_its_first_moment(
    documents: Database[dict[str, Any]], queues: Queues
) -> None:
    # Given
    elsewhere = Queues(Config.default(), queues._house)
    elsewhere.pause(elsewhere.open("mail"), wire.INTAKE)
    # When
    queues.follow_pauses()
    # Then
    assert queues.open("mail").paused == {"intake"}
    with pytest.raises(Paused):
        queues.for_push("mail").admit()
    assert queues.open("other").paused == frozenset()
