"""Who asks for a job's result by its id: found, not there, ending this moment; and how long who waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.answers import Answers
from broker.job import State
from broker.patience import Patience
from broker.session_results import MOST_ASKED, Results
from broker.store import Found
from fakes import Held, go_on
from sluicemq.errors import NotFound, QueueFull, SluiceError, Uncertain

RUNNING = Found(State.RESERVED, "owner", b"", "")
DONE = Found(State.DONE, "", b"42", "")


class Store:
    """Jobs by id; ``before_answer`` is called when they were read, and may wait."""

    def __init__(self) -> None:
        self.jobs: dict[str, Found] = {}
        self.before_answer: Callable[[], None] = go_on
        self.reads: list[list[str]] = []

    def find(self, ids: list[str]) -> dict[str, Found]:
        self.reads.append(ids)
        found = {each: self.jobs[each] for each in ids if each in self.jobs}
        self.before_answer()
        return found


class House:
    """The answers of one queue over that store, and what an asker hears."""

    def __init__(self) -> None:
        self.store = Store()
        self.held: set[str] = set()
        store: Any = self.store
        self.answers = Answers(store, Patience(), self.held)
        self.heard: list[Any] = []

    def ask(self, name: str = "asker", job_id: str = "job") -> None:
        self.answers.ask(
            job_id,
            lambda outcome: self.heard.append((name, told(outcome))),
            lambda: self.heard.append((name, "on its way")),
        )


def told(outcome: bytes | SluiceError) -> Any:
    return type(outcome) if isinstance(outcome, SluiceError) else outcome


@pytest.fixture
def house() -> House:
    return House()


def test_a_job_that_has_ended_is_answered_without_waiting(house: House) -> None:
    house.store.jobs["job"] = DONE
    house.ask()
    go_on()
    assert house.heard == [("asker", b"42")]
    assert not len(house.answers)


def test_a_job_on_its_way_is_waited_for(house: House) -> None:
    house.store.jobs["job"] = RUNNING
    house.ask()
    go_on()
    house.answers.committed("job", b"42")
    assert house.heard == [("asker", "on its way"), ("asker", b"42")]


def test_many_who_ask_at_once_cost_one_read_and_are_all_told(house: House) -> None:
    house.store.jobs["job"] = RUNNING
    for name in "abc":
        house.ask(name)
    go_on()
    assert house.store.reads == [["job"]]
    assert house.heard == [(name, "on its way") for name in "abc"]


def test_a_job_that_is_not_there_is_not_found(house: House) -> None:
    house.ask()
    go_on()
    assert house.heard == [("asker", NotFound)]
    assert not len(house.answers)


def test_a_job_that_ends_here_while_it_is_looked_for_is_not_taken_for_unknown(house: House) -> None:
    # Given a job that this broker has just removed, before it was told so
    house.held.add("job")
    house.ask()
    go_on()
    assert house.heard == [("asker", "on its way")]
    # When it is told
    house.answers.committed("job", b"42")
    # Then so is the asker
    assert house.heard[1:] == [("asker", b"42")]


def test_a_job_stored_while_another_looks_for_it_in_vain_is_not_taken_for_unknown(house: House) -> None:
    # Given somebody who asks too early, and a look that does not find it
    house.store.before_answer = hold = Held()
    house.ask("early")
    go_on()
    # When it is stored, and asked for by who knows that
    house.store.jobs["job"] = RUNNING
    house.ask("later")
    house.store.before_answer = go_on
    hold.set()
    go_on()
    go_on()
    # Then only the first is told that there is none
    assert house.heard == [("early", NotFound), ("later", "on its way")]


def test_who_pushed_the_job_is_not_told_that_it_is_unknown(house: House) -> None:
    # Given a REQ client whose job is on its way into MongoDB
    house.answers.wait("job", lambda outcome: house.heard.append(("pusher", told(outcome))))
    house.ask()
    go_on()
    assert house.heard == [("asker", NotFound)]
    assert len(house.answers) == 1


def test_who_has_gone_before_the_job_was_looked_for_is_told_nothing(house: House) -> None:
    def answer(outcome: bytes | SluiceError) -> None:
        house.heard.append(outcome)

    house.answers.ask("job", answer, lambda: house.heard.append("on its way"))
    house.answers.forget("job", answer)
    go_on()
    assert house.store.reads == [["job"]]
    assert house.heard == []


def test_a_job_that_was_there_and_ends_elsewhere_unremembered_is_uncertain(house: House) -> None:
    house.store.jobs["job"] = RUNNING
    house.ask()
    go_on()
    del house.store.jobs["job"]
    for _ in range(2):
        house.answers.look_up_elsewhere()
        go_on()
    assert house.heard[1:] == [("asker", Uncertain)]


# ------------------------------------------------------------ many of a session


class Queues:
    def __init__(self, house: House) -> None:
        self.answers = house.answers

    def known(self, name: str) -> Any:
        return self


@pytest.fixture
def replies() -> list[tuple[int, Any]]:
    return []


@pytest.fixture
def results(house: House, replies: list[tuple[int, Any]]) -> Iterator[Results]:
    queues: Any = Queues(house)
    nobody: Any = None
    results = Results(queues, nobody, lambda number, outcome: replies.append((number, told(outcome))))
    yield results
    results.forget()


def test_a_session_has_so_many_questions_at_once_and_no_more(
    house: House, results: Results, replies: list[tuple[int, Any]]
) -> None:
    house.store.jobs["job"] = RUNNING
    for number in range(MOST_ASKED):
        results.ask(number, "mail", "job", 60)
    with pytest.raises(QueueFull, match="ask again later"):
        results.ask(0, "mail", "job", 60)
    go_on()
    house.answers.committed("job", b"42")
    assert replies == [(number, b"42") for number in range(MOST_ASKED)]
    results.ask(1, "mail", "job", 60)


def test_the_deadlines_of_questions_that_were_answered_are_not_kept(house: House, results: Results) -> None:
    for number in range(5000):
        job_id = f"job-{number}"
        house.store.jobs[job_id] = RUNNING
        results.ask(number, "mail", job_id, 3600)
        if number % 100 == 99:
            go_on()
            for each in range(number - 99, number + 1):
                house.answers.committed(f"job-{each}", b"")
    assert len(results._deadlines) < 1500


def test_a_session_that_goes_leaves_no_question_behind(
    house: House, results: Results, replies: list[tuple[int, Any]]
) -> None:
    house.store.jobs["job"] = RUNNING
    results.ask(1, "mail", "job", 60)
    go_on()
    results.forget()
    assert not len(house.answers)
    assert results._timer is None
    house.answers.committed("job", b"42")
    assert replies == []
