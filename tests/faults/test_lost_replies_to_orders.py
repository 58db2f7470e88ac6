"""An operator's order is carried out and its reply is lost: it is done whole, and once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex

import pytest

from faults.mongo_proxy import CuttingProxy
from sluicemq_broker.store import (
    DeadLetters,
    QueueRecordStore,
    QueueStore,
    RolledBack,
    Unclear,
    collection,
    connect,
)
from support.jobs import NOW, ChangesAtOnce, a_job, everything, ids, some_jobs

LATER = NOW + 9


class TwoQueues:
    """Two queues of a database behind a proxy; in the first one lie 20 dead letters."""

    def __init__(self, proxy: CuttingProxy, mail: QueueStore, other: QueueStore) -> None:
        self.proxy = proxy
        self.mail = mail
        self.other = other
        self.changes = ChangesAtOnce(mail.jobs.database)
        self.records = QueueRecordStore(mail.jobs.database)
        jobs = some_jobs(20, owner="me")
        mail.push(jobs, NOW)
        mail.roll_back([RolledBack(job, "bad", "worker", dead=True) for job in jobs], NOW)
        self.letters = set(ids(jobs))

    def cut(self, name: str, times: int = 1) -> None:
        self.proxy.cut(lambda command: command.name == name, times)


@pytest.fixture
def queues(mongo_uri: str) -> Iterator[TwoQueues]:
    name = f"test_{token_hex(6)}"
    with CuttingProxy(mongo_uri) as proxy, connect(proxy.uri) as mongo:
        mail, other = (QueueStore(mongo[name], collection(text)) for text in ("mail", "other"))
        mail.prepare()
        other.prepare()
        yield TwoQueues(proxy, mail, other)
    with connect(mongo_uri) as mongo:
        mongo.drop_database(name)


def test_a_redrive_whose_reply_is_lost_was_done_once_and_is_not_done_again(queues: TwoQueues) -> None:
    queues.cut("update")
    with pytest.raises(Unclear):
        queues.changes.redrive("mail", DeadLetters(), LATER)
    assert queues.changes.redrive("mail", DeadLetters(), LATER).moved == 0
    found = everything(queues.mail)
    assert found.keys() == queues.letters
    assert {row["state"] for row in found.values()} == {"ready"}
    assert {len(row["errors"]) for row in found.values()} == {2}


@pytest.mark.parametrize("command", ["update", "insert", "delete", "commitTransaction"])
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_move_to_another_queue_whose_replies_are_lost_leaves_each_job_in_one_of_them(
    queues: TwoQueues, command: str, times: int
) -> None:
    queues.cut(command, times)
    with suppress(Unclear):
        queues.changes.redrive("mail", DeadLetters(), LATER, queues.other)
    assert len(queues.proxy.cuts) == times
    here, there = everything(queues.mail).keys(), everything(queues.other).keys()
    assert here | there == queues.letters
    assert here & there == set()
    # When it is repeated
    queues.changes.redrive("mail", DeadLetters(), LATER, queues.other)
    assert everything(queues.mail) == {}
    assert {row["state"] for row in everything(queues.other).values()} == {"ready"}
    assert {len(row["errors"]) for row in everything(queues.other).values()} == {2}


def test_a_promotion_and_a_pause_whose_replies_are_lost_are_carried_out(queues: TwoQueues) -> None:
    queues.mail.push([a_job("a", eligible_at=NOW + 60)], NOW)
    queues.cut("update")
    queues.changes.promote("mail", "a", LATER)
    assert ids(queues.mail.reserve(1, LATER, "me").jobs) == ["a"]
    queues.cut("commitTransaction")
    queues.records.change("mail", lambda record: replace(record, paused=frozenset({"intake"})), LATER)
    assert [(queue.name, queue.paused) for queue in queues.records.read()] == [
        ("mail", frozenset({"intake"}))
    ]
    assert len(queues.proxy.cuts) == 2
