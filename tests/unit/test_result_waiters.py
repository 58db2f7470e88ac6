"""Waiters for results: jobs that are found, missing, or ending this moment; and how long clients wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sluicemq.protocol.errors import (
    ExpiredError,
    ForbiddenError,
    NotFoundError,
    QueueFullError,
    SluiceError,
    UnavailableError,
    UncertainError,
)
from sluicemq.protocol.permissions import Permissions
from sluicemq_broker.context import Retry
from sluicemq_broker.doors.smq.results import MOST_LOOKUPS, MOST_REQUESTS, Lookups, Results
from sluicemq_broker.queue import Outcome, StoredResult
from sluicemq_broker.queue.result_waiters import ResultWaiters
from sluicemq_broker.security import Caller, Principal
from sluicemq_broker.store import Found, Refused
from support.fakes import FakeStore, Held, go_on
from support.jobs import NOW, a_job, finished

OTHER = "other"


class AskedStore(FakeStore):
    """Notes what it is asked for; ``before_answer`` is called when jobs were read, and may wait."""

    def __init__(self) -> None:
        super().__init__()
        self.before_answer: Callable[[], None] = go_on
        self.reads: list[list[str]] = []
        self.fault: Exception | None = None  # raised where one asks for the job ``refused``
        self.since: list[float] = []
        self.large: set[str] = set()  # whose results are large

    def ended(self, since: float, limit: int) -> list[str]:
        self.since.append(since)
        return super().ended(since, limit)

    def find(self, ids: Sequence[str]) -> dict[str, Found]:
        self.reads.append([*ids])
        if self.fault and "refused" in ids:
            raise self.fault
        found = super().find(ids)
        self.before_answer()
        return {name: replace(found[name], large=9) if name in self.large else found[name] for name in found}


class WaitersRig:
    """The waiters of one queue over that store, and the outcomes they get; another broker has its jobs."""

    def __init__(self) -> None:
        self.store = AskedStore()
        self.held: set[str] = set()
        store: Any = self.store
        self.expiries: dict[str, float] = {}
        self.waiters = ResultWaiters(store, Retry(), self.held, watch_expiry=self.expiries.__setitem__)
        self.heard: list[Any] = []

    def begin(self, *ids: str) -> None:
        self.store.push([a_job(job_id, owner=OTHER, hold=1) for job_id in ids], NOW)

    def end(self, *ids: str) -> None:
        """End these jobs with the result 42; they are kept."""
        self.store.complete([finished(a_job(job_id, owner=OTHER, hold=1), b"42") for job_id in ids], NOW)

    def remove(self, *ids: str) -> None:
        """End these jobs; they are not kept."""
        self.store.commit([a_job(job_id, owner=OTHER, hold=1) for job_id in ids])

    def ask(self, name: str = "client", job_id: str = "job") -> None:
        self.waiters.find(
            job_id,
            lambda outcome: self.heard.append((name, told(outcome))),
            lambda _progress: self.heard.append((name, "on its way")),
        )

    def wait(self, job_id: str) -> None:
        """Wait as the client that pushed the job; its outcome is noted under the job's id."""
        self.waiters.wait(job_id, lambda outcome: self.heard.append((job_id, told(outcome))))


def settle(condition: Callable[[], Any]) -> None:
    """Let the greenlets run until it is so."""
    for _ in range(1000):
        if condition():
            return
        go_on()
    raise AssertionError("it did not happen")


def told(outcome: Outcome) -> Any:
    return type(outcome) if isinstance(outcome, SluiceError) else outcome


@pytest.fixture
def rig() -> WaitersRig:
    return WaitersRig()


def test_a_job_that_has_ended_is_answered_without_waiting(rig: WaitersRig) -> None:
    rig.begin("job")
    rig.end("job")
    rig.ask()
    go_on()
    assert rig.heard == [("client", b"42")]
    assert not len(rig.waiters)


def test_a_job_on_its_way_is_waited_for(rig: WaitersRig) -> None:
    rig.begin("job")
    rig.ask()
    go_on()
    rig.waiters.committed("job", b"42")
    assert rig.heard == [("client", "on its way"), ("client", b"42")]


def test_a_job_that_expires_is_watched_for_who_waits(rig: WaitersRig) -> None:
    rig.store.push([a_job("mortal", expires_at=NOW + 5), a_job("stays")], NOW)
    for job_id in ("mortal", "stays"):
        rig.ask(job_id=job_id)
    go_on()
    assert rig.expiries == {"mortal": NOW + 5}


def test_many_who_ask_at_once_cost_one_read_and_are_all_told(rig: WaitersRig) -> None:
    rig.begin("job")
    for name in "abc":
        rig.ask(name)
    go_on()
    assert rig.store.reads == [["job"]]
    assert rig.heard == [(name, "on its way") for name in "abc"]


def test_a_job_that_is_not_there_is_not_found(rig: WaitersRig) -> None:
    rig.ask()
    go_on()
    assert rig.heard == [("client", NotFoundError)]
    assert not len(rig.waiters)


def test_a_job_just_expired_here_is_known_as_such_and_one_long_gone_is_not(rig: WaitersRig) -> None:
    rig.waiters.expired(["job"])
    rig.ask()
    go_on()
    rig.waiters.expired([f"other {number}" for number in range(1000)])
    rig.ask()
    go_on()
    assert rig.heard == [("client", ExpiredError), ("client", NotFoundError)]


def test_a_job_that_ends_here_while_it_is_looked_for_is_not_taken_for_unknown(rig: WaitersRig) -> None:
    # Given a job that this broker has just removed, before MongoDB has answered
    rig.held.add("job")
    rig.ask()
    go_on()
    assert rig.heard == [("client", "on its way")]
    # When MongoDB has answered
    rig.waiters.committed("job", b"42")
    # Then the client is answered
    assert rig.heard[1:] == [("client", b"42")]


def test_a_job_stored_while_another_looks_for_it_in_vain_is_not_taken_for_unknown(rig: WaitersRig) -> None:
    # Given somebody who asks too early, and a look that does not find it
    rig.store.before_answer = hold = Held()
    rig.ask("early")
    go_on()
    # When it is stored, and asked for by who knows that
    rig.begin("job")
    rig.ask("later")
    rig.store.before_answer = go_on
    hold.set()
    go_on()
    go_on()
    # Then only the first gets the answer that there is none
    assert rig.heard == [("early", NotFoundError), ("later", "on its way")]


def test_who_pushed_the_job_is_not_told_that_it_is_unknown(rig: WaitersRig) -> None:
    # Given a REQ client whose job is on its way into MongoDB
    rig.waiters.wait("job", lambda outcome: rig.heard.append(("pusher", told(outcome))))
    rig.ask()
    go_on()
    assert rig.heard == [("client", NotFoundError)]
    assert len(rig.waiters) == 1


def test_who_has_gone_before_the_job_was_looked_for_is_told_nothing(rig: WaitersRig) -> None:
    def answer(outcome: Outcome) -> None:
        rig.heard.append(outcome)

    rig.waiters.find("job", answer, lambda _progress: rig.heard.append("on its way"))
    rig.waiters.stop("job", answer)
    go_on()
    assert rig.store.reads == []
    assert rig.heard == []


def test_a_large_result_is_not_read_before_who_asks_has_room_for_it(rig: WaitersRig) -> None:
    rig.begin("job")
    rig.end("job")
    rig.store.large = {"job"}
    rig.ask()
    settle(lambda: rig.heard)
    [(_, stored)] = rig.heard
    assert isinstance(stored, StoredResult)
    assert stored.read() == b"42"
    rig.store._ended.clear()
    with pytest.raises(NotFoundError):
        stored.read()


def test_a_job_that_was_there_and_ends_elsewhere_unremembered_is_uncertain(rig: WaitersRig) -> None:
    rig.begin("job")
    rig.ask()
    go_on()
    rig.remove("job")
    for _ in range(2):
        rig.waiters.poll_others(NOW, alone=False)
        go_on()
    assert rig.heard[1:] == [("client", UncertainError)]


def test_a_job_that_is_gone_while_some_expire_is_waited_for_until_it_is_known_which(rig: WaitersRig) -> None:
    # Given a job that MongoDB has removed with others whose time is over, and has not answered yet
    rig.begin("job")
    rig.ask()
    go_on()
    rig.remove("job")
    # When it is looked for again and again
    with rig.waiters.ending():
        for _ in range(3):
            rig.waiters.poll_others(NOW, alone=False)
            go_on()
        rig.ask("another")
        go_on()
        rig.waiters.expired(["job"])
    assert rig.heard[1:] == [("another", "on its way"), ("client", ExpiredError), ("another", ExpiredError)]


# ------------------------------------------------------------ alone, and with other brokers


def waiting(rig: WaitersRig, count: int) -> None:
    """Let ``count`` clients wait for jobs that are stored, and on which nobody works."""
    ids = [f"job-{number}" for number in range(count)]
    rig.begin(*ids)
    for job_id in ids:
        rig.wait(job_id)
    rig.waiters.stored(ids, [])


def seconds_pass(rig: WaitersRig, count: int, *, alone: bool, since: float = NOW) -> None:
    for number in range(count):
        rig.waiters.poll_others(since + number, alone=alone)
        for _ in range(20):
            go_on()


def test_while_a_broker_is_alone_waiting_costs_next_to_nothing(rig: WaitersRig) -> None:
    waiting(rig, 10_000)
    seconds_pass(rig, 10, alone=True)
    assert sum(map(len, rig.store.reads)) <= 2000
    assert rig.store.since == []


def test_a_broker_alone_still_finds_in_time_what_ended_without_a_word(rig: WaitersRig) -> None:
    waiting(rig, 300)
    rig.end("job-299")
    seconds_pass(rig, 31, alone=True)
    assert rig.heard == [("job-299", b"42")]


def test_with_others_there_few_who_wait_are_looked_up_each_second(rig: WaitersRig) -> None:
    waiting(rig, 1000)
    rig.end("job-999")
    seconds_pass(rig, 1, alone=False)
    assert rig.heard == [("job-999", b"42")]


def test_with_others_there_and_many_who_wait_it_asks_for_what_has_ended(rig: WaitersRig) -> None:
    waiting(rig, 20_000)
    rig.begin("of somebody else")
    rig.end("job-19999", "of somebody else")
    seconds_pass(rig, 1, alone=False)
    assert rig.heard == [("job-19999", b"42")]
    assert sum(map(len, rig.store.reads)) <= 1001
    seconds_pass(rig, 1, alone=False, since=NOW + 1)
    assert rig.store.since == [NOW - 3.0, NOW - 3.0]


def test_what_others_ended_is_looked_for_a_while_after_they_have_gone(rig: WaitersRig) -> None:
    waiting(rig, 1000)
    seconds_pass(rig, 1, alone=False)
    rig.end("job-999")
    seconds_pass(rig, 1, alone=True, since=NOW + 30)
    assert rig.heard == [("job-999", b"42")]


def test_all_who_wait_are_looked_up_when_jobs_may_have_ended_without_a_word(rig: WaitersRig) -> None:
    waiting(rig, 3000)
    rig.remove("job-0", "job-1500", "job-2999")
    rig.waiters.check()
    for _ in range(20):
        go_on()
    seconds_pass(rig, 1, alone=True)
    assert sorted(rig.heard) == [(name, UncertainError) for name in ("job-0", "job-1500", "job-2999")]


# ------------------------------------------------------------ many of a session


class Queues:
    def __init__(self, rig: WaitersRig) -> None:
        self._queue = SimpleNamespace(results=rig.waiters)

    def known(self, name: str) -> Any:
        return self._queue


class Later(list[Callable[[], None]]):
    """Carries out each step at once."""

    def add(self, step: Callable[[], None]) -> None:
        step()


@pytest.fixture
def replies() -> list[tuple[int, Any]]:
    return []


@pytest.fixture
def lookups() -> Lookups:
    return Lookups()


def results_of(
    queues: object, reply: Callable[[int, Any], None], lookups: Lookups, later: object = None
) -> Results:
    """The requests of a session that has no connection."""
    session: Any = SimpleNamespace(
        door=SimpleNamespace(queues=queues, lookups=lookups, now=time.monotonic),
        requests=SimpleNamespace(later=later),
        send_result=reply,
        resume_reading=lambda: None,
    )
    return Results(session)


@pytest.fixture
def results(rig: WaitersRig, lookups: Lookups, replies: list[tuple[int, Any]]) -> Iterator[Results]:
    results = results_of(
        Queues(rig), lambda number, outcome: replies.append((number, told(outcome))), lookups
    )
    yield results
    results.forget()


def test_a_session_has_few_at_once(rig: WaitersRig, results: Results, replies: list[tuple[int, Any]]) -> None:
    rig.begin("job")
    for number in range(MOST_REQUESTS):
        results.ask(number, "mail", "job", 60)
    with pytest.raises(QueueFullError, match="ask again later"):
        results.ask(0, "mail", "job", 60)
    while results.waiting:
        go_on()
    go_on()
    rig.waiters.committed("job", b"42")
    assert replies == [(number, b"42") for number in range(MOST_REQUESTS)]
    results.ask(1, "mail", "job", 60)


def test_sessions_that_ask_thousands_leave_room_in_the_next_look_up_for_another(
    rig: WaitersRig, results: Results, lookups: Lookups, replies: list[tuple[int, Any]]
) -> None:
    # Given sessions with thousands of questions about jobs that nobody knows, and another with one
    queues = Queues(rig)
    of_crowd: list[int] = []
    told_other: list[int] = []

    def session(reply: Callable[[int, Any], None]) -> Results:
        return results_of(queues, reply, lookups)

    crowd = [session(lambda number, _outcome: of_crowd.append(number)) for _ in range(20)]
    other = session(lambda _number, _outcome: told_other.append(len(of_crowd)))
    for number in range(300):
        for at, asker in enumerate(crowd):
            asker.ask(number, "mail", f"unknown-{at}-{number}", 0)
    other.ask(1, "mail", "unknown", 0)
    while len(of_crowd) < 6000:
        go_on()
    # Then it was answered long before most of theirs, and nothing is kept
    assert told_other[0] <= 3 * MOST_LOOKUPS
    assert lookups.sessions == 0
    assert replies == []


def test_who_may_no_longer_push_when_its_job_is_found_hears_no_result(rig: WaitersRig) -> None:
    # Given a principal that may push, and nothing else, and loses that while MongoDB is asked
    principal = Principal("eve", Permissions.read("push"))

    def is_pushed_by(_name: str, _job_id: str) -> bool:
        principal.change(Permissions.read("work"))
        return True

    queues = SimpleNamespace(
        known=lambda _name: SimpleNamespace(
            name="mail", results=rig.waiters, store=SimpleNamespace(is_pushed_by=is_pushed_by)
        )
    )
    heard: list[Any] = []
    results = results_of(queues, lambda _number, outcome: heard.append(outcome), Lookups(), Later())
    # When it asks for its result
    results.ask(1, "mail", "job", 60, Caller(principal))
    # Then it is refused, and waits for nothing
    assert [type(error) for error in heard] == [ForbiddenError]
    assert not len(results)


def test_nothing_is_kept_of_questions_that_were_answered(rig: WaitersRig, results: Results) -> None:
    rig.begin(*(f"job-{number}" for number in range(5000)))
    for number in range(5000):
        results.ask(number, "mail", f"job-{number}", 3600)
        if number % 100 == 99:
            go_on()
            for place in range(number - 99, number + 1):
                rig.waiters.committed(f"job-{place}", b"")
    assert not len(results)


def test_one_that_goes_leaves_none(rig: WaitersRig, results: Results, replies: list[tuple[int, Any]]) -> None:
    rig.begin("job")
    results.ask(1, "mail", "job", 60)
    go_on()
    results.forget()
    assert not len(rig.waiters)
    assert not len(results)
    rig.waiters.committed("job", b"42")
    assert replies == []


@pytest.mark.parametrize(
    ("fault", "others"), [(Refused("too large"), [b"42"]), (ValueError("a mistake"), [UnavailableError])]
)
def test_a_look_up_that_is_refused_is_answered_and_costs_no_other_its_answer(
    rig: WaitersRig, fault: Exception, others: list[Any]
) -> None:
    done = [f"job-{number}" for number in range(20)]
    rig.begin(*done)
    rig.end(*done)
    rig.store.fault = fault
    rig.ask("bad", "refused")
    for job_id in done:
        rig.ask("good", job_id)
    settle(lambda: len(rig.heard) == 21)
    assert [heard for name, heard in rig.heard if name == "good"] == others * 20
    assert [type(fault) if isinstance(fault, Refused) else UnavailableError] == [
        heard for name, heard in rig.heard if name == "bad"
    ]
    assert not len(rig.waiters)


def test_a_job_known_to_be_stored_is_looked_up_again_after_a_look_up_that_failed(rig: WaitersRig) -> None:
    # Given one who pushed it and waits
    rig.waiters.wait("refused", lambda outcome: rig.heard.append(("waits", told(outcome))))
    rig.waiters.stored(["refused"], [])
    rig.store.fault = ValueError("a mistake")
    rig.waiters.poll_others(NOW, alone=False)
    settle(lambda: len(rig.store.reads) == 1)
    rig.store.fault = None
    rig.begin("refused")
    rig.end("refused")
    settle(lambda: rig.waiters.poll_others(NOW, alone=False) or rig.heard)
    assert rig.heard == [("waits", b"42")]


def test_a_job_committed_here_while_it_is_looked_for_elsewhere_answers_its_result(rig: WaitersRig) -> None:
    rig.waiters.wait("job", lambda outcome: rig.heard.append(told(outcome)))
    rig.waiters.stored(["job"], ())
    rig.waiters.poll_others(NOW, alone=False)
    settle(lambda: rig.store.reads)
    assert rig.heard == []  # gone, but for the first time
    rig.waiters.committed("job", b"42")
    assert rig.heard == [b"42"]
