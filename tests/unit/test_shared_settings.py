"""Settings of queues that MongoDB has over those of a file: which hold where they can't hold together."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from sluicemq_broker.config import Config, QueueSettings, stored_value
from sluicemq_broker.queues.records import QueueRecords
from sluicemq_broker.queues.settings import SharedSettings
from sluicemq_broker.store import QueueRecord

FILE = {"limited": QueueSettings(fair=True, tenant_max_running=2), "first": QueueSettings(on_dead="second")}


class Records(dict[str, dict[str, object]]):
    """What is stored of each queue."""

    def of(self, _database: str, queue: str) -> QueueRecord:
        stored = {key: stored_value(key, value) for key, value in self.get(queue, {}).items()}
        return QueueRecord(name=queue, settings=stored)


def settings(records: Records) -> SharedSettings:
    return SharedSettings(replace(Config.default(), queues=FILE), cast("QueueRecords", records))


def test_a_queue_that_would_close_a_circle_of_dead_letters_goes_by_the_file() -> None:
    stored = settings(Records(second={"on_dead": "first"}))
    assert stored.of("second").on_dead is None
    assert stored.of("first").on_dead == "second"


def test_another_problem_of_a_queue_takes_no_stored_on_dead_from_it() -> None:
    stored = settings(Records(limited={"fair": False, "on_dead": "failed"}))
    assert stored.of("limited").on_dead == "failed"
