"""Producers' doors: what one message does to those that came with it, and what askers leave behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sluicemq.protocol import wire
from sluicemq.protocol.errors import UnavailableError
from sluicemq.protocol.permissions import Permissions
from sluicemq_broker.config import BrokerSettings, DeviceSettings, QueueSettings
from sluicemq_broker.doors import DoorGroup, Services
from sluicemq_broker.doors.frontends import PushFrontend
from sluicemq_broker.doors.requests import MOST_UNREAD, Requester, RequestFrontend
from sluicemq_broker.queue import JobMaker, Push
from sluicemq_broker.queue.capacity import Capacity, Flow
from sluicemq_broker.runtime import Counters, Timer
from sluicemq_broker.security import ANYBODY, Caller, Principal, Security
from sluicemq_devices.hub import Watermark, boundless
from sluicemq_devices.sockets import Outgoing, Switchboard
from support.fakes import Clock


class KeepingQueue:
    """One queue that keeps what it is given."""

    name = "mail"
    settings = QueueSettings()

    def __init__(self) -> None:
        self.paused: frozenset[str] = frozenset()
        self.pushes: list[Push] = []
        self.kept: list[dict[str, Any]] = []
        self.waiting: dict[str, Callable[..., None]] = {}
        self.capacity = Capacity(self.name, self.settings, Flow)
        self.intake = self.unreadable = self

    def pause(self, *paused: str) -> None:
        self.paused = frozenset(paused)
        self.capacity.pause_intake(paused=wire.INTAKE in paused)

    def push(self, push: Push) -> None:
        self.pushes.append(push)

    def keep(self, unreadable: dict[str, Any], mark: Watermark, size: int) -> None:
        self.kept.append(unreadable)
        mark.take(1, size)

    @property
    def results(self) -> KeepingQueue:
        """Stand in for the waiters, too."""
        return self

    def wait(self, job_id: str, answer: Callable[..., None]) -> None:
        self.waiting[job_id] = answer

    def stop(self, job_id: str, answer: Callable[..., None]) -> None:
        assert self.waiting.pop(job_id) == answer

    def stored(self, ids: object, existing: object) -> None:
        """Nobody asks."""

    @property
    def payloads(self) -> list[bytes]:
        return [job.payload for push in self.pushes for job in push.jobs]


class Queues:
    """All names are those of one queue, but ``broken``: that is nobody's fault but the broker's."""

    def __init__(self) -> None:
        self.queue = KeepingQueue()

    def __iter__(self) -> Iterator[KeepingQueue]:
        yield self.queue

    def open(self, name: str) -> KeepingQueue:
        return self.queue

    def for_plain_push(self, name: str, *, auto_create: bool | None, caller: object) -> KeepingQueue:
        if name == "broken":
            raise RuntimeError("nobody foresaw this")
        return self.queue


LARGE = 1 << 20


class Lane:
    """Keeps what is sent; its client reads nothing while ``blocked``."""

    peer = "127.0.0.1:1"

    def __init__(self, who: Caller = ANYBODY) -> None:
        self.who = who
        self.sent: list[list[bytes]] = []
        self.blamed: list[bool] = []
        self.held = boundless()
        self.ration = Outgoing(2 * LARGE).ration(None)
        self.blocked = False
        self.paused_by: set[object] = set()
        self.receive: Callable[[list[list[bytes]]], None]
        self.closed: Callable[[], None]
        self.unblocked: Callable[[], None]

    def on(self, **handlers: Callable[..., None]) -> None:
        vars(self).update(handlers)

    def send(self, frames: list[bytes]) -> None:
        self.sent.append(frames)
        if self.blocked:
            self.held.take(1, sum(map(len, frames)))

    def blame(self, *, malformed: bool = True) -> None:
        self.blamed.append(malformed)

    def pause(self, by: object = None) -> None:
        self.paused_by.add(by)

    def resume(self, by: object = None) -> None:
        self.paused_by.discard(by)

    @property
    def backlog(self) -> int:
        return self.held.count

    @property
    def paused(self) -> bool:
        return bool(self.paused_by)


class FrontendRig:
    """A frontend of each kind over one queue, with room for ``hwm`` jobs on their way."""

    def __init__(self, hwm: int = 1000, hwm_bytes: int = 1 << 20) -> None:
        self.queues = Queues()
        self.queue = self.queues.queue
        self.counters = Counters()
        self._settings = DeviceSettings(kind="queue", queue="mail", hwm=hwm, hwm_bytes=hwm_bytes)

    def frontend(self, kind: Any) -> Any:
        queues: Any = self.queues
        board, maker = Switchboard(), JobMaker(Clock(), 1 << 20)
        services = Services(
            BrokerSettings(), self.counters, board, queues, maker, Timer(), Security(self.counters)
        )
        return kind(self._settings, services)

    def asker(self, frontend: RequestFrontend, who: Caller = ANYBODY) -> Lane:
        lane = Lane(who)
        Requester(frontend, lane).listen()  # type: ignore[arg-type]
        return lane


@pytest.fixture
def rig() -> FrontendRig:
    return FrontendRig()


def ask(number: int, *job: bytes) -> list[bytes]:
    return [b"routing id", b"%d" % number, b"", *job]


def test_a_push_on_which_the_broker_fails_takes_no_other_with_it(caplog: pytest.LogCaptureFixture) -> None:
    rig = FrontendRig()
    frontend = rig.frontend(PushFrontend)
    frontend._receive(PUSHER, [[b"first"], [b"broken", b"second"], [b"third"]])
    assert rig.queue.payloads == [b"first", b"third"]
    (letter,) = rig.queue.kept
    assert (letter["payload"], letter["reason"][:11]) == (b"second", "UNAVAILABLE")
    assert rig.counters.values["unreadable"] == 1
    assert "nobody foresaw this" in caplog.text


def test_unreadable_messages_on_their_way_close_the_gates_as_jobs_do() -> None:
    rig = FrontendRig(hwm_bytes=10_000)
    frontend = rig.frontend(PushFrontend)
    unreadable = [b"", b"{", b"x" * 999]
    frontend._receive(PUSHER, [unreadable] * 9)
    assert not frontend.is_shut
    frontend._receive(PUSHER, [unreadable])
    assert frontend.is_shut  # each keeps its last frame, and its headers
    assert len(rig.queue.kept) == 10


def test_a_probe_is_neither_a_question_nor_counted_as_received(rig: FrontendRig) -> None:
    lane = rig.asker(rig.frontend(RequestFrontend))
    lane.receive([[b"routing id", b""], [b"routing id", b"7", b""], [b"routing id", b"", b""]])
    assert rig.queue.payloads == [b""]
    assert not lane.sent
    assert (rig.counters.values["probes"], rig.counters.values["received"]) == (2, 1)


def test_a_request_that_fails_the_broker_is_answered_alone(caplog: pytest.LogCaptureFixture) -> None:
    rig = FrontendRig()
    lane = rig.asker(rig.frontend(RequestFrontend))
    lane.receive([ask(1, b"first"), ask(2, b"broken", b"second"), ask(3, b"third")])
    assert rig.queue.payloads == [b"first", b"third"]
    (answer,) = lane.sent
    assert answer[:4] == [b"routing id", b"2", b"", b"ERROR"]
    assert b"UNAVAILABLE" in answer[4]
    assert "nobody foresaw this" in caplog.text


def opened(frontend: PushFrontend, who: Caller = ANYBODY) -> Lane:
    lane: Any = Lane(who)
    frontend._opened(lane)
    connected: Lane = lane
    return connected


def eve(permissions: str) -> Caller:
    return Caller(Principal("eve", Permissions.read(permissions)))


def test_a_push_into_a_queue_that_its_sender_may_not_fill_is_lost_and_counted(rig: FrontendRig) -> None:
    for permitted, stored in (("push=mail", [b"b"]), ("push=sms", [b"a"])):
        frontend = rig.frontend(PushFrontend)
        lane = opened(frontend, eve(permitted))
        lane.receive([[b"sms", b"a"], [b"b"]])
        assert [job.payload for push in rig.queue.pushes for job in push.jobs] == stored
        assert (frontend.lost, lane.blamed) == (1, [False])
        rig.queue.pushes.clear()
    assert (rig.counters.values["refused"], rig.counters.values["jobs_refused"]) == (2, 2)


def test_a_request_names_the_id_of_its_job_if_it_may_read_or_wants_no_result(rig: FrontendRig) -> None:
    lane = rig.asker(rig.frontend(RequestFrontend), eve("push=mail"))
    options = (b"", b'{"id": "x"}', b'{"id": "x", "reply": "accepted"}')
    lane.receive([ask(number, b"", option, b"%d" % number) for number, option in enumerate(options)])
    assert rig.queue.payloads == [b"0", b"2"]
    assert [(answer[1], b"FORBIDDEN" in answer[4]) for answer in lane.sent] == [(b"1", True)]


def held(frontend: Any) -> list[int]:
    """What a frontend counts as on its way to MongoDB, and as waiting for results."""
    marks = (frontend.mark, frontend._waiting.mark)
    return [number for mark in marks for number in (mark.count, mark.bytes)]


def test_who_waits_for_a_result_is_noted_in_the_job_for_other_brokers(rig: FrontendRig) -> None:
    lane = rig.asker(rig.frontend(RequestFrontend))
    lane.receive([ask(1, b"a"), ask(2, b"", b'{"reply": "accepted"}', b"b")])
    assert [job.result_wanted for push in rig.queue.pushes for job in push.jobs] == [True, False]


def test_a_push_socket_that_fills_a_queue_is_not_read_until_there_is_room(rig: FrontendRig) -> None:
    # Given a queue for two jobs
    queue, ended = rig.queue, [0]
    queue.capacity = Capacity(
        "mail", QueueSettings(max_ready=2), lambda: Flow(len(queue.payloads), 0, *ended)
    )
    pusher = opened(rig.frontend(PushFrontend))
    pusher.receive([[b"first"]])
    assert not pusher.paused
    pusher.receive([[b"second"], [b"third"]])
    assert pusher.paused
    ended[0] = 3
    queue.capacity.resume_if_room()
    assert not pusher.paused


def test_who_sends_what_can_not_be_read_is_blamed_and_who_can_not_help_it_is_not_for_malformed() -> None:
    rig = FrontendRig()
    asker, pusher = rig.asker(rig.frontend(RequestFrontend)), opened(rig.frontend(PushFrontend))
    for lane in (asker, pusher):
        lane.receive([ask(1, b"", b"{", b"x"), ask(2, b"broken", b"x"), ask(3, b"x")])
    assert asker.blamed == [True, False]
    assert pusher.blamed == [True] * 3  # five frames are no job, for one who sends no envelope


def test_askers_that_have_gone_count_no_more(rig: FrontendRig) -> None:
    frontend = rig.frontend(RequestFrontend)
    gone = rig.asker(frontend)
    gone.receive([ask(1, b"a"), ask(2, b"b")])
    rig.queue.pushes[0].on_stored({}, {})
    assert held(frontend)[:3] == [0, 0, 2]
    gone.closed()
    assert held(frontend) == [0, 0, 0, 0]
    assert rig.counters.values["askers_gone"] == 2


def test_who_waits_for_many_results_is_not_read_and_others_are(rig: FrontendRig) -> None:
    frontend = rig.frontend(RequestFrontend)
    greedy, honest = rig.asker(frontend), rig.asker(frontend)
    greedy.receive([ask(number, b"a") for number in range(1000)])
    honest.receive([ask(1, b"b")])
    honest.receive([ask(2, b"", b'{"reply": "accepted"}', b"c")])
    for push in rig.queue.pushes:
        push.on_stored({}, {})
    assert (greedy.paused, honest.paused) == (True, False)
    assert len(honest.sent) == 1
    answers = list(rig.queue.waiting.values())
    for answer in answers[:600]:
        answer(b"")
    assert not greedy.paused


def test_questions_that_wait_for_results_are_not_on_their_way_to_mongodb() -> None:
    rig = FrontendRig(hwm=10)
    frontend = rig.frontend(RequestFrontend)
    for _ in range(100):
        lane = rig.asker(frontend)
        lane.receive([ask(1, b"a")])
        rig.queue.pushes[-1].on_stored({}, {})
        assert not lane.paused
    assert held(frontend)[:3] == [0, 0, 100]


class FewMayWait(RequestFrontend):
    most_waiting = 100


def test_at_the_bound_of_all_questions_those_who_have_none_are_heard_and_accepted_ones_too() -> None:
    rig = FrontendRig()
    frontend = rig.frontend(FewMayWait)
    many = rig.asker(frontend)
    many.receive([ask(number, b"a") for number in range(100)])
    honest = rig.asker(frontend)
    many.receive([ask(100, b"a"), ask(101, b"", b'{"reply": "accepted"}', b"b")])
    honest.receive([ask(1, b"c")])
    for push in rig.queue.pushes:
        push.on_stored({}, {})
    assert (many.sent[0][1], many.sent[0][3]) == (b"100", b"ERROR")
    assert b"QUEUE_FULL" in many.sent[0][4]
    assert [answer[1] for answer in many.sent[1:]] == [b"101"]
    assert honest.sent == []
    assert rig.counters.values["refused"] == 1


def test_an_answer_to_an_asker_that_has_gone_is_not_counted_again(rig: FrontendRig) -> None:
    frontend = rig.frontend(RequestFrontend)
    gone, there = rig.asker(frontend), rig.asker(frontend)
    gone.receive([ask(1, b"a")])
    there.receive([ask(1, b"b")])
    answers = list(rig.queue.waiting.values())
    for push in rig.queue.pushes:
        push.on_stored({}, {})
    gone.closed()
    assert len(rig.queue.waiting) == 1
    for answer in answers:
        answer(UnavailableError("too late"))
    assert held(frontend) == [0, 0, 0, 0]
    assert len(there.sent) == 1


def test_an_asker_that_reads_no_answers_is_not_read_until_it_does(rig: FrontendRig) -> None:
    lane = rig.asker(rig.frontend(RequestFrontend))
    lane.blocked = True
    lane.receive([ask(number, b"broken", b"x") for number in range(MOST_UNREAD)])
    assert not lane.paused
    lane.receive([ask(0, b"broken", b"x")])
    assert lane.paused
    lane.unblocked()
    assert not lane.paused


def test_a_large_answer_that_does_not_fit_beside_what_is_unread_is_an_error_and_a_small_one_is_told() -> None:
    rig = FrontendRig()
    lane = rig.asker(rig.frontend(RequestFrontend))
    lane.ration.hold(LARGE)
    lane.receive([ask(1, b"a"), ask(2, b"b")])
    for answer, size in zip([*rig.queue.waiting.values()], (LARGE, 1000), strict=True):
        answer(bytes(size))
    error, small = lane.sent
    assert error[-2] == b"ERROR"
    assert b"UNAVAILABLE" in error[-1]
    assert small[-1] == bytes(1000)


def test_a_question_under_way_keeps_no_payload_in_memory(rig: FrontendRig) -> None:
    lane = rig.asker(rig.frontend(RequestFrontend))
    lane.receive([ask(1, bytes(10_000))])
    (answer,) = rig.queue.waiting.values()
    request = answer.__self__  # type: ignore[attr-defined]
    kept = [getattr(request, name) for name in request.__slots__]
    assert request.weight < 1000
    assert not any(isinstance(value, list) and bytes(10_000) in value for value in kept)
    assert not any(hasattr(value, "payload") for value in kept)


# --------------------------------------------------------------------- sick queues


class ManyQueues(Queues):
    """Each name is a queue of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name: dict[str, KeepingQueue] = {}

    def for_plain_push(self, name: str, *, auto_create: bool | None, caller: object) -> KeepingQueue:
        return self.by_name.setdefault(name, KeepingQueue())


def test_who_has_nothing_on_its_way_to_a_queue_that_stores_nothing_is_read() -> None:
    rig = FrontendRig(hwm=100)
    rig.queues = queues = ManyQueues()
    frontend = push_frontend(rig, Door())
    honest, sick = (opened(frontend) for _ in range(2))
    honest.receive([[b"sick", b"a"]])
    queues.by_name["sick"].pushes.pop().on_stored({}, {})

    while not sick.paused:
        sick.receive([[b"sick", b"a"]])

    assert not honest.paused
    honest.receive([[b"sick", b"a"]])
    assert honest.paused
    queues.by_name["sick"].pushes[-1].on_stored({}, {})
    assert not honest.paused


def test_a_queue_that_stores_nothing_holds_back_those_who_push_to_it_and_nobody_else() -> None:
    rig = FrontendRig(hwm=100)
    rig.queues = queues = ManyQueues()
    frontend = push_frontend(rig, Door())
    *sick, well = (opened(frontend) for _ in range(9))

    for number in range(100):
        if not sick[number % 8].paused:
            sick[number % 8].receive([[b"sick", b"a"]])
    for _ in range(10):
        well.receive([[b"well", b"b"]])
        queues.by_name["well"].pushes[-1].on_stored({}, {})

    assert all(lane.paused for lane in sick)
    assert not well.paused
    assert not frontend.mark.is_full
    for push in queues.by_name["sick"].pushes:
        push.on_stored({}, {})
    assert not any(lane.paused for lane in sick)


# ------------------------------------------------------------------ paused intake


class Door:
    """Notes whether it is read."""

    received = 0

    def __init__(self) -> None:
        self.is_open = False

    def start(self) -> None:
        self.is_open = True

    def pause(self) -> None:
        self.is_open = False

    def resume(self) -> None:
        self.is_open = True


PUSHER: Any = Lane()


@pytest.fixture
def door() -> Door:
    return Door()


def push_frontend(rig: FrontendRig, door: Door) -> PushFrontend:
    frontend: PushFrontend = rig.frontend(PushFrontend)
    frontend.doors = DoorGroup([door])  # type: ignore[list-item]
    return frontend


def test_a_push_door_is_not_read_while_intake_of_its_queue_is_paused(rig: FrontendRig, door: Door) -> None:
    frontend = push_frontend(rig, door)
    rig.queue.pause(wire.INTAKE)
    frontend.start()
    assert not door.is_open
    rig.queue.pause(wire.DELIVERY)
    assert door.is_open
    rig.queue.pause(wire.DELIVERY, wire.INTAKE)
    assert not door.is_open


def test_a_push_door_that_is_paused_and_full_opens_when_it_is_neither(door: Door) -> None:
    rig = FrontendRig(hwm=1)
    frontend = push_frontend(rig, door)
    frontend.start()
    frontend._receive(PUSHER, [[b"first"]])
    assert not door.is_open

    rig.queue.pause(wire.INTAKE)
    rig.queue.pushes[0].on_stored({}, {})
    assert not door.is_open
    rig.queue.pause()
    assert door.is_open

    frontend._receive(PUSHER, [[b"second"]])
    rig.queue.pause(wire.INTAKE)
    rig.queue.pause()
    assert not door.is_open
    rig.queue.pushes[1].on_stored({}, {})
    assert door.is_open


def test_a_push_door_is_read_to_its_end_by_a_broker_that_stops_though_intake_is_paused(door: Door) -> None:
    rig = FrontendRig()
    frontend = push_frontend(rig, door)
    frontend.start()
    rig.queue.pause(wire.INTAKE)
    frontend.read_all()
    assert door.is_open
    frontend._receive(PUSHER, [[b"last"]])
    assert rig.queue.payloads == [b"last"]


def test_a_request_to_a_paused_queue_is_refused_at_once_and_counted(rig: FrontendRig) -> None:
    lane = rig.asker(rig.frontend(RequestFrontend))
    rig.queue.pause(wire.INTAKE)
    lane.receive([ask(1, b"a"), ask(2, b"b")])
    assert rig.queue.pushes == []
    assert [answer[1] for answer in lane.sent] == [b"1", b"2"]
    assert all(b'"PAUSED"' in answer[4] for answer in lane.sent)
    assert (rig.counters.values["received"], rig.counters.values["refused"]) == (2, 2)
    assert rig.counters.values["unreadable"] == 0
