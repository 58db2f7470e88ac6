"""The library's door: what one request does to those after it, and what a client that does not read gets."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from sluicemq.protocol import wire
from sluicemq.protocol.permissions import Permissions
from sluicemq_broker.bus import BusEvent, BusKind
from sluicemq_broker.config import BrokerSettings, QueueSettings
from sluicemq_broker.doors import Services, Session, SessionDoor
from sluicemq_broker.doors.smq.admin_verbs import ADMIN_VERBS
from sluicemq_broker.doors.smq.fields import MOST_ENTRIES
from sluicemq_broker.doors.smq.workers import MOST_BYTES, PoppingWorker, SessionWorker
from sluicemq_broker.job import Job, Reservation
from sluicemq_broker.queue import Delivery, JobMaker, Push, Worker
from sluicemq_broker.queue.capacity import Capacity, Flow
from sluicemq_broker.queue.worker import DeliveryState
from sluicemq_broker.runtime import Counters
from sluicemq_broker.security import ANYBODY, Caller, Principal, Security
from sluicemq_devices.sockets import Outgoing, Switchboard
from support.fakes import NOW, Clock
from support.virtual_time import VirtualTime, come_to_rest

LARGE_RESULT = 1 << 20


class Lane:
    """Keeps what the session sends, as messages."""

    peer = "tcp://127.0.0.1:1"
    backlog = 0
    held = SimpleNamespace(count=0, bytes=0)
    writable = True
    is_full = False
    is_closed = False
    leaves_much = False
    receive: Callable[[list[list[bytes]]], None]
    closed: Callable[[], None]

    def __init__(self) -> None:
        self.who = ANYBODY
        self.sent: list[wire.Message] = []
        self.blamed: list[bool] = []
        self.unheard: list[list[bytes]] = []
        self.paused_by: set[object] = set()
        self.ration = Outgoing(2 * LARGE_RESULT).ration(None)

    def on(self, **handlers: Callable[..., None]) -> None:
        vars(self).update(handlers)

    def send(self, frames: list[bytes]) -> None:
        self.sent.append(wire.decode(frames))

    def take_back(self, messages: list[list[bytes]]) -> None:
        self.unheard = messages

    def work(self, step: Callable[[], list[bytes]]) -> list[bytes]:
        return step()

    def close(self) -> None:
        self.is_closed = True

    alive = False
    cut_for = ""
    asked = 0

    def ask_for_sign_of_life(self) -> None:
        self.asked += 1

    def gave_sign_of_life(self) -> bool:
        return self.alive or self.is_paused

    def blame(self, *, malformed: bool = True) -> None:
        self.blamed.append(malformed)

    @property
    def is_paused(self) -> bool:
        return bool(self.paused_by)

    def pause(self, by: object = None) -> None:
        self.paused_by.add(by)

    def resume(self, by: object = None) -> None:
        self.paused_by.discard(by)


class Broken:
    """Queues that fail in a way that nobody foresaw."""

    def for_push(self, name: str, *, by: str, peer: str, caller: object) -> None:
        raise RuntimeError("nobody foresaw this")


class NotingQueue:
    """One queue whose parts are all itself; notes what it is asked for."""

    name = "mail"
    settings = QueueSettings()
    capacity = Capacity(name, settings, Flow)
    clock = Clock()

    def __init__(self) -> None:
        self.intake = self.settling = self
        self.calls: list[str] = []
        self.pushes: list[Push] = []

    def search(self, enough: Callable[[], bool], timeout: float) -> None:
        self.calls.append("search")

    def resize(self, worker: Worker, prefetch: int) -> None:
        worker.prefetch = prefetch

    def offer(self, worker: Worker) -> None:
        """Nobody has any."""

    def push(self, push: Push) -> None:
        self.pushes.append(push)

    def undo_pop(self, jobs: list[Job]) -> None:
        self.calls += [f"undo pop of {job.id}" for job in jobs]


@pytest.fixture
def lane() -> Lane:
    return Lane()


@pytest.fixture
def session(lane: Lane, time: VirtualTime) -> Session:
    client: Any = lane
    return Session(door_of(Broken(), time), client)


def door_of(queues: Any, time: VirtualTime, **settings: Any) -> SessionDoor:
    nobody: Any = None
    maker, broker = JobMaker(Clock(), 1 << 20), BrokerSettings(**settings)
    services = Services(broker, Counters(), Switchboard(), queues, maker, time, Security(Counters()))
    return SessionDoor(services, nobody)


@pytest.fixture
def queue() -> NotingQueue:
    return NotingQueue()


@pytest.fixture
def worker(session: Session, queue: Any) -> SessionWorker:
    return SessionWorker(session, queue, 100)


@pytest.fixture
def popper(session: Session, queue: Any) -> PoppingWorker:
    return PoppingWorker(session, queue, 3)


def delivery(worker: SessionWorker, number: int, size: int) -> Delivery:
    state = DeliveryState.REMOVING if worker.pops else DeliveryState.IN_FLIGHT
    return Delivery(Job(f"j{number}", bytes(size)), b"%d" % number, worker, 0.0, state)


def test_a_request_on_which_the_broker_fails_is_answered_like_those_after_it(
    session: Session, lane: Lane, caplog: pytest.LogCaptureFixture
) -> None:
    push = wire.encode(wire.PUSH, 1, "mail", [[None, b"work", None]])
    lane.receive([push, wire.encode(wire.READY, 2, "mail", 1), wire.encode(wire.PING, 3)])
    assert [(frame.verb, frame.number) for frame in lane.sent] == [
        (wire.ERROR, 1),
        (wire.ERROR, 2),
        (wire.OK, 3),
    ]
    assert lane.sent[0].fields[0] == "UNAVAILABLE"
    assert session.counters.values["unavailable"] == 2
    assert "nobody foresaw this" in caplog.text


@pytest.mark.parametrize("lost", ["permission", "key"])
def test_a_waiting_request_is_refused_when_its_client_may_not_now(session: Session, lost: str) -> None:
    # Given a change of a principal that waits for its turn
    lane: Any = Lane()
    principal = Principal("eve", Permissions.read("manage=*"))
    lane.who, subject = Caller(principal), MagicMock()
    session.door.admin = SimpleNamespace(queues=subject)  # type: ignore[assignment]
    Session(session.door, lane)
    lane.receive([wire.encode(wire.PAUSE, 1, "mail", "delivery")])
    if lost == "key":
        principal.exists = False
    else:
        principal.change(Permissions())
    come_to_rest()
    assert lane.sent[0].fields[0] == "FORBIDDEN"
    assert not subject.mock_calls


def test_of_a_client_that_left_only_changes_are_looked_at(session: Session, lane: Lane) -> None:
    # Given much that was sent by one that hears no answer any more
    lane.leaves_much = True
    asks = [
        wire.encode(wire.PING, 1),
        wire.encode(wire.RESULT, 2, "mail", "id1", 0.0),
        wire.encode(wire.QUEUES, 3),
        wire.encode(wire.READY, 4, "mail", 1),
    ]
    push = wire.encode(wire.PUSH, 10, "mail", [[None, b"work", None]])
    lane.receive([*asks, push, [b"rubbish"]])
    assert [frame.number for frame in lane.sent] == [10]


@pytest.mark.parametrize(
    ("verb", "fields"),
    [
        (wire.SETTLE, ([[b"none", wire.FAN_OUT, None, None, [["mail", None, None]] * 1000]],)),
        (wire.SETTLE, ([[b"none", wire.COMMIT, None, None]],)),
        (wire.EXTEND, ([b"none"], 1.0)),
        (wire.PROGRESS, ([[b"none", 1, None, None]],)),
    ],
)
def test_a_client_that_names_no_delivery_of_its_own_is_read_after_all_others(
    session: Session, lane: Lane, verb: bytes, fields: tuple[Any, ...]
) -> None:
    lane.receive([wire.encode(verb, 1, *fields)])
    [[refused]] = lane.sent[0].fields
    assert refused[:2] == [0, "LEASE_LOST"]
    assert lane.blamed == [False]


def test_jobs_go_out_in_messages_of_a_mib_and_a_larger_one_alone(worker: SessionWorker, lane: Lane) -> None:
    sizes = [400_000, 400_000, 400_000, 3 * MOST_BYTES, 10, 10]
    worker.deliver([delivery(worker, number, size) for number, size in enumerate(sizes)])
    assert [[job[1] for job in frame.fields[1]] for frame in lane.sent] == [
        ["j0", "j1"],
        ["j2"],
        ["j3"],
        ["j4", "j5"],
    ]
    assert len({frame.number for frame in lane.sent}) == 4


def test_a_delivery_tells_of_its_job_what_handlers_may_want(worker: SessionWorker, lane: Lane) -> None:
    # Given: one that was accepted a minute ago
    job = Job("id1", b"pay", {"a": 1}, priority=9, max_attempts=0)
    job.accept(int(17e14) - 60_000_000, 17e8 - 60)
    worker.deliver([Delivery(job, b"r", worker, 0.0, DeliveryState.IN_FLIGHT)])
    row = [b"r", "id1", b"pay", {"a": 1}, 0, 9, 17e8 - 60, 0, 1800.0]
    assert lane.sent[0].fields == ["mail", [row], NOW]


def test_a_worker_whose_client_does_not_read_takes_nothing(session: Session, queue: Any, lane: Lane) -> None:
    worker = SessionWorker(session, queue, 100)
    assert (worker.free, worker.takes) == (100, (100, 100))
    lane.writable = False
    worker = SessionWorker(session, queue, 100)
    assert (worker.free, worker.takes) == (0, (0, 0))


def test_a_worker_that_is_hung_up_on_loses_its_session(worker: SessionWorker, lane: Lane) -> None:
    worker.hang_up()
    assert lane.is_closed


def test_a_session_that_has_gone_asks_no_more(session: Session, lane: Lane) -> None:
    lane.closed()
    assert session.results._closed


def test_a_large_result_asked_for_thousands_of_times_is_kept_once(session: Session, lane: Lane) -> None:
    lane.ration.hold(LARGE_RESULT)
    session.send_result(7, bytes(LARGE_RESULT))
    assert [(frame.verb, frame.number, frame.fields[0]) for frame in lane.sent] == [
        (wire.ERROR, 7, "UNAVAILABLE")
    ]


def test_what_one_with_too_much_unread_asks_is_handed_back(session: Session, lane: Lane) -> None:
    lane.is_full = True
    pings = [wire.encode(wire.PING, number) for number in range(1, 4)]
    lane.receive(pings)
    assert (lane.sent, lane.unheard) == ([], pings)


def test_jobs_removed_for_one_that_left_return(popper: PoppingWorker, queue: NotingQueue, lane: Lane) -> None:
    popper.gone = True
    removed = delivery(popper, 7, 10)
    removed.job.reserve(Reservation("me", 1))
    remembered = delivery(popper, 8, 10)
    remembered.kept = True  # as done
    popper.deliver([removed, remembered])
    assert lane.sent == []
    assert [(job.id, job.attempts, job.owner) for push in queue.pushes for job in push.jobs] == [
        ("j7", 0, "")
    ]
    assert queue.calls == ["undo pop of j8"]


def test_a_popped_job_takes_one_off_the_credit_and_a_grant_adds(popper: PoppingWorker, lane: Lane) -> None:
    popper.deliver([delivery(popper, 1, 10), delivery(popper, 2, 10)])
    assert popper.free == 1
    popper.grant(4)
    assert popper.free == 5
    popper.grant(0)
    assert popper.free == 0


class ManyQueues(dict[str, NotingQueue]):
    """Each name is a queue of its own."""

    def for_push(self, name: str, *, by: str, peer: str, caller: object) -> NotingQueue:
        return self.setdefault(name, NotingQueue())


def test_a_queue_that_stores_nothing_holds_back_those_who_push_to_it_and_nobody_else() -> None:
    # Given eight that push to a queue that MongoDB does not take, until they are read no more
    queues: Any = ManyQueues()
    door = door_of(queues, VirtualTime(), hwm=10_000)
    *sick, well = lanes = [of(door, Lane()) for _ in range(9)]
    jobs = [[None, b"work", None]] * 1000
    for number in range(100):
        if not sick[number % 8].is_paused:
            sick[number % 8].receive([wire.encode(wire.PUSH, number, "sick", jobs)])
    assert all(lane.is_paused for lane in sick)
    # When another pushes to a queue of its own
    for number in range(100):
        assert not well.is_paused
        well.receive([wire.encode(wire.PUSH, number, "well", jobs)])
        queues["well"].pushes[-1].on_stored({}, ())
    # Then it is confirmed all the time, and the others are when theirs is stored
    assert len(well.sent) == 100
    for push in queues["sick"].pushes:
        push.on_stored({}, ())
    assert not any(lane.is_paused for lane in sick)
    assert door.pushes.inflow.mark.count == 0
    for peer in lanes:
        peer.closed()
    assert (len(door.pushes.inflow), door.sessions) == (0, set())


def test_who_has_nothing_on_its_way_to_a_queue_that_stores_nothing_is_read() -> None:
    # Given one that has pushed to a queue before, and was confirmed
    queues: Any = ManyQueues()
    door = door_of(queues, VirtualTime(), hwm=10_000)
    honest, sick = (of(door, Lane()) for _ in range(2))
    jobs = [[None, b"work", None]] * 1000
    honest.receive([wire.encode(wire.PUSH, 1, "sick", jobs[:1])])
    queues["sick"].pushes.pop().on_stored({}, ())
    # When the queue stores no more, and another fills its share
    for number in range(100):
        if not sick.is_paused:
            sick.receive([wire.encode(wire.PUSH, number, "sick", jobs)])
    assert sick.is_paused
    # Then the first is read, until it has something on its way there again
    assert not honest.is_paused
    honest.receive([wire.encode(wire.PUSH, 2, "sick", jobs[:1])])
    assert honest.is_paused
    queues["sick"].pushes[-1].on_stored({}, ())
    assert not honest.is_paused


def test_a_broker_that_stood_still_cuts_nobody(session: Session, lane: Lane, time: VirtualTime) -> None:
    session.door.sessions.add(session)
    time.passes(100)
    for _ in range(3):
        session.door.beat()
    assert not lane.is_closed


def test_a_client_that_says_nothing_is_asked_by_zmtp_and_closed_if_that_is_not_answered_either(
    session: Session, lane: Lane, worker: SessionWorker, time: VirtualTime
) -> None:
    # Given: a handler that holds Python's lock, so that only the client's ZeroMQ answers
    heard: list[str] = []
    queue: Any = worker.queue
    queue.worker_gone = lambda _worker, *, died, seen: heard.append(seen)
    session.assignments.workers["mail"] = worker
    session.door.sessions.add(session)

    def beats(seconds: int) -> None:
        for _ in range(seconds):
            time.passes(1)
            session.door.beat()

    lane.alive = True
    beats(100)
    assert (lane.asked, lane.is_closed) == (0, False)
    lane.alive = False
    beats(19)
    assert lane.asked > 10
    assert not lane.is_closed
    beats(2)
    assert lane.is_closed
    lane.closed()
    assert heard == ["nothing heard for 20 s"]


@pytest.mark.parametrize(("still", "died"), [(1.0, True), (100.0, False)])
def test_whoever_leaves_a_broker_that_stood_still_has_not_died(
    session: Session, lane: Lane, worker: SessionWorker, time: VirtualTime, *, still: float, died: bool
) -> None:
    heard: list[bool] = []
    queue: Any = worker.queue
    queue.worker_gone = lambda _worker, *, died, seen: heard.append(died)
    session.assignments.workers["mail"] = worker
    time.passes(still)
    lane.closed()
    assert heard == [died]


@pytest.mark.parametrize("verb", [wire.SETTLE, wire.EXTEND])
def test_more_receipts_at_once_than_may_be_are_refused(session: Session, lane: Lane, verb: bytes) -> None:
    many = [b"r"] * (MOST_ENTRIES + 1)
    rows = (
        many
        if verb == wire.EXTEND
        else [wire.verdict_row(receipt, wire.COMMIT, None, None) for receipt in many]
    )
    lane.receive([wire.encode(verb, 1, rows, 1.0), wire.encode(verb, 2, rows[1:], 1.0)])
    assert [(frame.verb, frame.number) for frame in lane.sent] == [(wire.ERROR, 1), (wire.OK, 2)]
    assert lane.sent[0].fields[0] == "BAD_FRAMES"


def test_who_sends_what_can_not_be_read_is_blamed(session: Session, lane: Lane) -> None:
    lane.receive([wire.encode(b"NONSENSE", 1), wire.encode(wire.PUSH, 2, "mail", []), [b"x"]])
    assert lane.blamed == [True, False, True]  # the second is the broker's own mistake


def test_connections_are_kept_for_the_library(session: Session) -> None:
    assert session.door.door.entrance._kept


@pytest.mark.parametrize(
    ("sign", "gone"), [("nothing", True), ("a part of a message", False), ("what nobody reads", False)]
)
def test_a_client_is_gone_when_nothing_came_of_it_for_too_long(
    session: Session, lane: Lane, time: VirtualTime, sign: str, *, gone: bool
) -> None:
    """Its own signs of life wait behind a large message, which may take long, or is not read meanwhile."""
    lane.alive = sign == "a part of a message"
    if sign == "what nobody reads":
        lane.pause()
    session.door.sessions.add(session)
    for _ in range(100):
        time.passes(1)
        session.door.beat()
    assert lane.is_closed == gone


class TestGoneOn:
    """Clients that repeat, over their next connection, what was not answered."""

    @pytest.mark.parametrize("newer", ["here", "elsewhere", "of another principal", "older", "none"])
    def test_an_older_connections_words_are_void(self, session: Session, lane: Lane, newer: str) -> None:
        connects(lane, 2)
        other = Lane()
        if newer == "elsewhere":
            session.door.clients.on_event(BusEvent(BusKind.CLIENT, "c0ffee/", 3))
        elif newer == "here":
            connects(of(session.door, other), 3)
        elif newer == "older":
            connects(of(session.door, other), 1)
        elif newer == "of another principal":
            other.who = Caller(Principal("eve", Permissions()))
            connects(of(session.door, other), 3)

        lane.receive([PUSH])

        dropped = newer in ("here", "elsewhere")
        assert lane.is_closed == dropped
        assert [frame.number for frame in lane.sent] == ([1] if dropped else [1, 10])
        assert other.is_closed == (newer == "older")

    @pytest.mark.parametrize(("repeats", "busy"), [(True, False), (True, True), (False, False)])
    def test_one_that_heard_nothing_for_too_long_has_gone_on_unless_it_is_busy_with_reading(
        self, session: Session, lane: Lane, time: VirtualTime, *, repeats: bool, busy: bool
    ) -> None:
        if repeats:
            connects(lane, 1)
        before = len(lane.sent)
        lane.writable = not busy  # what lies in the buffers of its connection
        time.passes(session.door.settings.silence + 0.1)
        lane.receive([PUSH])
        gone = repeats and not busy
        assert lane.is_closed == gone
        assert len(lane.sent) == (before if gone else before + 1)

    def test_one_told_something_has_not(self, session: Session, lane: Lane, time: VirtualTime) -> None:
        connects(lane, 1)
        session.door.sessions.add(session)
        for _ in range(20):
            time.passes(session.door.settings.heartbeat / 2)
            lane.alive = True
            session.door.beat()
        lane.receive([PUSH])
        assert not lane.is_closed
        assert lane.sent[-1].number == 10

    def test_jobs_read_and_not_stored_know_it(self, lane: Lane, session: Session, queue: Any) -> None:
        queues: Any = SimpleNamespace(for_push=lambda *_args, **_named: queue)
        session.door.pushes._queues = queues
        connects(lane, 1)
        lane.receive([PUSH])
        by = queue.pushes[0].by
        before = by.superseded
        lane.closed()
        session.door.clients.on_event(BusEvent(BusKind.CLIENT, "c0ffee/", 2))
        assert (before, by.superseded) == (False, True)

    @pytest.mark.parametrize("gone_on", [False, True])
    def test_a_change_that_waits_is_not_made_once_its_client_repeats_it_elsewhere(
        self, session: Session, lane: Lane, *, gone_on: bool
    ) -> None:
        subject = MagicMock()
        session.door.admin = session.admin = SimpleNamespace(queues=subject)  # type: ignore[assignment]
        connects(lane, 1)
        lane.receive([wire.encode(wire.PAUSE, 10, "mail", "delivery")])
        if gone_on:
            session.door.clients.on_event(BusEvent(BusKind.CLIENT, "c0ffee/", 2))
        come_to_rest()
        assert bool(subject.mock_calls) != gone_on
        assert (lane.sent[-1].verb, lane.sent[-1].number) == (wire.ERROR if gone_on else wire.OK, 10)


@pytest.mark.parametrize(
    ("verb", "fields", "act"),
    [
        (wire.PAUSE, ["mail", "delivery"], {"what": "delivery"}),
        (wire.USERS, ["add", {"name": "eve"}], {"about": {"name": "eve"}}),
        (wire.USERS, ["list", {}], None),
        (wire.TASKS, [], None),
        (wire.QUEUES, [], None),
    ],
)
def test_what_changes_something_is_an_act_with_its_fields_by_their_names(
    verb: bytes, fields: list[Any], act: dict[str, Any] | None
) -> None:
    kind = ADMIN_VERBS[verb]
    assert kind.is_act(fields) == (act is not None)
    assert act in (None, kind.arguments(fields))


@pytest.mark.parametrize("said", [4, 0, True, "4", None])
def test_a_client_says_how_many_jobs_it_works_on_at_one_time(session: Session, lane: Lane, said: Any) -> None:
    lane.receive([wire.encode(wire.HELLO, 1, {"concurrency": said})])
    assert session.concurrency == (4 if said == 4 else math.inf)


PUSH = wire.encode(wire.PUSH, 10, "mail", [[None, b"work", None]])


def connects(lane: Lane, connection: int) -> None:
    lane.receive([wire.encode(wire.HELLO, 1, {"id": "c0ffee", "connection": connection})])


def of(door: SessionDoor, lane: Any) -> Lane:
    """Return the lane of a new session."""
    door.sessions.add(Session(door, lane))
    found: Lane = lane
    return found
