"""``kill -9`` of brokers while thousands of messages a second are published: what was confirmed is there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from launcher import TIMEOUT, BrokerProcess, wait_until
from sluicemq import Message, Published, Publisher, Reader

STREAM = "orders"
KILLS = 2
SETTINGS = {"broker": {"poll": 0.2}}


class Flood:
    """Publishes without a pause, beside the test; ``receipts`` are in the order of the calls."""

    def __init__(self, publisher: Publisher) -> None:
        self.receipts: list[Published] = []
        self._publisher = publisher
        self._over = threading.Event()

    @property
    def confirmed(self) -> int:
        """How many are, so far; they are confirmed in order."""
        return sum(each.sequence is not None for each in self.receipts[:])

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            self._publisher.flush(TIMEOUT)

    def _run(self) -> None:
        number = 0
        while not self._over.is_set():
            if number >= 2000:  # so far ahead, and no further: a quick machine would publish millions
                self.receipts[number - 2000].wait(TIMEOUT)
            self.receipts.append(self._publisher.publish(STREAM, "a", b"%d" % number))
            number += 1


def test_confirmed_messages_are_there_once_in_order_and_without_a_hole(mongo_uri: str, database: str) -> None:
    with BrokerProcess(mongo_uri, database, config=SETTINGS) as broker:
        with publisher(broker) as publishing:
            flood = Flood(publishing)
            with flood.running():
                for _ in range(KILLS):
                    before = flood.confirmed
                    wait_until(lambda before=before: flood.confirmed > before + 3000, what="confirmations")  # type: ignore[misc]
                    broker.kill()
                    broker.restart()
        found = all_of(broker)

    assert [each.sequence for each in found] == list(range(1, len(found) + 1))
    assert [each.payload for each in found] == [b"%d" % number for number in range(len(flood.receipts))]
    assert [each.sequence for each in flood.receipts] == [each.sequence for each in found]


@pytest.mark.full
def test_two_brokers_one_of_them_killed_make_one_order(mongo_uri: str, database: str) -> None:
    with (
        BrokerProcess(mongo_uri, database, config=SETTINGS) as one,
        BrokerProcess(mongo_uri, database, config=SETTINGS) as other,
    ):
        with publisher(one) as here, publisher(other) as there:
            floods = Flood(here), Flood(there)
            with floods[0].running(), floods[1].running():
                wait_until(lambda: min(each.confirmed for each in floods) > 2000, what="messages of both")
                one.kill()
                before = floods[1].confirmed
                wait_until(lambda: floods[1].confirmed > before + 2000, what="confirmations of the other")
                one.restart()
        found = all_of(other)

    numbers = [each.sequence for flood in floods for each in flood.receipts]
    assert [each.sequence for each in found] == list(range(1, len(found) + 1))
    assert sorted(number or 0 for number in numbers) == list(range(1, len(found) + 1))
    for flood in floods:
        mine = [each.sequence or 0 for each in flood.receipts]
        assert mine == sorted(mine)
        assert [found[number - 1].payload for number in mine] == [b"%d" % at for at in range(len(mine))]


def publisher(broker: BrokerProcess) -> Publisher:
    """One with some thousand messages under way."""
    return Publisher(broker.doors["smq"], window=5000)


def all_of(broker: BrokerProcess) -> list[Message]:
    with Reader(broker.doors["smq"], STREAM) as reader:
        return list(reader)
