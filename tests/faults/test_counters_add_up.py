"""Whatever comes in, and whatever becomes of a delivery, is counted once: the counters add up at any moment.

:class:`support.broker_process.BrokerProcess` checks after every test that they do when a broker stops.
"""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from sluicemq import Client, Producer
from sluicemq.protocol import wire
from support.broker_process import check_balance
from support.broker_under_test import AT_ONCE, BrokerUnderTest, Doors, serving, spare
from support.raw_sockets import Smq
from support.waiting import wait_until

TWICE: list[Any] = [["a", b"x", None], ["a", b"x", None]]


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, spare(ask=2, pop=2, ack=1), queues=AT_ONCE, max_queues=20) as broker:
        yield broker


class Counted:
    """What a broker has counted since."""

    def __init__(self, broker: BrokerUnderTest) -> None:
        self._broker = broker
        self._before = figures(broker.admin)

    def since(self) -> dict[str, int]:
        """What is new; it has added up."""
        now = figures(self._broker.admin)
        check_balance(now)
        return {name: now[name] - self._before.get(name, 0) for name in now}

    def wait(self, **expected: int) -> None:
        """Wait until so much more has been counted."""
        wait_until(lambda: expected.items() <= self.since().items(), what=f"{expected}")


def figures(client: Client) -> dict[str, int]:
    stats = client.stats()
    here = {name: value for name, value in stats["broker"].items() if isinstance(value, int)}
    return {**here, **stats["counters"]}


def delivered(smq: Smq, queue: str, credit: int = 1) -> list[Any]:
    """The first job that this session gets."""
    assert smq.ask(wire.READY, queue, credit).verb == wire.OK
    return list(smq.delivery()[0])


def test_a_job_pushed_again_by_its_id_is_counted_as_repeated(broker: BrokerUnderTest) -> None:
    counted, smq, asked = Counted(broker), broker.smq(), broker.take("ask")
    smq.ask(wire.PUSH, "ids", TWICE)
    smq.ask(wire.PUSH, "ids", TWICE)
    for _ in range(2):
        broker.ask(asked.front, b"", b'{"id": "b", "reply": "accepted"}', b"x")
    counted.wait(received=6, pushed=2, repeated=4)


def test_a_job_refused_for_its_dedupe_id_is_a_duplicate_and_not_refused(broker: BrokerUnderTest) -> None:
    counted, smq, streamer = Counted(broker), broker.smq(), broker.take("pop")
    smq.ask(wire.PUSH, "names", [[None, b"x", {"dedupe_id": "one"}]] * 3)
    for _ in range(2):
        broker.push(streamer.front, b"", b'{"dedupe_id": "two"}', b"x")
    counted.wait(received=5, pushed=2, duplicates=3, refused=0)


def test_what_can_not_be_read_and_what_is_refused_as_a_whole_is_counted(broker: BrokerUnderTest) -> None:
    counted, smq, streamer = Counted(broker), broker.smq(), broker.take("pop")
    broker.push(streamer.front, b"", b"{no json", b"x")  # and kept among the dead letters
    smq.ask(wire.PUSH, "some", [[None, b"x", {"priority": 1000}], [None, b"x", None], "no job"])
    smq.ask(wire.PUSH, "no name!", TWICE)
    smq.ask(wire.PUSH, "some", [[None, b"", None]] * 1001)
    broker.admin.queues.pause("some", wire.INTAKE)
    smq.ask(wire.PUSH, "some", TWICE)
    counted.wait(received=1 + 3 + 2 + 1001 + 2, unreadable=3, pushed=1, refused=2 + 1001 + 2)


@pytest.mark.parametrize(
    ("verdict", "became"),
    [
        (wire.COMMIT, "committed"),
        (wire.ROLLBACK, "rolled_back"),
        (wire.REJECT, "rejected"),
        (wire.RELEASE, "returned"),
    ],
)
def test_every_verdict_is_counted_once(broker: BrokerUnderTest, verdict: str, became: str) -> None:
    counted, smq, queue = Counted(broker), broker.smq(), f"verdicts-{verdict.lower()}"
    smq.ask(wire.PUSH, queue, [[None, b"x", None]])
    receipt = delivered(smq, queue)[0]
    assert counted.since()["in_flight"] == 1
    smq.ask(wire.READY, queue, 0)
    for _ in range(2):  # the second is late
        smq.ask(wire.SETTLE, [[receipt, verdict, None, None]])
    counted.wait(**{"delivered": 1, became: 1, "in_flight": 0, "late_verdicts": 1})


def test_a_dead_workers_delivery_is_rolled_back_and_a_leavers_returned(broker: BrokerUnderTest) -> None:
    counted, dies, leaves = Counted(broker), broker.smq(), broker.smq()
    dies.ask(wire.PUSH, "leaving", [[None, b"x", None]] * 2)
    delivered(dies, "leaving")
    delivered(leaves, "leaving")
    leaves.ask(wire.BYE)
    dies.plain.close()
    counted.wait(delivered=2, returned=1, rolled_back=1, in_flight=0)


def test_a_delivery_whose_time_is_over_is_rolled_back(broker: BrokerUnderTest) -> None:
    counted, smq = Counted(broker), broker.smq()
    smq.ask(wire.PUSH, "overtime", [[None, b"x", {"visibility_timeout": 0.1, "max_attempts": 1}]])
    delivered(smq, "overtime")
    counted.wait(delivered=1, rolled_back=1, timed_out=1, in_flight=0)


def test_what_is_popped_is_committed_and_what_was_not_sent_comes_anew(broker: BrokerUnderTest) -> None:
    counted, doors = Counted(broker), broker.take("ack")
    with Producer(endpoint=broker.doors["smq"]) as producer:
        for _ in range(50):
            producer.push(doors.queue, b"x" * 1000)
    broker.admin.jobs.pop(doors.queue, 10)
    counted.wait(delivered=10, committed=10, committing=0)
    took_and_left(broker, doors)
    counted.since()


def took_and_left(broker: BrokerUnderTest, doors: Doors) -> None:
    """A PULL worker that takes one job and goes."""
    worker = broker.socket(zmq.PULL, doors.back, rcvhwm=1)
    receipt = worker.recv_multipart()[0]
    broker.push(doors.commit, b"COMMIT", receipt)
    worker.close()


def test_the_counters_add_up_at_any_moment_under_load(broker: BrokerUnderTest) -> None:
    ended = threading.Event()
    problems: list[AssertionError] = []

    def watch() -> None:
        with Client(endpoint=broker.doors["smq"]) as client:
            while not ended.is_set():
                try:
                    check_balance(figures(client))
                except AssertionError as error:
                    problems.append(error)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with Producer(endpoint=broker.doors["smq"]) as producer, Client(endpoint=broker.doors["smq"]) as client:
        for number in range(3000):
            producer.push("load", b"x", id=str(number % 1000))
        producer.flush()
        while client.jobs.pop("load", 500):
            pass
        with client.jobs.reserve("load", 1000):
            pass
    ended.set()
    watcher.join()
    assert problems == []
