"""The library's door: what one request does to those after it, and what a client that does not read gets."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from broker.config import BrokerSettings
from broker.counters import Counters
from broker.frames import JobMaker
from broker.intake import Push
from broker.job import Job
from broker.session_workers import MOST_BYTES, PoppingWorker, SessionWorker
from broker.sessions import Session, SessionDoor
from broker.worker import Delivery, Worker
from devices.switchboard import Switchboard
from fakes import Clock
from sluicemq import wire


class Lane:
    """Keeps what the session sends, as messages."""

    peer = "tcp://127.0.0.1:1"
    backlog = 0
    held = SimpleNamespace(count=0, bytes=0)
    writable = True
    is_closed = False
    receive: Callable[[list[list[bytes]]], None]
    closed: Callable[[], None]

    def __init__(self) -> None:
        self.sent: list[wire.Message] = []

    def send(self, frames: list[bytes]) -> None:
        self.sent.append(wire.decode(frames))

    def close(self) -> None:
        self.is_closed = True

    def pause(self) -> None:
        """It is not read any more."""


class Broken:
    """Queues that fail in a way that nobody foresaw."""

    def for_push(self, name: str) -> None:
        raise RuntimeError("nobody foresaw this")


class Queue:
    """One queue whose parts are all itself; notes what it is asked for."""

    name = "mail"

    def __init__(self) -> None:
        self.settle = self.dispatch = self.supply = self
        self.calls: list[str] = []
        self.pushes: list[Push] = []

    def await_releases(self, timeout: float) -> None:
        self.calls.append("releases")

    def search(self, enough: Callable[[], bool], timeout: float) -> None:
        self.calls.append("search")

    def resize(self, worker: Worker, prefetch: int) -> None:
        worker.prefetch = prefetch

    def offer(self, worker: Worker) -> None:
        """Nobody has any."""

    def push(self, push: Push) -> None:
        self.pushes.append(push)

    def take_back(self, jobs: list[Job]) -> None:
        self.calls += [f"take back {job.id}" for job in jobs]


@pytest.fixture
def lane() -> Lane:
    return Lane()


@pytest.fixture
def session(lane: Lane) -> Session:
    nobody: Any = None
    queues: Any = Broken()
    settings, maker = BrokerSettings(), JobMaker(Clock(), 1 << 20)
    house = SessionDoor(settings, Switchboard(), queues, maker, nobody, Counters())
    client: Any = lane
    return Session(house, client)


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
def worker(session: Session, queue: Any) -> SessionWorker:
    return SessionWorker(session, queue, 100)


@pytest.fixture
def popper(session: Session, queue: Any) -> PoppingWorker:
    return PoppingWorker(session, queue, 3)


def delivery(worker: SessionWorker, number: int, size: int) -> Delivery:
    return Delivery(Job(f"j{number}", bytes(size)), b"%d" % number, worker, 0.0)


def test_a_request_on_which_the_broker_fails_is_answered_like_those_after_it(
    session: Session, lane: Lane, caplog: pytest.LogCaptureFixture
) -> None:
    push = wire.encode(wire.PUSH, 1, "mail", [[None, b"work", None]])

    lane.receive([push, wire.encode(wire.READY, 2, "mail", 1), wire.encode(wire.PING, 3)])

    assert [(each.verb, each.number) for each in lane.sent] == [
        (wire.ERROR, 1),
        (wire.ERROR, 2),
        (wire.OK, 3),
    ]
    assert lane.sent[0].fields[0] == "UNAVAILABLE"
    assert session.counters.values["unavailable"] == 2
    assert "nobody foresaw this" in caplog.text


def test_jobs_go_out_in_messages_of_a_mib_and_a_larger_one_alone(worker: SessionWorker, lane: Lane) -> None:
    sizes = [400_000, 400_000, 400_000, 3 * MOST_BYTES, 10, 10]

    worker.deliver([delivery(worker, number, size) for number, size in enumerate(sizes)])

    assert [[job[1] for job in each.fields[1]] for each in lane.sent] == [
        ["j0", "j1"],
        ["j2"],
        ["j3"],
        ["j4", "j5"],
    ]
    assert len({each.number for each in lane.sent}) == 4


def test_a_worker_whose_client_does_not_read_takes_nothing(worker: SessionWorker, lane: Lane) -> None:
    assert worker.free == 100

    lane.writable = False

    assert worker.free == 0


def test_a_worker_that_is_hung_up_on_loses_its_session(worker: SessionWorker, lane: Lane) -> None:
    worker.hang_up()

    assert lane.is_closed


def test_a_look_for_jobs_waits_for_those_that_are_being_given_back(
    worker: SessionWorker, queue: Queue
) -> None:
    worker.await_supply(1.0)

    assert queue.calls == ["releases", "search"]


def test_a_session_that_has_gone_asks_no_more(session: Session, lane: Lane) -> None:
    lane.closed()

    assert session._results._gone


def test_a_large_result_asked_for_thousands_of_times_by_who_does_not_read_is_not_kept_for_each(
    session: Session, lane: Lane
) -> None:
    lane.held = SimpleNamespace(count=1, bytes=BrokerSettings().hwm_bytes + 1)

    session._resulted(7, bytes(1000))

    assert [(each.verb, each.number, each.fields[0]) for each in lane.sent] == [
        (wire.ERROR, 7, "UNAVAILABLE")
    ]


def test_jobs_removed_for_a_client_that_has_left_are_pushed_anew(
    popper: PoppingWorker, queue: Queue, lane: Lane
) -> None:
    popper.gone = True
    remembered = delivery(popper, 8, 10)
    remembered.job.owner = "me"  # it is still there, as done

    popper.deliver([delivery(popper, 7, 10), remembered])

    assert lane.sent == []
    assert [job.id for push in queue.pushes for job in push.jobs] == ["j7"]
    assert queue.calls == ["take back j8"]


def test_a_job_that_is_popped_takes_one_off_the_credit_and_a_grant_is_added(
    popper: PoppingWorker, lane: Lane
) -> None:
    popper.deliver([delivery(popper, 1, 10), delivery(popper, 2, 10)])
    assert popper.free == 1
    popper.grant(4)
    assert popper.free == 5
    popper.grant(0)
    assert popper.free == 0
