"""What all queues hold together is bounded, and each finds room beside the others."""

from __future__ import annotations

from sluicemq_broker.config import QueueSettings
from sluicemq_broker.context import Memory
from sluicemq_broker.queue.limits import QueueLimits
from sluicemq_broker.queue.scheduler import LEAST_CLAIM, Scheduler
from sluicemq_broker.queue.staging import Staging
from sluicemq_broker.store import StagedByPriority
from support.jobs import some_jobs

MIB = 2**20


def test_a_claim_may_bring_an_eighth_of_what_is_free_and_always_a_little() -> None:
    memory = Memory(hwm_bytes=64 * MIB)
    scheduler = Scheduler(QueueLimits(QueueSettings()), StagedByPriority(), memory.staged, memory.expiries)
    assert scheduler.room_bytes == 8 * MIB
    memory.staged.take(32 * MIB)
    assert scheduler.room_bytes == 4 * MIB
    memory.staged.take(32 * MIB)
    assert (scheduler.room_bytes, memory.staged.full) == (LEAST_CLAIM, True)


def test_what_is_held_for_the_workers_of_all_queues_adds_up() -> None:
    memory = Memory()
    one, other = [Staging(memory.staged, StagedByPriority()) for _ in range(2)]
    one.add(some_jobs(2, size=10))
    other.add(some_jobs(3, size=100))
    assert memory.staged.used == 320
    one.clear()
    other.take_last(1)
    assert memory.staged.used == 200


def test_jobs_on_their_way_fill_it_by_their_bytes_and_verdicts_by_their_number_too() -> None:
    memory, told = Memory(hwm=10, hwm_bytes=1000), list[bool]()
    memory.follow(lambda: told.append(memory.takes_no_more))
    memory.pushes.take(100, 999)
    memory.pushes.take(1, 1)
    memory.pushes.give(101, 1000)
    went_on: list[bool] = []

    def go_on() -> None:
        went_on.append(True)

    memory.verdicts.take(go_on, 10, 0)
    memory.verdicts.give(go_on, 10, 0)
    assert told == [True, False, True, False]
    assert went_on == [True]
