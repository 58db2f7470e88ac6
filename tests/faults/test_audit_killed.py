"""The audit log beside a MongoDB that is slow or away for it, and a broker that is killed before a record."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from faults.mongo_messages import Command
from faults.mongo_proxy import CuttingProxy
from sluicemq import Client, Producer, SluiceError
from support.broker_process import BrokerProcess
from support.waiting import TIMEOUT, wait_until

#: By default test_every_failpoint kills brokers at statements, and test_chaos_short everything at once.
pytestmark = pytest.mark.full


class Rig(NamedTuple):
    proxy: CuttingProxy
    broker: BrokerProcess


@pytest.fixture
def rig(mongo_uri: str, database: str) -> Iterator[Rig]:
    settings = {"broker": {"lease": 10.0, "poll": 0.2}, "queues": {"mail": {}}, "devices": []}
    with CuttingProxy(mongo_uri) as proxy, BrokerProcess(proxy.uri, database, config=settings) as broker:
        yield Rig(proxy, broker)


def of_audit(command: Command) -> bool:
    return command.name == "update" and command.collection == "audit"


def actions(client: Client) -> list[str]:
    return [each["action"] for each in client.audit()[0]]


def test_an_act_whose_record_hangs_is_answered_and_recorded_later_and_jobs_go_on(rig: Rig) -> None:
    with (
        Client(rig.broker.doors["smq"], timeout=TIMEOUT) as client,
        Producer(rig.broker.doors["smq"]) as producer,
    ):
        held = rig.proxy.hold(of_audit)

        client.pause("mail")
        for _ in range(20):
            producer.push("mail", b"job").wait(TIMEOUT)
        held.wait()

        assert client.queue("mail")["paused"] == ["delivery"]
        held.release()
        wait_until(lambda: actions(client) == ["pause", "start"], what="the record")


def test_an_act_whose_record_is_lost_is_recorded_once(rig: Rig) -> None:
    with Client(rig.broker.doors["smq"], timeout=TIMEOUT) as client:
        rig.proxy.cut(of_audit, 1)

        client.pause("mail")

        wait_until(lambda: actions(client) == ["pause", "start"], what="the record")


def test_a_broker_that_is_killed_between_an_act_and_its_record_has_answered_nobody(rig: Rig) -> None:
    record = rig.proxy.delay(of_audit, None)
    with Client(rig.broker.doors["smq"], timeout=TIMEOUT) as client, ThreadPoolExecutor() as pool:
        act = pool.submit(client.users, "add", name="ops", permissions="all", token=True)
        record.wait()
        rig.broker.kill()
        with pytest.raises(SluiceError):
            act.result(TIMEOUT)
    rig.proxy.pass_all()

    rig.broker.restart()

    with Client(rig.broker.doors["smq"], timeout=TIMEOUT) as client:
        assert [each["name"] for each in client.users()] == ["ops"]
        assert actions(client) == ["start", "start"]
