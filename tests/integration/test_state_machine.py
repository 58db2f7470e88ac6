"""A job's life as ``State`` draws it: every edge is walked, and every verb from elsewhere changes nothing."""

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from pymongo.database import Database

from sluicemq.protocol.errors import BadHeadersError, NotFoundError
from sluicemq_broker.job import Job, State
from sluicemq_broker.store import DeadLetters, QueueDefaults, QueueStore, RolledBack, collection, date
from support.jobs import NOW, ChangesAtOnce, a_job, everything, finished
from support.waiting import wait_until

ME, OTHER = "me", "other"
LOSSES = 3


class Life:
    """One job under test, and the store that holds it; ``job`` is what its holder remembers of it."""

    def __init__(self, documents: Database[dict[str, Any]]) -> None:
        self.store = QueueStore(documents, collection("mail"))
        self.changes = ChangesAtOnce(documents)
        self.other = QueueStore(documents, collection("other"))
        self.where_they_die = QueueStore(documents, collection("mail"), QueueDefaults(on_expiry="dead"))
        self.job = a_job("a", owner=ME, remember=60.0)

    def line_up(self, job: Job) -> Job:
        """It has a place, if it has a group."""
        if job.group is not None:
            job.line_up(self.store.groups.places(1))
        return job

    def document(self) -> dict[str, Any]:
        return everything(self.store).get("a", {})

    def state(self) -> str:
        return str(self.document().get("state", "gone"))


@pytest.fixture(scope="module")
def prepared(own_database: Database[dict[str, Any]]) -> None:
    """Both queues with their indexes, once for all of the tests here."""
    life = Life(own_database)
    life.store.prepare()
    life.other.prepare()


@pytest.fixture
def life(documents: Database[dict[str, Any]], prepared: None) -> Life:
    return Life(documents)


# ------------------------------------------------------------------------ states


def push(life: Life, *, owner: str = "", **settings: Any) -> Job:
    job = life.line_up(a_job("a", owner=owner, remember=60.0, **settings))
    life.store.push([job], NOW)
    return job


def spent(life: Life) -> None:
    job = a_job("a", max_attempts=1)
    job.attempts = 1
    life.store.push([job], NOW)


def reserved(life: Life) -> None:
    life.job = push(life, owner=ME)


def reserved_for_the_last_time(life: Life) -> None:
    reserved(life)
    for _ in range(LOSSES - 1):
        life.store.reclaim(ME, LOSSES, NOW)
        life.store.reserve(1, NOW, ME)


def done(life: Life) -> None:
    job = push(life, owner=OTHER)
    life.store.complete([finished(job, b"result")], NOW)


def popped(life: Life) -> None:
    reserved(life)
    life.store.complete([finished(life.job)], NOW)


def dead(life: Life) -> None:
    job = push(life, owner=OTHER)
    life.store.roll_back([RolledBack(job, "bad", "worker", dead=True)], NOW)


def head(life: Life) -> None:
    push(life, group="g")
    turn(life)


def head_reserved(life: Life, owner: str = ME) -> None:
    head(life)
    (life.job,) = life.store.reserve(1, NOW, owner).jobs


def head_popped(life: Life) -> None:
    head_reserved(life)
    life.store.complete([finished(life.job)], NOW)


def head_dead(life: Life) -> None:
    head_reserved(life, OTHER)
    life.store.roll_back([RolledBack(life.job, "bad", "worker", dead=True)], NOW)


def turn(life: Life) -> None:
    life.store.groups.promote(["g"], NOW)


#: How a job gets into each state that the store tells apart; ``gone``: it is not there.
STATES: dict[str, Callable[[Life], object]] = {
    "gone": lambda _life: None,
    "ready": push,
    "ready, not due": lambda life: push(life, eligible_at=NOW + 60),
    "ready, expired": lambda life: push(life, expires_at=NOW - 1),
    "ready, no attempt left": spent,
    "reserved": reserved,
    "reserved, no loss left": reserved_for_the_last_time,
    "reserved, by another": lambda life: push(life, owner=OTHER),
    "done": done,
    "done, popped by me": popped,
    "dead": dead,
    "waiting": lambda life: push(life, group="g"),
    "waiting, not due": lambda life: push(life, group="g", eligible_at=NOW + 60),
    "waiting, expired": lambda life: push(life, group="g", expires_at=NOW - 1),
    "first": head,
    "first, reserved": head_reserved,
    "first, done, popped by me": head_popped,
    "first, dead": head_dead,
}


# ------------------------------------------------------------------------- verbs


def cancel(life: Life) -> None:
    with suppress(NotFoundError):
        life.changes.cancel("mail", "a", NOW)


def promote(life: Life) -> None:
    with suppress(NotFoundError):
        life.changes.promote("mail", "a", NOW)


def change(life: Life, **fields: Any) -> None:
    with suppress(NotFoundError, BadHeadersError):  # of one whose time is over the delay ends too late
        life.changes.change("mail", "a", NOW, **fields)


def roll_back(life: Life, **settings: Any) -> None:
    life.store.roll_back([RolledBack(life.job, "why", "worker", **settings)], NOW)


#: Every verb, as the holder ``me`` or a sweep of ``me`` says it.
VERBS: dict[str, Callable[[Life], object]] = {
    "push": push,
    "push, inserted reserved": lambda life: push(life, owner=ME),
    "keep_unreadable": lambda life: life.store.keep_unreadable(
        [{"_id": "a", "payload": b"", "raw_headers": b"", "reason": "unreadable", "size": 1}], NOW
    ),
    "push, with a group": lambda life: push(life, group="g"),
    "turn": turn,
    "reserve": lambda life: life.store.reserve(10, NOW, ME),
    "commit": lambda life: life.store.commit([life.job]),
    "finish": lambda life: life.store.complete([finished(life.job, b"mine")], NOW),
    "rollback": roll_back,
    "rollback with delay": lambda life: roll_back(life, due=NOW + 9, isolated=True),
    "reject": lambda life: roll_back(life, dead=True),
    "release": lambda life: life.store.release([a_job("a", owner=ME)]),
    "reclaim": lambda life: life.store.reclaim(ME, LOSSES, NOW),
    "undo pop": lambda life: life.store.undo_pop([life.job]),
    "expire": lambda life: life.store.expire(NOW),
    "expire, to the dead letters": lambda life: life.where_they_die.expire(NOW),
    "cancel": cancel,
    "promote": promote,
    "change of the priority": lambda life: change(life, priority=7),
    "change of the delay": lambda life: change(life, due=NOW + 5),
    "redrive": lambda life: life.changes.redrive("mail", DeadLetters(), NOW),
    "redrive by id": lambda life: life.changes.redrive("mail", DeadLetters(("a",)), NOW),
    "redrive elsewhere": lambda life: life.changes.redrive("mail", DeadLetters(), NOW, life.other),
    "purge ready": lambda life: life.changes.purge("mail", "ready", NOW),
    "purge scheduled": lambda life: life.changes.purge("mail", "scheduled", NOW),
    "purge waiting": lambda life: life.changes.purge("mail", "waiting", NOW),
    "purge done": lambda life: life.changes.purge("mail", "done", NOW),
    "purge dead": lambda life: life.changes.purge("mail", "dead", NOW),
}

#: (from, verb): to. What is not here changes nothing.
EDGES: dict[tuple[str, str], str] = {
    ("gone", "push"): "ready",
    ("gone", "push, inserted reserved"): "reserved",
    ("gone", "keep_unreadable"): "dead",
    ("ready", "reserve"): "reserved",
    ("ready", "cancel"): "gone",
    ("ready", "purge ready"): "gone",
    ("ready, not due", "cancel"): "gone",
    ("ready, not due", "purge scheduled"): "gone",
    ("ready, expired", "expire"): "gone",
    ("ready, expired", "expire, to the dead letters"): "dead",
    ("ready, expired", "cancel"): "gone",
    ("ready, expired", "purge ready"): "gone",
    ("ready, no attempt left", "reserve"): "dead",
    ("ready, no attempt left", "cancel"): "gone",
    ("ready, no attempt left", "purge ready"): "gone",
    ("reserved", "commit"): "gone",
    ("reserved", "finish"): "done",
    ("reserved", "rollback"): "ready",
    ("reserved", "rollback with delay"): "ready",
    ("reserved", "reject"): "dead",
    ("reserved", "release"): "ready",
    ("reserved", "reclaim"): "ready",
    ("reserved, no loss left", "commit"): "gone",
    ("reserved, no loss left", "finish"): "done",
    ("reserved, no loss left", "rollback"): "ready",
    ("reserved, no loss left", "rollback with delay"): "ready",
    ("reserved, no loss left", "reject"): "dead",
    ("reserved, no loss left", "release"): "ready",
    ("reserved, no loss left", "reclaim"): "dead",
    ("ready", "change of the priority"): "ready",
    ("ready", "change of the delay"): "ready",
    ("ready, not due", "promote"): "ready",
    ("ready, not due", "change of the priority"): "ready",
    ("ready, not due", "change of the delay"): "ready",
    ("ready, no attempt left", "change of the priority"): "ready",
    ("ready, no attempt left", "change of the delay"): "ready",
    ("dead", "redrive"): "ready",
    ("dead", "redrive by id"): "ready",
    ("dead", "redrive elsewhere"): "gone",
    ("done", "purge done"): "gone",
    ("done, popped by me", "undo pop"): "ready",
    ("done, popped by me", "purge done"): "gone",
    ("dead", "purge dead"): "gone",
    ("gone", "push, with a group"): "waiting",
    ("waiting", "turn"): "ready",
    ("waiting", "cancel"): "gone",
    ("waiting", "change of the priority"): "waiting",
    ("waiting", "change of the delay"): "waiting",
    ("waiting", "purge waiting"): "gone",
    ("waiting, not due", "turn"): "ready",
    ("waiting, not due", "cancel"): "gone",
    ("waiting, not due", "promote"): "waiting",
    ("waiting, not due", "change of the priority"): "waiting",
    ("waiting, not due", "change of the delay"): "waiting",
    ("waiting, not due", "purge waiting"): "gone",
    ("waiting, expired", "expire"): "gone",
    ("waiting, expired", "expire, to the dead letters"): "dead",
    ("waiting, expired", "cancel"): "gone",
    ("waiting, expired", "purge waiting"): "gone",
    ("first", "reserve"): "reserved",
    ("first", "cancel"): "gone",
    ("first", "change of the priority"): "ready",
    ("first", "change of the delay"): "ready",
    ("first", "purge ready"): "gone",
    ("first, reserved", "commit"): "gone",
    ("first, reserved", "finish"): "done",
    ("first, reserved", "rollback"): "ready",
    ("first, reserved", "rollback with delay"): "ready",
    ("first, reserved", "reject"): "dead",
    ("first, reserved", "release"): "ready",
    ("first, reserved", "reclaim"): "ready",
    ("first, done, popped by me", "undo pop"): "waiting",
    ("first, done, popped by me", "purge done"): "gone",
    ("first, dead", "redrive"): "waiting",
    ("first, dead", "redrive by id"): "waiting",
    ("first, dead", "redrive elsewhere"): "gone",
    ("first, dead", "purge dead"): "gone",
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", STATES)
def test_a_verb_moves_a_job_along_its_edge_alone(life: Life, state: str, verb: str) -> None:
    STATES[state](life)
    before = life.document()
    VERBS[verb](life)
    if (state, verb) in EDGES:
        assert life.document() != before
        assert life.state() == EDGES[state, verb]
        assert ("owner" in life.document()) == (life.state() == "reserved")
        assert ("wait" in life.document()) == (life.state() == "waiting")
        in_turn = "group" in life.document() and life.state() in ("ready", "reserved")
        assert ("head" in life.document()) == in_turn
    else:
        assert life.document() == before


DEATHS: dict[str, Callable[[Life], object]] = {
    "rejected": lambda life: life.where_they_die.roll_back(
        [RolledBack(push(life, owner=ME), "bad", "w", dead=True)], NOW
    ),
    "no attempt left": lambda life: (spent(life), life.where_they_die.reserve(1, NOW, ME)),
    "lost too often": lambda life: (
        reserved_for_the_last_time(life), life.where_they_die.reclaim(ME, LOSSES, NOW)
    ),
    "expired": lambda life: (push(life, expires_at=NOW - 1), life.where_they_die.expire(NOW)),
    "unreadable": lambda life: life.where_they_die.keep_unreadable(
        [{"_id": "a", "payload": b"", "raw_headers": b"", "reason": "unreadable", "size": 1}], NOW
    ),
}  # fmt: skip


@pytest.mark.parametrize("death", DEATHS)
def test_every_way_to_die_notes_why_and_when(life: Life, death: str) -> None:
    DEATHS[death](life)
    letter = life.document()
    assert letter["state"] == "dead"
    assert letter["ended_at"] == date(NOW).replace(tzinfo=None)
    assert "remove_at" not in letter  # a sweep removes it, and counts that
    entry = letter["errors"][-1]
    assert entry.keys() == {"at", "attempt", "reason", "worker"}
    assert (entry["at"], entry["attempt"]) == (letter["ended_at"], letter["attempts"])
    assert entry["reason"]


@pytest.mark.full  # MongoDB looks for what it has to remove once a minute
def test_a_done_job_is_gone_when_its_time_to_be_remembered_is_over(life: Life, store: QueueStore) -> None:
    reserved(life)
    long_ago = 1_000_000_000.0
    store.complete([finished(life.job, b"result")], long_ago)
    wait_until(lambda: life.state() == "gone", what="the removal of a job whose remove_at is over")


def test_the_drawing_names_every_state_and_every_verb_that_moves_a_job() -> None:
    drawing = State.__doc__ or ""
    words = set(re.findall(r"\w+", drawing))
    verbs = {re.split(r", | ", verb)[0] for _, verb in EDGES} - {"finish", "keep_unreadable"}
    assert {state.value for state in State} <= words
    assert verbs <= words
    assert {"kept", "remembered", "remove_at", "unreadable", "popped"} <= words
