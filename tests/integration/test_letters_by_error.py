"""Dead letters are chosen by what was raised, where, and by kind; listed over all queues, and exported."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from sluicemq import Client, Job, Producer, Worker
from sluicemq_broker.store import type_of
from support.broker_process import BrokerProcess
from support.broker_under_test import serving
from support.http_reader import Web
from support.waiting import TIMEOUT, wait_until

#: By id: the kind, and what its worker says.
LETTERS = {
    "typed": ("mail", KeyError("name")),
    "other": ("mail", ValueError("no such template")),
    "again": ("sms", KeyError("number")),
}
#: Reasons without a type, of which some are of one error.
REASONS = ("timed out after 30 s", "timed out after 2 s", "disk (a+b) full", "disk (a+b) full: sda", "a#b")


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    queues = {name: {"backoff": "none", "max_attempts": 1} for name in ("mail", "plain", "sms")}
    with serving(mongo_uri, [], queues=queues, http="127.0.0.1:0") as broker:
        endpoint = broker.process.doors["smq"]
        with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
            for job_id, (kind, _) in LETTERS.items():
                producer.push("mail", b"\x00\xff" if job_id == "typed" else b"text", id=job_id, kind=kind)
            for number, reason in enumerate(REASONS):
                producer.push("plain", reason.encode(), id=f"p-{number}")
            producer.flush(TIMEOUT)
            with Worker("mail", fail, endpoint=endpoint):
                wait_until(lambda: client.queues.get("mail").dead == len(LETTERS))
            with client.jobs.reserve("plain", len(REASONS)) as claim:
                for job in claim.jobs:
                    job.reject(job.payload.decode())
            wait_until(lambda: client.queues.get("plain").dead == len(REASONS))
        yield broker.process


def fail(job: Job) -> None:
    raise LETTERS[job.id][1]


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(endpoint=broker.doors["smq"]) as client:
        yield client


def test_each_error_of_the_groups_chooses_as_many_as_were_counted(client: Client) -> None:
    for queue in ("mail", "plain"):
        errors = client.dead_letters.by_error(queue).errors
        assert errors
        for group in errors:
            found = client.dead_letters.latest(queue, error=group.type, place=group.place or "?")
            assert len(found) == group.count, group
            assert client.dead_letters.count(queue, error=group.type).count >= group.count
    timed_out = type_of(REASONS[0])
    assert {letter.id for letter in client.dead_letters.latest("plain", error=timed_out)} == {"p-0", "p-1"}
    assert [letter.id for letter in client.dead_letters.latest("plain", error="a#b")] == ["p-4"]
    assert client.dead_letters.latest("plain", error="disk (a+b) full: sda", place="nowhere") == []


def test_letters_of_a_kind_and_an_error_are_listed_with_the_latest_first(client: Client) -> None:
    latest = client.dead_letters.latest("mail")
    died = [letter.ended_at or 0.0 for letter in latest]
    assert died == sorted(died, reverse=True)
    assert [letter.id for letter in client.dead_letters.latest("mail", kind="sms", error="KeyError")] == [
        "again"
    ]
    assert len(client.dead_letters.latest("mail", 2)) == 2


def test_an_export_has_every_letter_whole(broker: BrokerProcess, client: Client) -> None:
    whole = {letter.id: letter for letter in client.dead_letters.iterate("mail")}
    assert whole.keys() == LETTERS.keys()
    assert whole["typed"].payload == b"\x00\xff"
    assert "KeyError" in str(whole["typed"].errors)
    answer = Web(broker.http).get("/api/v1/queues/mail/dead-letters/export?error=KeyError")
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert {letter["id"] for letter in lines} == {"typed", "again"}
    (typed,) = (letter for letter in lines if letter["id"] == "typed")
    assert (typed["queue"], typed["payload"]) == ("mail", {"base64": "AP8="})
    assert "traceback" in typed["errors"][0]
    assert Web(broker.http).get("/api/v1/queues/no-queue/dead-letters/export").status == 404


def test_only_the_letters_of_an_error_are_redriven_or_gone(broker: BrokerProcess, client: Client) -> None:
    error = type_of(REASONS[0])
    assert client.dead_letters.redrive("plain", error=error).result(TIMEOUT).moved == 2
    assert {letter.id for letter in client.jobs.list("plain", "ready")} == {"p-0", "p-1"}
    assert client.dead_letters.discard("plain", error="a#b", place="?").result(TIMEOUT) == 1
    assert {letter.id for letter in client.dead_letters.latest("plain")} == {"p-2", "p-3"}
