"""Events of jobs, and what a broker does when another says that jobs lie ready."""

from typing import Any

import pytest

from sluicemq_broker.bus import BusKind
from sluicemq_broker.job import Job
from sluicemq_broker.queue import Push
from sluicemq_broker.runtime import Events
from sluicemq_broker.runtime.events import HELD, LISTENING
from support.fakes import Held, go_on
from support.jobs import NOW, some_jobs
from support.virtual_time import VirtualTime
from support.waiting import wait_until
from unit.dispatch_rig import DispatchRig


def ids(told: dict[str, list[dict[str, str]]]) -> list[str]:
    return [row["job"] for row in told["events"]]


def test_nothing_is_told_while_nobody_listens() -> None:
    events = Events()
    assert not events.wanted
    events.emit("pushed", 1.0, [{"job": "a"}])
    assert events.read(None, None, 10) == {"events": [], "after": 0, "missed": 0}


def test_who_listens_hears_of_what_happens_from_then_on() -> None:
    events = Events()
    mail = events.of("mail")
    after = events.read(None, None, 10)["after"]
    mail.emit("pushed", 5.0, [{"job": "a"}, {"job": "b"}])
    told = events.read(after, None, 10)
    assert told["events"][0] == {"at": 5.0, "event": "pushed", "queue": "mail", "job": "a"}
    assert ids(told) == ["a", "b"]
    assert events.read(told["after"], None, 10)["events"] == []


def test_one_queue_may_be_listened_to() -> None:
    events = Events()
    events.read(None, None, 10)
    events.of("mail").emit("pushed", 5.0, [{"job": "a"}])
    events.of("other").emit("pushed", 5.0, [{"job": "b"}])
    assert ids(events.read(0, "other", 10)) == ["b"]


def test_who_sees_some_queues_learns_nothing_of_how_much_happens_in_others() -> None:
    def told(after: int | None) -> dict[str, Any]:
        return events.read(after, None, 2, lambda queue: queue == "mail")

    events = Events()
    for name, jobs in (("mail", ["a"]), ("other", ["x", "y", "z"]), ("mail", ["b", "c"]), ("other", ["z"])):
        events.read(None, None, 10)
        events.of(name).emit("redriven", 5.0, [{"job": job, "from": "other"} for job in jobs])
    first = told(0)
    assert ids(first) == ["a", "b"]
    assert (first["after"], first["missed"]) == (2, 0)
    assert all("from" not in event for event in first["events"])
    assert ids(told(first["after"])) == ["c"]
    assert told(None) == {"events": [], "after": 3, "missed": 0}
    events.of("mail").emit("pushed", 5.0, [{"job": "d"}])
    events.of("other").emit("pushed", 5.0, [{"job": str(number)} for number in range(HELD)])
    assert told(3) == {"events": [], "after": 4, "missed": 1}


def test_an_answer_has_so_many_and_the_next_one_goes_on() -> None:
    events = Events()
    events.read(None, None, 10)
    events.emit("pushed", 5.0, [{"job": str(number)} for number in range(25)])
    after, seen = 0, []
    for _ in range(3):
        told = events.read(after, None, 10)
        after = told["after"]
        seen += ids(told)
    assert seen == [str(number) for number in range(25)]


def test_who_is_too_slow_is_told_how_many_were_missed() -> None:
    events = Events()
    events.read(None, None, 10)
    events.emit("pushed", 5.0, [{"job": str(number)} for number in range(HELD + 7)])
    told = events.read(0, None, 3)
    assert told["missed"] == 7
    assert ids(told) == ["7", "8", "9"]
    assert events.read(told["after"], None, 1)["missed"] == 0


def test_when_nobody_asks_any_more_nothing_is_told_and_nothing_held() -> None:
    time = VirtualTime()
    events = Events(time)
    events.read(None, None, 10)
    events.emit("pushed", 5.0, [{"job": "a"}])
    time.value += LISTENING - 1
    events.tick()
    assert events.wanted
    time.value += 1
    events.tick()
    assert not events.wanted
    assert events.read(0, None, 10) == {"events": [], "after": 1, "missed": 1}


def test_a_number_of_a_former_broker_begins_anew() -> None:
    events = Events()
    assert events.read(9999, None, 10) == {"events": [], "after": 0, "missed": 0}


#: What other brokers were told: kind and number.
Told = list[tuple[BusKind, int]]


class IdleQueue(DispatchRig):
    """A queue that has looked for what was there, and found nothing; with one worker."""

    def __init__(self, prefetch: int = 10) -> None:
        self.told: Told = []
        super().__init__(notify_brokers=lambda kind, number: self.told.append((kind, number)))
        self.hand = self.worker(prefetch)
        self.store.claims.clear()

    def elsewhere(self, count: int = 1, ahead: float = 0.0) -> list[Job]:
        """Another broker, whose clock is ahead by so many seconds, has pushed some, and says so."""
        jobs = some_jobs(count)
        for at, job in enumerate(jobs):
            job.accept(int((NOW + ahead) * 1e6) + at, NOW + ahead)
        self.store.ready.extend(jobs)
        self.queue.on_ready(jobs[-1].seq)
        go_on()
        return jobs

    @property
    def has(self) -> set[str]:
        return {delivery.job.id for delivery in self.hand.in_flight.values()}


@pytest.fixture
def idle_queue() -> IdleQueue:
    return IdleQueue()


def test_it_looks_and_finds_them(idle_queue: IdleQueue) -> None:
    (job,) = idle_queue.elsewhere()
    assert idle_queue.has == {job.id}


def test_many_are_claimed_to_the_last(idle_queue: IdleQueue) -> None:
    idle_queue.resize(idle_queue.hand, 500)
    jobs = idle_queue.elsewhere(300)
    assert idle_queue.has == {job.id for job in jobs}


def test_what_is_told_while_it_looks_is_looked_for_afterwards(idle_queue: IdleQueue) -> None:
    # Given: a look whose read is through, as it may be when the job is stored elsewhere
    idle_queue.store.after_claim = held = Held()
    idle_queue.queue.on_ready(0)
    go_on()
    (job,) = idle_queue.elsewhere()
    assert idle_queue.has == set()
    held.set()
    go_on()
    assert idle_queue.has == {job.id}


def test_who_has_no_room_looks_as_soon_as_there_is_some() -> None:
    broker = IdleQueue(prefetch=1)
    broker.scheduler.pace.appetite = 0
    (first,) = broker.elsewhere()
    (second,) = broker.elsewhere()
    assert broker.has == {first.id}
    (receipt,) = broker.hand.in_flight
    broker.settle(receipt)
    broker.queue.offer(broker.hand)
    go_on()
    assert broker.has == {second.id}


def test_who_is_paused_looks_when_that_is_over(idle_queue: IdleQueue) -> None:
    idle_queue.pause(paused=True)
    (job,) = idle_queue.elsewhere()
    assert idle_queue.store.claims == []
    idle_queue.pause(paused=False)
    go_on()
    assert idle_queue.has == {job.id}


@pytest.mark.parametrize("ahead", [0.003, 0.5])
def test_a_clock_elsewhere_that_is_ahead_hides_no_job(idle_queue: IdleQueue, ahead: float) -> None:
    (job,) = idle_queue.elsewhere(ahead=ahead)
    assert idle_queue.has == {job.id}


def test_and_what_is_accepted_here_from_then_on_comes_after_it(idle_queue: IdleQueue) -> None:
    (job,) = idle_queue.elsewhere(ahead=0.5)
    assert idle_queue.scheduler.ledger.last_seq >= job.seq


def test_a_number_far_ahead_of_all_clocks_changes_no_order(idle_queue: IdleQueue) -> None:
    before = idle_queue.scheduler.ledger.last_seq
    idle_queue.queue.on_ready(int((NOW + 3600) * 1e6))
    assert idle_queue.scheduler.ledger.last_seq == before


def test_one_look_is_enough_for_all_that_was_told_until_then(idle_queue: IdleQueue) -> None:
    for _ in range(5):
        idle_queue.queue.on_ready(0)
    go_on()
    assert len(idle_queue.store.claims) == 1


def test_others_are_told_what_lies_ready_here_and_not_what_they_have_told(idle_queue: IdleQueue) -> None:
    idle_queue.elsewhere()
    assert idle_queue.told == []
    idle_queue.queue.jobs_ready()
    ((kind, number),) = idle_queue.told
    assert kind is BusKind.READY
    assert number >= idle_queue.scheduler.ledger.last_seq


def test_others_are_told_of_what_no_worker_here_can_take_before_it_is_written() -> None:
    broker = IdleQueue(prefetch=2)
    broker.scheduler.pace.appetite = 0
    jobs = some_jobs(3)
    for at, job in enumerate(jobs, 1):
        job.accept(int(NOW * 1e6) + at, NOW)
    # Given those that a worker here can take, which are inserted reserved
    broker.queue.intake.push(Push(jobs[:2], lambda *_: None))
    go_on()
    assert broker.told == []
    # When one comes that none can
    broker.queue.intake.push(Push(jobs[2:], lambda *_: None))
    wait_until(lambda: go_on() or broker.told)
    assert broker.told[0] == (BusKind.COMING, jobs[2].seq)


def test_nor_is_anything_told_by_who_just_looks(idle_queue: IdleQueue) -> None:
    idle_queue.queue.search(lambda: True, 0.0)
    assert idle_queue.told == []
