"""Questions of many: places, one answer for all who ask, lists that fit, counts in time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import gevent
import pytest
from gevent.event import Event
from pymongo.errors import ExecutionTimeout

from sluicemq.protocol.rows import WorkerRow, from_document
from sluicemq_broker.admin import QueueAdmin
from sluicemq_broker.admin.shared_answer import SharedAnswer
from sluicemq_broker.queue import Queue
from sluicemq_broker.queues import Census, Queues, Tasks
from sluicemq_broker.runtime import QuerySlots, SlotUser
from sluicemq_broker.store import DeadLetters, Listing
from sluicemq_broker.store.admin import listing
from support.fakes import go_on
from support.virtual_time import VirtualTime

LONG = 1.0  # seconds of a question that is heavy


class Askers:
    """Greenlets that each want a place, and have it until they are let go."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.over = Event()
        self._greenlets: list[gevent.Greenlet[..., None]] = []

    def ask(self, guest: SlotUser, name: str, over: Event | None = None) -> None:
        self._greenlets.append(gevent.spawn(self._ask, guest, name, over or self.over))
        gevent.idle()

    def leave(self) -> None:
        self.over.set()
        gevent.joinall(self._greenlets, raise_error=True, timeout=10)

    def _ask(self, guest: SlotUser, name: str, over: Event) -> None:
        with guest.slot():
            self.inside.append(name)
            over.wait()


@pytest.fixture
def askers() -> Iterator[Askers]:
    askers = Askers()
    yield askers
    askers.leave()


@pytest.fixture
def places() -> QuerySlots:
    return QuerySlots(8, VirtualTime().now)


def heavy(places: QuerySlots) -> SlotUser:
    guest = places.user()
    guest.time_used.used(LONG, more=True)
    return guest


def light(places: QuerySlots) -> SlotUser:
    guest = places.user()
    for _ in range(10):
        guest.answered()
    return guest


def test_a_light_peer_has_a_place_at_once_amid_heavy_ones(places: QuerySlots, askers: Askers) -> None:
    for _ in range(60):
        askers.ask(heavy(places), "heavy")
    assert askers.inside == ["heavy"] * 6
    askers.ask(light(places), "light")
    assert askers.inside[-1] == "light"


def test_one_peer_has_a_quarter_and_its_other_questions_wait(places: QuerySlots, askers: Askers) -> None:
    guest = light(places)
    for _ in range(5):
        askers.ask(guest, "one")
    assert askers.inside == ["one"] * 2
    askers.over.set()
    gevent.idle()
    assert askers.inside == ["one"] * 5


def test_where_all_places_are_taken_a_light_peer_is_next(places: QuerySlots, askers: Askers) -> None:
    first = Event()
    askers.ask(light(places), "first", first)
    for _ in range(7):
        askers.ask(light(places), "full")
    for _ in range(10):
        askers.ask(heavy(places), "heavy")
    askers.ask(light(places), "light")
    assert len(askers.inside) == 8
    first.set()
    gevent.idle()
    assert askers.inside[8:] == ["light"]


def test_a_peer_whose_questions_are_all_answered_gets_light_again(places: QuerySlots) -> None:
    guest = heavy(places)
    level = guest.time_used.level
    for _ in range(10):
        guest.answered()
    assert guest.time_used.level == 0 < level


def test_a_question_that_fails_gives_its_place_back(places: QuerySlots, askers: Askers) -> None:
    guest = light(places)
    for _ in range(20):
        with pytest.raises(ValueError, match="fails"), guest.slot():
            raise ValueError("it fails")
    askers.ask(guest, "next")
    assert askers.inside == ["next"]


NOW = 1_790_000_000.0


class Cold:
    """A collection of 1,000,000 jobs: so many samples of it take too long; a third of the others match."""

    def __init__(self, slow: int) -> None:
        self.slow = slow
        self.steps: list[list[Any]] = []

    def __getitem__(self, _name: str) -> Cold:
        return self

    def with_options(self, **_: Any) -> Cold:
        return self

    def count_documents(self, *_: Any, **__: Any) -> int:
        raise ExecutionTimeout("too long")

    def estimated_document_count(self) -> int:
        return 1_000_000

    def aggregate(self, steps: list[Any], **options: Any) -> list[dict[str, int]]:
        assert options.get("maxTimeMS", 0) <= 100
        self.steps.append(steps)
        if len(self.steps) <= self.slow:
            raise ExecutionTimeout("too long")
        size = steps[0]["$sample"]["size"] if "$sample" in steps[0] else listing.SAMPLE
        return [{"count": size // 3}]


def count(jobs: Cold, known: int | None = None, **letters: Any) -> listing.HowMany:
    database: Any = jobs
    return Listing(database).count("mail", DeadLetters(**letters), NOW, known)


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_sample_that_takes_too_long_is_followed_by_one_that_does_not(slow: int) -> None:
    jobs = Cold(slow)
    found = count(jobs, reason="disk full")
    assert not found.exact
    assert found.number == pytest.approx(333_333, rel=0.01)
    assert ("$sample" in jobs.steps[-1][0]) == (slow < 2)


def test_what_is_known_from_before_most_died_is_not_told() -> None:
    assert count(Cold(0), known=12).number == pytest.approx(333_333, rel=0.01)


def test_all_of_them_are_told_from_what_is_known() -> None:
    jobs = Cold(0)
    assert count(jobs, known=998_877) == (998_877, False)
    assert jobs.steps == []


class _Queue(NamedTuple):
    """A queue with so many workers."""

    name: str
    workers: int

    def worker_list(self, *, most_jobs: int) -> list[WorkerRow]:
        return [from_document(WorkerRow, {"queue": self.name})] * self.workers


class _Census(NamedTuple):
    all: Any = None
    rows: Any = None


def test_workers_that_a_caller_may_not_see_take_no_place_in_its_answer() -> None:
    queues = [_Queue("others", 5000), _Queue("mail", 2)]
    admin = QueueAdmin(
        cast("Queues", cast("list[Queue]", queues)), cast("Census", _Census()), cast("Tasks", None)
    )
    assert [worker.queue for worker in admin.workers(None, lambda name: name == "mail")] == ["mail"] * 2
    assert len(admin.workers(None, lambda _name: True)) == 1000


class Work:
    """Finds out how often it was asked to, when it may."""

    def __init__(self, *errors: Exception | None) -> None:
        self.let_go = Event()
        self._numbers = itertools.count(1)
        self._errors = list(errors)

    def __call__(self) -> int:
        number = next(self._numbers)
        self.let_go.wait()
        if self._errors and (error := self._errors.pop(0)):
            raise error
        return number


def test_all_who_ask_while_one_is_found_out_share_the_next() -> None:
    work = Work()
    answer = SharedAnswer(work)
    first = gevent.spawn(answer.get)
    go_on()
    others = [gevent.spawn(answer.get) for _ in range(100)]
    go_on()
    work.let_go.set()
    gevent.joinall([first, *others])
    assert first.value == 1
    assert [other.value for other in others] == [2] * 100
    assert answer.get() == 3


def test_an_error_is_told_to_those_who_asked_and_to_nobody_else() -> None:
    work = Work(ValueError("it can't be counted"))
    answer = SharedAnswer(work)
    work.let_go.set()
    asked = [gevent.spawn(answer.get) for _ in range(3)]
    gevent.joinall(asked)
    assert [str(future.exception) for future in asked] == ["it can't be counted"] * 3
    assert answer.get() == 2


def test_one_who_gives_up_leaves_the_others_their_answer() -> None:
    work = Work()
    answer = SharedAnswer(work)
    asked = [gevent.spawn(answer.get) for _ in range(3)]
    go_on()
    asked[0].kill()
    work.let_go.set()
    gevent.joinall(asked)
    assert [answer.value for answer in asked[1:]] == [1, 1]


def test_who_asks_alone_has_a_new_answer_each_time() -> None:
    work = Work()
    work.let_go.set()
    answer = SharedAnswer(work)
    assert [answer.get() for _ in range(3)] == [1, 2, 3]
    with pytest.raises(ZeroDivisionError):
        SharedAnswer(lambda: 1 // 0).get()
