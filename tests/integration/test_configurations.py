"""Settings of brokers' files in MongoDB, and how much of them is looked at in one turn of the hub."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import pytest
from pymongo.database import Database

from sluicemq_broker.config import Config
from sluicemq_broker.queues import Disagreements, Queues
from sluicemq_broker.store import ConfigurationStore, LeaseStore, QueueRecord
from sluicemq_devices.hub import let_others_run
from support.fakes import FakeOwners, a_context, a_maker
from support.jobs import NOW

MANY = 2000
#: Queues that may be looked at in one turn: what a few milliseconds are enough for.
A_TURN = 250


class Turns:
    """The number of the hub's turn, and how often something was done in each."""

    def __init__(self) -> None:
        self.number = 0
        self.done: Counter[int] = Counter()

    def note(self) -> None:
        self.done[self.number] += 1

    @contextmanager
    def counted(self) -> Iterator[None]:
        def count() -> None:
            while True:
                let_others_run()
                self.number += 1

        counting = gevent.spawn(count)
        try:
            yield
        finally:
            counting.kill()

    @property
    def most(self) -> int:
        return max(self.done.values(), default=0)


@pytest.fixture
def queues(documents: Database[dict[str, Any]]) -> Queues:
    owners = FakeOwners()
    owners.others = 1
    return Queues(Config.default(), a_context(owners), lambda _name: documents, a_maker())


def say(documents: Database[dict[str, Any]], broker: str, texts: list[str]) -> None:
    LeaseStore(documents).begin(broker, broker, 60.0, NOW)
    ConfigurationStore(documents).put([broker], f"digest of {broker}", texts, NOW)


def pieces(ttl: float) -> list[str]:
    names = [f"q{number}" for number in range(MANY)]
    return [json.dumps({name: {"ttl": ttl} for name in names[at : at + 200]}) for at in range(0, MANY, 200)]


def test_settings_are_read_as_they_were_said(documents: Database[dict[str, Any]]) -> None:
    say(documents, "a", ['{"*": {}, "mail": {"ttl": 60.0}}', '{"news": {"max_running": 5}}'])
    read = ConfigurationStore(documents).read(["digest of a"])
    assert read == {"digest of a": {"*": {}, "mail": {"ttl": 60.0}, "news": {"max_running": 5}}}


@pytest.mark.parametrize("damaged", [None, "{}", 7, ["["], ["7"], ['{"mail": 7}'], [7]])
def test_settings_that_can_not_be_read_are_none(documents: Database[dict[str, Any]], damaged: Any) -> None:
    say(documents, "a", [])
    documents["configurations"].update_many({}, {"$set": {"queues": damaged}})
    assert ConfigurationStore(documents).read(["digest of a"]) == {}


def test_too_large_a_file_is_compared_with_none(queues: Queues, documents: Database[dict[str, Any]]) -> None:
    say(documents, "a", [json.dumps({"mail": {"topic": "x" * 3_000_000}})])
    say(documents, "b", ['{"mail": {"ttl": 60.0}}'])
    looking = Disagreements(queues, queues.context)
    looking.tick()
    assert looking.found == []


def test_many_differences_take_short_turns(queues: Queues, documents: Database[dict[str, Any]]) -> None:
    say(documents, "a", pieces(60.0))
    say(documents, "b", pieces(61.0))
    looking, turns, of = Disagreements(queues, queues.context), Turns(), queues.records.of

    def noted(database: str, queue: str) -> QueueRecord:
        turns.note()
        return of(database, queue)

    queues.records.of = noted  # type: ignore[method-assign]
    with turns.counted():
        looking.tick()
    # Then each difference takes two looks at records
    assert len(looking.found) == 200
    assert sum(turns.done.values()) == 2 * MANY
    assert turns.most <= 2 * A_TURN


def test_a_file_that_is_read_again_is_taken_over_in_short_turns(queues: Queues) -> None:
    turns = Turns()
    for number in range(300):
        queues.open(f"q{number}")
    of = queues.settings.of

    def noted(name: str) -> Any:
        turns.note()
        return of(name)

    queues.settings.of = noted  # type: ignore[method-assign]
    with turns.counted():
        queues.reconfigure(Config.default())
    assert sum(turns.done.values()) >= 300
    assert turns.most <= 20
