"""What people order for the jobs of a queue: cancel, promote, change, redrive, purge, drop."""

from typing import Any

import pytest
from pymongo.database import Database
from pymongo.errors import AutoReconnect, OperationFailure

from sluicemq.protocol.errors import BadHeadersError, DifferentStoreError, NotFoundError, UnavailableError
from sluicemq_broker.store import (
    DeadLetters,
    Inspector,
    QueueStore,
    Redriven,
    Redrives,
    Removals,
    RolledBack,
    Unclear,
    collection,
    date,
    seconds,
)
from sluicemq_broker.store.admin import changes as store_changes
from sluicemq_broker.store.admin import redrives
from sluicemq_broker.store.halving import batches
from sluicemq_broker.store.jobs.transactions import Overtaken
from support.between import after, before
from support.jobs import NOW, ChangesAtOnce, a_job, everything, finished, ids, some_jobs, stored

ME = "me"
LATER = NOW + 100


@pytest.fixture
def other(documents: Database[dict[str, Any]]) -> QueueStore:
    other = QueueStore(documents, collection("other"))
    other.prepare()
    return other


@pytest.fixture
def crowd(store: QueueStore) -> QueueStore:
    """3 ready, 2 scheduled, 4 reserved, 1 done, 5 dead."""
    store.push(some_jobs(3) + some_jobs(2, eligible_at=NOW + 60) + some_jobs(4, owner=ME), NOW)
    [done] = some_jobs(1, owner=ME, remember=60.0)
    store.push([done], NOW)
    store.complete([finished(done, b"result")], NOW)
    dead_letters(store, 5)
    return store


def dead_letters(
    store: QueueStore, count: int = 1, *, reason: str = "bad", at: float = NOW, **settings: Any
) -> list[str]:
    """Make so many jobs dead letters; their ids."""
    jobs = some_jobs(count, owner=ME, **settings)
    store.push(jobs, NOW)
    store.roll_back([RolledBack(job, reason, "worker", dead=True) for job in jobs], at)
    return ids(jobs)


def bury_unreadable(store: QueueStore, job_id: str, **fields: Any) -> None:
    letter = {"_id": job_id, "payload": b"12345", "raw_headers": b"", "reason": "unreadable", "size": 5}
    store.keep_unreadable([{**letter, **fields}], NOW)


def states(store: QueueStore) -> dict[str, str]:
    return {job_id: row["state"] for job_id, row in everything(store).items()}


# ------------------------------------------------------------------------ cancel


def test_a_job_that_waits_can_be_cancelled_once(store: QueueStore, changes: ChangesAtOnce) -> None:
    store.push([a_job("a"), a_job("later", eligible_at=NOW + 60)], NOW)
    changes.cancel("mail", "a", NOW)
    changes.cancel("mail", "later", NOW)
    assert everything(store) == {}
    with pytest.raises(NotFoundError, match="'a' is not there in queue 'mail'"):
        changes.cancel("mail", "a", NOW)


def test_a_job_that_a_worker_has_can_not_be_cancelled(store: QueueStore, changes: ChangesAtOnce) -> None:
    store.push([a_job("a", owner=ME)], NOW)
    with pytest.raises(NotFoundError, match="'a' is reserved"):
        changes.cancel("mail", "a", NOW)
    assert store.reservations(ME) == {("a", 0)}


# --------------------------------------------------------------- promote, change


def test_a_job_that_came_back_this_moment_is_not_said_to_wait_and_not_to_wait(store: QueueStore) -> None:
    """It was staged when it was to be cancelled, and is ready when it is asked why that was not done."""
    store.push([a_job("back")], NOW)
    problem = store_changes.not_waiting(store.jobs, "test", "back", "cancelled", NOW)
    assert "a worker, or a broker for one, had it. Try again" in str(problem)


def test_a_promoted_job_is_due_behind_those_due_before(store: QueueStore, changes: ChangesAtOnce) -> None:
    store.push([a_job("later", eligible_at=NOW + 3600), a_job("first"), a_job("second")], NOW)
    changes.promote("mail", "later", NOW + 1)
    changes.promote("mail", "second", NOW + 1)
    # Then one that was due keeps its place
    assert ids(store.reserve(3, NOW + 1, ME).jobs) == ["first", "second", "later"]


def test_a_changed_priority_moves_it_and_a_delay_too(store: QueueStore, changes: ChangesAtOnce) -> None:
    store.push([a_job("a"), a_job("b"), a_job("c")], NOW)
    changes.change("mail", "c", NOW, priority=9)
    changes.change("mail", "a", NOW, due=NOW + 60)
    assert ids(store.reserve(3, NOW, ME).jobs) == ["c", "b"]
    assert ids(store.reserve(3, NOW + 60, ME).jobs) == ["a"]


def test_a_delay_beyond_the_ttl_is_refused(store: QueueStore, changes: ChangesAtOnce) -> None:
    store.push([a_job("a", expires_at=NOW + 60)], NOW)
    there = everything(store)
    with pytest.raises(
        BadHeadersError, match=r"job 'a' expires in 60\.000 s, and would not be due before that"
    ):
        changes.change("mail", "a", NOW, priority=7, due=NOW + 60)
    assert everything(store) == there


@pytest.mark.parametrize(
    ("state", "settings"),
    [("reserved", {"owner": "other"}), ("expired", {"expires_at": NOW - 1}), ("not there", None)],
)
def test_what_does_not_wait_is_neither_promoted_nor_changed_and_it_is_said_what_it_is(
    store: QueueStore, changes: ChangesAtOnce, state: str, settings: dict[str, Any] | None
) -> None:
    if settings is not None:
        store.push([a_job("a", eligible_at=NOW - 9, **settings)], NOW)
    before = everything(store)
    # When, then
    with pytest.raises(
        NotFoundError, match=f"'a' is {state} in queue 'mail': only a job that waits can be promoted"
    ):
        changes.promote("mail", "a", NOW)
    with pytest.raises(
        NotFoundError, match=f"'a' is {state} in queue 'mail': only a job that waits can be changed"
    ):
        changes.change("mail", "a", NOW, priority=1, due=NOW)
    assert everything(store) == before


# ----------------------------------------------------------------------- redrive


def test_a_redriven_job_begins_anew_and_keeps_its_history(store: QueueStore, changes: ChangesAtOnce) -> None:
    # Given a dead letter that is removed one day, had 60 s to live, and has ten failures behind it
    [job] = some_jobs(1, owner=ME, expires_at=NOW + 60, headers={"k": "v"}, priority=4, max_attempts=20)
    store.push([job], NOW)
    for _ in range(9):
        store.roll_back([RolledBack(job, "again", "w", isolated=True)], NOW)
        [job] = store.reserve(1, NOW, ME).jobs
    store.roll_back([RolledBack(job, "$bad", "w", dead=True)], NOW + 1)
    store.jobs.update_one({}, {"$set": {"remove_at": date(NOW + 9e6), "losses": 2}})
    before = stored(store, job.id)
    redriven = changes.redrive("mail", DeadLetters(), LATER)
    assert (redriven.moved, redriven.left, redriven.refused) == (1, 0, {})
    after = stored(store, job.id)
    assert (after["state"], after["attempts"]) == ("ready", 0)
    assert seconds(after["eligible_at"]) == LATER
    assert seconds(after["expires_at"]) == LATER + 60
    assert not after.keys() & {"losses", "suspect", "ended_at", "remove_at"}
    kept = ("payload", "headers", "priority", "max_attempts", "seq", "created_at")
    assert [after[key] for key in kept] == [before[key] for key in kept]
    *history, entry = after["errors"]
    assert history == before["errors"][1:]
    assert entry == {"at": after["eligible_at"], "attempt": 10, "reason": "redriven", "worker": ""}
    [again] = store.reserve(1, LATER, ME).jobs
    assert (again.attempts, again.losses, again.isolated) == (1, 0, False)


def test_redriven_jobs_follow_what_is_due_in_old_order(store: QueueStore, changes: ChangesAtOnce) -> None:
    first, second = dead_letters(store, 2)
    store.push([a_job("waits")], NOW)
    changes.redrive("mail", DeadLetters(), LATER)
    assert ids(store.reserve(3, LATER, ME).jobs) == ["waits", first, second]


def test_a_redrive_takes_given_ids_and_names_the_others(store: QueueStore, changes: ChangesAtOnce) -> None:
    first, second, _third = dead_letters(store, 3)
    store.push([a_job("waits")], NOW)
    redriven = changes.redrive("mail", DeadLetters((first, second, "waits", "nosuch")), LATER)
    assert (redriven.moved, redriven.left) == (2, 0)
    assert {job_id: str(why).partition(" in ")[0] for job_id, why in redriven.refused.items()} == {
        "waits": "job 'waits' is ready",
        "nosuch": "job 'nosuch' is not there",
    }
    assert list(states(store).values()).count("dead") == 1


def test_a_redrive_by_reason_looks_at_the_last_failure(store: QueueStore, changes: ChangesAtOnce) -> None:
    [wanted] = dead_letters(store, reason="no .*$ on device (5)")
    dead_letters(store, reason="no space on device (5)")
    dead_letters(store, reason="$errors.reason")
    before = a_job("before", owner=ME)
    store.push([before], NOW)
    store.roll_back([RolledBack(before, "no .*$ on device", "w")], NOW)
    [again] = store.reserve(1, NOW, ME).jobs
    store.roll_back([RolledBack(again, "something else", "w", dead=True)], NOW)
    redriven = changes.redrive("mail", DeadLetters(reason="o .*$ on device"), LATER)
    assert (redriven.moved, redriven.left) == (1, 0)
    assert [job_id for job_id, state in states(store).items() if state == "ready"] == [wanted]
    assert changes.redrive("mail", DeadLetters(reason="$errors.reason"), LATER).moved == 1


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
def test_a_redrive_with_a_limit_takes_the_oldest_in_batches(
    store: QueueStore, changes: ChangesAtOnce, other: QueueStore, *, elsewhere: bool
) -> None:
    young = dead_letters(store, 5, at=NOW + 50)
    old = dead_letters(store, 5, at=NOW + 10)
    redriven = changes.redrive("mail", DeadLetters(limit=7), LATER, other if elsewhere else None, size=3)
    assert (redriven.moved, redriven.left) == (7, 3)
    assert {job_id for job_id, state in states(store).items() if state == "dead"} < set(young)
    moved = states(other if elsewhere else store)
    assert all(moved[job_id] == "ready" for job_id in old)


@pytest.mark.parametrize("verb", ["redriving", "discarding"])
def test_rare_reasons_need_windows(store: QueueStore, documents: Database[dict[str, Any]], verb: str) -> None:
    # Given one among many
    dead_letters(store, 40, at=NOW + 10)
    [rare] = dead_letters(store, 1, at=NOW + 20)
    store.jobs.update_one({"_id": rare}, {"$set": {"errors": [{"reason": "a rare one"}]}})
    dead_letters(store, 40, at=NOW + 30)
    looked: list[int] = []
    letters = DeadLetters(reason="rare", limit=1)
    if verb == "redriving":
        redriven = Redriven()
        order = Redrives(documents).redriving(
            "mail", letters, LATER, redriven, lambda: 10, looked=looked.append
        )
    else:
        order = Removals(documents).discarding("mail", letters, LATER, lambda: 10, looked.append)
    # Then each window is a statement of its own; what is left of a redrive is counted in windows, too
    done = list(order)
    if verb == "redriving":
        assert (done, looked) == ([0] * 4 + [1] + [0] * 4, [10] * 8 + [1])
        assert redriven.left == 0
    else:
        assert (done, looked) == ([0] * 4 + [1], [10] * 5)
    assert states(store).get(rare) == ("ready" if verb == "redriving" else None)


def test_large_letters_go_in_statements_of_some_mib() -> None:
    sizes = [(name, mib << 20) for name, mib in (("a", 3), ("b", 4), ("c", 3), ("d", 16), ("e", 1), ("f", 7))]
    assert list(batches([sizes], lambda: 100)) == [["a", "b"], ["c"], ["d"], ["e", "f"]]


def test_a_letter_that_a_worker_has_before_its_redrive_is_written_stays_with_it(
    store: QueueStore, changes: ChangesAtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given somebody else's redrive of one of them, and a worker that takes it, after it was chosen
    first, second = dead_letters(store, 2)

    def another_redrives() -> None:
        changes.redrive("mail", DeadLetters((first,)), LATER)
        store.reserve(1, LATER, ME)

    before(monkeypatch, redrives.InPlace, "run", another_redrives)
    redriven = changes.redrive("mail", DeadLetters(), LATER)
    assert redriven.moved == 1
    assert states(store) == {first: "reserved", second: "ready"}
    assert stored(store, first)["attempts"] == 1


def test_what_dies_later_than_the_order_is_left(store: QueueStore, changes: ChangesAtOnce) -> None:
    dead_letters(store, at=LATER + 1)
    redriven = changes.redrive("mail", DeadLetters(), LATER)
    assert (redriven.moved, redriven.left) == (0, 0)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
def test_a_letter_that_never_was_a_whole_job_is_left_and_named(
    store: QueueStore, changes: ChangesAtOnce, other: QueueStore, *, elsewhere: bool
) -> None:
    bury_unreadable(store, "cut", size=6)
    bury_unreadable(store, "headers", raw_headers=b"{", size=5)
    bury_unreadable(store, "whole")
    redriven = changes.redrive("mail", DeadLetters(), LATER, other if elsewhere else None)
    assert (redriven.moved, redriven.left) == (1, 2)
    assert redriven.refused.keys() == {"cut", "headers"}
    assert "never was a job" in str(redriven.refused["cut"])
    assert "size" not in {**stored(store, "whole"), **stored(other, "whole")}
    assert states(store).get("cut") == states(store).get("headers") == "dead"


# ------------------------------------------------------------- into another queue


def test_a_redrive_moves_jobs_whole(store: QueueStore, changes: ChangesAtOnce, other: QueueStore) -> None:
    [job_id] = dead_letters(store, headers={"k": "v"}, payload=b"p" * 1000, priority=7)
    redriven = changes.redrive("mail", DeadLetters(), LATER, other)
    assert (redriven.moved, redriven.left) == (1, 0)
    assert everything(store) == {}
    moved = stored(other, job_id)
    assert (moved["state"], moved["attempts"], moved["payload"]) == ("ready", 0, b"p" * 1000)
    assert [row["reason"] for row in moved["errors"]] == ["bad", "redriven from mail"]
    assert ids(other.reserve(1, LATER, ME).jobs) == [job_id]


def test_a_job_whose_id_is_in_the_other_queue_is_refused_by_name_and_stays(
    store: QueueStore, changes: ChangesAtOnce, other: QueueStore
) -> None:
    first, second, third = dead_letters(store, 3)
    other.push([a_job(second, b"its own")], NOW)
    redriven = changes.redrive("mail", DeadLetters(), LATER, other)
    assert (redriven.moved, redriven.left) == (2, 1)
    assert str(redriven.refused[second]) == f"queue 'other' has a job {second!r} already"
    assert states(store) == {second: "dead"}
    assert stored(other, second)["payload"] == b"its own"
    assert states(other).keys() == {first, second, third}


def test_of_many_that_are_refused_a_hundred_are_named_and_all_are_counted(
    store: QueueStore, changes: ChangesAtOnce, other: QueueStore
) -> None:
    other.push([a_job(letter, b"its own") for letter in dead_letters(store, 150)], NOW)
    redriven = changes.redrive("mail", DeadLetters(), LATER, other)
    assert (redriven.moved, redriven.left, len(redriven.refused)) == (0, 150, 100)


def test_an_id_that_comes_up_in_the_other_queue_during_the_move_costs_the_others_nothing(
    store: QueueStore, changes: ChangesAtOnce, other: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = dead_letters(store, 2)
    pushed = [a_job(second, b"its own")]
    after(monkeypatch, redrives.IntoQueue, "_movable", lambda: other.push(pushed, NOW))
    redriven = changes.redrive("mail", DeadLetters(), LATER, other)
    assert (redriven.moved, redriven.left, list(redriven.refused)) == (1, 1, [second])
    assert states(store) == {second: "dead"}
    assert states(other) == {first: "ready", second: "ready"}


@pytest.mark.parametrize("state", ["gone", "ready", "reserved"])
def test_a_letter_that_somebody_else_takes_during_the_move_is_left_to_them(
    store: QueueStore, changes: ChangesAtOnce, other: QueueStore, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    first, second = dead_letters(store, 2)

    def somebody_takes_it() -> None:
        if state == "gone":
            store.jobs.delete_one({"_id": second})
        else:
            store.jobs.update_one({"_id": second}, {"$set": {"state": state}})

    after(monkeypatch, redrives.IntoQueue, "_movable", somebody_takes_it)
    redriven = changes.redrive("mail", DeadLetters(), LATER, other)
    assert (redriven.moved, redriven.left) == (1, 0)
    assert states(store) == ({} if state == "gone" else {second: state})
    assert states(other) == {first: "ready"}


@pytest.mark.parametrize("step", ["insert_many", "delete_many"])
def test_a_move_that_breaks_off_leaves_the_jobs_where_they_were(
    store: QueueStore, changes: ChangesAtOnce, other: QueueStore, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    dead_letters(store, 3)
    before = everything(store)
    broken = type(store.jobs)
    monkeypatch.setattr(broken, step, raising(AutoReconnect("gone")))
    with pytest.raises(Unclear):
        changes.redrive("mail", DeadLetters(), LATER, other)
    # Then, and it can be repeated
    monkeypatch.undo()
    assert (everything(store), everything(other)) == (before, {})
    assert changes.redrive("mail", DeadLetters(), LATER, other).moved == 3


def test_without_transactions_nothing_is_moved_and_it_is_said_why(
    store: QueueStore, changes: ChangesAtOnce, other: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_letters(store)
    standalone = OperationFailure("Transaction numbers are only allowed on a replica set member", 20)
    monkeypatch.setattr(redrives.IntoQueue, "_apply", raising(standalone))
    with pytest.raises(DifferentStoreError, match="stand-alone"):
        changes.redrive("mail", DeadLetters(), LATER, other)


def test_a_move_that_is_always_overtaken_is_given_up(
    store: QueueStore, changes: ChangesAtOnce, other: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_letters(store)
    monkeypatch.setattr(redrives.IntoQueue, "_apply", raising(Overtaken()))
    with pytest.raises(UnavailableError, match="try again"):
        changes.redrive("mail", DeadLetters(), LATER, other)


def raising(error: Exception) -> Any:
    def fail(*_arguments: Any, **_options: Any) -> None:
        raise error

    return fail


# ------------------------------------------------------------------- purge, drop


@pytest.mark.parametrize(("state", "count"), [("ready", 3), ("scheduled", 2), ("done", 1), ("dead", 5)])
def test_a_purge_removes_all_jobs_of_one_state_and_no_other(
    crowd: QueueStore, changes: ChangesAtOnce, inspector: Inspector, state: str, count: int
) -> None:
    before = inspector.counts("mail", NOW)
    pages = list(changes.purging("mail", state, NOW, lambda: 2))
    assert (sum(pages), max(pages)) == (count, min(count, 2))
    oldest = None if state == "ready" else before["oldest"]
    assert inspector.counts("mail", NOW) == {**before, state: 0, "oldest": oldest}


def test_a_job_claimed_during_a_purge_is_left_with_its_worker(
    store: QueueStore, changes: ChangesAtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.push([a_job("a"), a_job("b")], NOW)
    claimed = {"$set": {"state": "reserved", "owner": ME}}
    before(monkeypatch, Removals, "_remove", lambda: store.jobs.update_one({"_id": "a"}, claimed))
    removed = changes.purge("mail", "ready", NOW)
    assert removed == 1
    assert everything(store).keys() == {"a"}


def test_a_dropped_queue_is_gone(crowd: QueueStore, changes: ChangesAtOnce, inspector: Inspector) -> None:
    assert changes.drop("mail", NOW) == 15
    assert "mail" not in inspector.names()


def test_a_late_cancel_spares_a_later_job_of_its_id(store: QueueStore, changes: ChangesAtOnce) -> None:
    long_ago = NOW - 1000  # when the order was given
    store.push([a_job("again")], NOW)
    with pytest.raises(NotFoundError):
        changes.cancel("mail", "again", long_ago)
    assert states(store) == {"again": "ready"}
