"""Failpoints: a broker dies or waits at the statement that is named, and nowhere else."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from pymongo import MongoClient

from sluicemq import Client, Producer, SluiceError
from support.broker_process import BrokerProcess
from support.waiting import TIMEOUT

INSERT = "jobs.insert"
COMMIT = "jobs.commit"


def broker(mongo_uri: str, database: str, failpoints: str) -> BrokerProcess:
    return BrokerProcess(mongo_uri, database, failpoints=failpoints)


def stored(mongo_uri: str, database: str) -> int:
    with MongoClient[dict[str, object]](mongo_uri) as client:
        return int(client[database]["queue.mail"].count_documents({}))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("moment", "left"), [("before", 1), ("after", 2)])
def test_a_broker_dies_at_the_second_meeting_of_a_statement(
    mongo_uri: str, database: str, moment: str, left: int
) -> None:
    with broker(mongo_uri, database, f"{INSERT}.{moment}=die@2") as dying:
        with suppress(SluiceError), Producer(close_timeout=0.1, endpoint=dying.doors["smq"]) as producer:
            producer.push("mail", b"first").wait(TIMEOUT)
            producer.push("mail", b"second")
            assert dying.process.wait(TIMEOUT) == -signal.SIGKILL
        assert stored(mongo_uri, database) == left


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("verb", "code"), [("forwards", -signal.SIGKILL), ("redrives", None)])
def test_of_a_statement_that_verbs_share_the_verb_that_is_named_is_met(
    mongo_uri: str, database: str, verb: str, code: int | None
) -> None:
    with broker(mongo_uri, database, f"{verb}.commit.before=die") as named:
        with Producer(endpoint=named.doors["smq"]) as producer:
            producer.push("mail", b"first").wait(TIMEOUT)
        with (
            suppress(SluiceError),
            Client(timeout=TIMEOUT, wait=False, endpoint=named.doors["smq"]) as client,
        ):
            client.reserve("mail", 1, wait=TIMEOUT).jobs[0].forward("next", b"on")
        assert (named.process.wait(TIMEOUT) if code else named.process.poll()) == code


def test_a_statement_waits_and_goes_on(mongo_uri: str, database: str) -> None:
    with broker(mongo_uri, database, f"{COMMIT}.before=wait:3") as slow:
        with Producer(endpoint=slow.doors["smq"]) as producer:
            producer.push("mail", b"first", id="a job that lies alone").wait(TIMEOUT)
        with Client(endpoint=slow.doors["smq"]) as client, client.reserve("mail", 1, wait=TIMEOUT) as claim:
            began = time.monotonic()
            claim.jobs[0].commit()
            assert time.monotonic() - began >= 3
        assert stored(mongo_uri, database) == 0


def test_a_trace_names_what_was_met_once_each(mongo_uri: str, database: str, tmp_path: Path) -> None:
    file = tmp_path / "met"
    with (
        broker(mongo_uri, database, f"trace:{file}") as traced,
        Producer(endpoint=traced.doors["smq"]) as producer,
    ):
        for _ in range(2):
            producer.push("mail", b"job").wait(TIMEOUT)
        assert "dies or waits where a test wants it to" in traced.log_text()
    assert file.read_text().splitlines().count(INSERT) == 1
