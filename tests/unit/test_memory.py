"""What all queues hold together is bounded, and each finds room beside the others."""

from __future__ import annotations

from sluicemq_broker.context.memory import LEAST_CLAIM, Memory
from sluicemq_broker.queue.staging import Staging
from support.jobs import some_jobs

MIB = 2**20


class HandingOut:
    """Counts how often it is told to hand out again."""

    handed_out = 0

    def hand_out(self) -> None:
        self.handed_out += 1


def test_a_claim_may_bring_an_eighth_of_what_is_free_and_always_a_little() -> None:
    memory = Memory(hwm_bytes=64 * MIB)
    assert memory.claim == 8 * MIB
    memory.stage(32 * MIB)
    assert memory.claim == 4 * MIB
    memory.stage(32 * MIB)
    assert (memory.claim, memory.stages_no_more) == (LEAST_CLAIM, True)


def test_what_is_held_for_the_workers_of_all_queues_adds_up() -> None:
    memory = Memory()
    one, other = Staging(memory), Staging(memory)
    one.add(some_jobs(2, size=10))
    other.add(some_jobs(3, size=100))
    assert memory.staged == 320
    one.clear()
    other.take_last(1)
    assert memory.staged == 200


def test_jobs_on_their_way_fill_it_by_their_bytes_and_verdicts_by_their_number_too() -> None:
    memory, told = Memory(hwm=10, hwm_bytes=1000), list[bool]()
    memory.follow(lambda: told.append(memory.takes_no_more))
    memory.pushes.take(100, 999)
    memory.pushes.take(1, 1)
    memory.pushes.give(101, 1000)
    queue = HandingOut()
    memory.verdicts.take(queue, 10, 0)
    memory.verdicts.give(queue, 10, 0)
    assert told == [True, False, True, False]
    assert queue.handed_out == 1
