"""Brokers on one database whose files differ: both say where, until they agree or MongoDB decides."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import tomli_w

from sluicemq import Client
from support.broker_process import BrokerProcess
from support.http_reader import Web
from support.waiting import TIMEOUT, wait_until

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full

BROKER = {"poll": 0.5, "lease": 60.0, "http": "127.0.0.1:0", "history": True}
FILES: tuple[dict[str, Any], ...] = (
    {"broker": BROKER, "queues": {"mail": {"max_running": 5, "ttl": 60}}},
    {"broker": BROKER, "queues": {"mail": {"ttl": 60}}},
)


@pytest.fixture
def brokers(mongo_uri: str, database: str) -> Iterator[list[BrokerProcess]]:
    with (
        BrokerProcess(mongo_uri, database, config=FILES[0]) as first,
        BrokerProcess(mongo_uri, database, config=FILES[1]) as second,
    ):
        yield [first, second]


def differs(broker: BrokerProcess, name: str = "mail") -> list[dict[str, Any]]:
    with Client(timeout=TIMEOUT, endpoint=broker.doors["smq"]) as client:
        return list(client.settings(name)["differs"])


def agrees(broker: BrokerProcess) -> bool:
    return not differs(broker)


def incidents(broker: BrokerProcess) -> list[dict[str, Any]]:
    found = Web(broker.http).get("/api/v1/incidents?span=hour").json["incidents"]
    return [row for row in found if row["kind"] == "disagree"]


def test_both_brokers_say_how_their_files_differ_until_they_agree(brokers: list[BrokerProcess]) -> None:
    # Then both find it, and an incident names queue, key, values and brokers
    for broker in brokers:
        wait_until(partial(differs, broker), what="the difference")
        [found] = differs(broker)
        assert (found["queue"], found["key"]) == ("mail", "max_running")
        assert sorted(found["values"].values(), key=str) == [5, None]
        assert {name.rpartition(":")[2] for name in found["values"]} == {str(one.pid) for one in brokers}
    wait_until(lambda: incidents(brokers[0]), what="the incident")
    [incident] = incidents(brokers[0])
    assert incident["queue"] == "mail"
    said = re.sub(r"at \S*:", "at ", incident["figures"]["said"])
    assert said.startswith("max_running: ")
    assert f"5 at {brokers[0].pid}" in said
    assert f"none at {brokers[1].pid}" in said
    # When the setting lies in MongoDB all brokers go by that
    with Client(timeout=TIMEOUT, endpoint=brokers[1].doors["smq"]) as client:
        client.queues.set_settings("mail", {"max_running": 3})
        for broker in brokers:
            wait_until(partial(agrees, broker), what="the end of it")
        client.queues.unset_settings("mail", ["max_running"])
    wait_until(lambda: differs(brokers[0]), what="the difference again")
    # When the second reads a file that agrees
    (brokers[1].folder / "broker.toml").write_text(
        tomli_w.dumps({**brokers[1].config, "queues": FILES[0]["queues"]})
    )
    brokers[1].send_signal(signal.SIGHUP)
    for broker in brokers:
        wait_until(partial(agrees, broker), what="the end of it")


def test_when_the_other_broker_has_gone_nothing_differs(brokers: list[BrokerProcess]) -> None:
    wait_until(lambda: differs(brokers[0]), what="the difference")
    assert brokers[1].terminate() == 0
    wait_until(lambda: not differs(brokers[0]), what="the end of it")
