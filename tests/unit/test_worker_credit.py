"""Workers of doors: credit as a value, and what is held for one or on the way to it."""

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final

import pytest

from sluicemq_broker.config import QueueSettings
from sluicemq_broker.doors import backends  # noqa: F401 # so that their workers are known
from sluicemq_broker.doors.lane_workers import (
    ArrivalWorker,
    LaneWorker,
    PopWorker,
    PullWorker,
    RepWorker,
    Window,
)
from sluicemq_broker.doors.smq import workers  # noqa: F401
from sluicemq_broker.queue import Delivery, Marks, Worker
from sluicemq_broker.queue.limits import QueueLimits
from sluicemq_broker.queue.plans import Conditions
from sluicemq_broker.queue.scheduler import Scheduler
from sluicemq_broker.runtime import Budget, Counters
from sluicemq_broker.security import ANYBODY
from sluicemq_broker.store import StagedByPriority
from support.jobs import NOW, some_jobs

ME: Final = "me"
CONDITIONS: Final = Conditions(1000.0, NOW, ME, 0, 0, may_hand_out=True)


class Mute(Worker):
    """A worker whose door must not be called."""

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        raise AssertionError

    def hang_up(self) -> None:
        raise AssertionError


def a_scheduler(jobs: int) -> Scheduler:
    """A scheduler with jobs that workers may have."""
    scheduler = Scheduler(QueueLimits(QueueSettings()), StagedByPriority(), Budget(2**26), Budget(1000))
    arrival = scheduler.admit(some_jobs(jobs, owner=ME), 1, NOW, CONDITIONS)
    scheduler.staging.add(arrival.jobs or some_jobs(jobs, owner=ME))
    return scheduler


def come(scheduler: Scheduler, prefetch: int, marks: Marks | None = None) -> Mute:
    worker = Mute("worker", prefetch, ANYBODY, marks=marks)
    scheduler.deliveries.attach(worker, CONDITIONS.now)
    scheduler.hand_out.offer(worker)
    return worker


def next_jobs(scheduler: Scheduler) -> list[Delivery]:
    """Hand out one message as the queue does, but for sending it."""
    message = scheduler.hand_out.next_message(2**20, CONDITIONS.now)
    if message is None:
        return []
    scheduler.hand_out.sent(message)
    return message.deliveries


@pytest.mark.parametrize(
    "end",
    [
        lambda it, given: [it.hand_out.settle(delivery.receipt, 1000.0) for delivery in given],
        lambda it, given: it.hand_out.time_out(10**6, 10**6),
        lambda it, given: it.hand_out.leave(given[0].worker),
        lambda it, given: it.drop(ME, 1000.0),
        lambda it, given: it.deliveries.withdraw(1000.0),
    ],
    ids=["verdict", "time-out", "worker leaves", "owner is dead", "broker stops"],
)
def test_however_one_ends_no_door_is_called(end: Callable[[Scheduler, list[Delivery]], object]) -> None:
    scheduler = a_scheduler(4)
    marks = Marks(2, 2**20)
    come(scheduler, 2, marks)
    idle = come(scheduler, 2, marks)
    given = next_jobs(scheduler) + next_jobs(scheduler)
    end(scheduler, given)
    assert {*idle.in_flight.values(), *scheduler.deliveries.in_flight.values()} <= {*given}
    assert marks.jobs == 0


def test_a_job_that_ends_makes_room_for_all_workers_of_a_device_whose_marks_were_full() -> None:
    # Given two workers of a device that allows one job
    scheduler = a_scheduler(3)
    marks = Marks(1, 2**20)
    first, second = come(scheduler, 5, marks), come(scheduler, 5, marks)
    [given] = next_jobs(scheduler)
    assert next_jobs(scheduler) == []
    # When it ends, and its worker takes nothing more
    scheduler.hand_out.settle(given.receipt, CONDITIONS.now)
    given.worker.reads = False
    scheduler.hand_out.offer_workers_of([given])
    # Then the other one gets the next
    [after] = next_jobs(scheduler)
    assert {given.worker, after.worker} == {first, second}


@pytest.mark.parametrize("size", [2**20, 1])
def test_marks_bound_jobs_and_bytes(size: int) -> None:
    marks = Marks(3, 2**20)
    marks.take(some_jobs(1, payload=bytes(size)))
    assert marks.room == (0 if size == 2**20 else 2)


def workers_of_doors(kind: type[Worker] = Worker) -> Iterator[type[Worker]]:
    for subclass in kind.__subclasses__():
        if subclass.__module__.startswith("sluicemq_broker."):
            yield subclass
            yield from workers_of_doors(subclass)


@pytest.mark.parametrize("kind", [*workers_of_doors()])
def test_a_door_makes_how_a_job_is_sent_and_a_connection_ended_and_no_credit(kind: type[Worker]) -> None:
    constants = {"door", "pops", "commits_on_arrival"}
    overridden = {name for name in vars(kind) if hasattr(Worker, name) and not name.startswith("__")}
    assert overridden - constants <= {"deliver", "hang_up", "cancelled", "stop", "stuck"}


class Lane:
    """One of which nothing is sent."""

    peer = "peer"
    writable = True
    backlog = 0
    who = ANYBODY
    zmtp = SimpleNamespace(peer_kind=b"REP")

    blocked: Callable[[], None]

    def on(self, **handlers: Callable[..., None]) -> None:
        vars(self).update(handlers)


@pytest.mark.parametrize("kind", [RepWorker, PullWorker, PopWorker, ArrivalWorker])
def test_nothing_is_held_for_a_worker_whose_socket_takes_nothing_more(kind: type[LaneWorker]) -> None:
    lane: Any = Lane()
    backend: Any = SimpleNamespace(
        queue=SimpleNamespace(
            offer=lambda *_, **__: None, stalled=lambda worker: setattr(worker, "reads", False)
        ),
        settings=SimpleNamespace(envelope="payload"),
        counters=Counters(),
        prefetch=5,
        marks=Marks(99, 2**20),
    )
    worker = kind(backend, lane)
    most = 1 if kind is ArrivalWorker else 5  # at first
    assert (worker.free, worker.takes) == (most, (most, most))

    lane.blocked()

    assert (worker.free, worker.takes) == (0, (0, 0))


def test_it_begins_with_one_and_grows_twofold_while_jobs_arrive_at_once_to_the_most() -> None:
    window = Window(20)
    sizes = []
    for _ in range(7):
        sizes.append(window.size)
        window.arrived(window.size, 0.0)
    assert sizes == [1, 2, 4, 8, 16, 20, 20]


def test_whatever_the_prefetch_one_pong_commits_no_more_than_a_turn_of_the_hub_has_time_for() -> None:
    window = Window(100_000)
    for _ in range(20):
        window.arrived(window.size, 0.0)
    assert window.size == 1000


@pytest.mark.parametrize(("a_job", "in_transit"), [(1.0, 1), (0.1, 2), (0.01, 25), (0.001, 64)])
def test_a_worker_with_room_for_none_has_some_work_on_the_way(a_job: float, in_transit: int) -> None:
    window = Window(64)
    for _ in range(10):
        window.arrived(window.size, window.size * a_job)
    assert window.size == in_transit


def test_one_that_becomes_slow_has_few_on_the_way_at_once() -> None:
    window = Window(64)
    for _ in range(10):
        window.arrived(window.size, 0.001)
    window.arrived(64, 64.0)
    assert window.size == 1
