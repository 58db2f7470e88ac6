"""What is pushed is stored once, whatever is repeated, late, refused or in doubt."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pymongo.database import Database
from pymongo.errors import AutoReconnect, BulkWriteError, OperationFailure
from pymongo.synchronous.pool import Connection

from integration.store_verbs import ME, OTHER, between_read_and_update, claim, pushed
from sluicemq.protocol.errors import TooLargeError
from sluicemq_broker.job import Backoff, Reservation, State
from sluicemq_broker.job.job import ATTRIBUTES
from sluicemq_broker.store import Doubtful, Found, Pushed, QueueStore, Refused, Unclear
from sluicemq_broker.store.jobs.claims import Claims
from sluicemq_broker.store.jobs.inserts import MOST_DOUBTS, Insertion
from sluicemq_broker.store.jobs.numbered_inserts import Insert, MongoSessions, sessions_of
from sluicemq_broker.store.short_way import send_write
from sluicemq_broker.store.write_results import refusals
from support.between import before
from support.jobs import NOW, a_job, everything, finished, ids, some_jobs, stored


def test_a_pushed_job_comes_back_from_a_claim_as_it_was(store: QueueStore) -> None:
    job = a_job(
        "id", b"\x00\xff", headers={"a": [1, {"b": None}], "bin": b"\xff"}, priority=7, expires_at=NOW + 9,
        max_attempts=3, visibility_timeout=12.5, remember=60.0, keep_done=5.0,
        backoff=Backoff("fixed", base=3.0),
    )  # fmt: skip
    job.want_result()
    answer = store.push([job], NOW)
    [claimed] = claim(store).jobs
    assert answer == Pushed()
    kept = ATTRIBUTES - {"created_at", "dedupe", "eligible_at", "seq", "size"}
    expected = {name: getattr(job, name) for name in kept} | {
        "reservation": Reservation(ME, 0),
        "attempts": 1,
    }
    assert {name: getattr(claimed, name) for name in kept} == expected


def test_a_push_repeated_by_id_stores_nothing_anew_and_says_which_were_there(store: QueueStore) -> None:
    pushed(store, a_job("a", b"first"), a_job("c", b"first"))
    answer = store.push([a_job("a", b"second"), a_job("b", b"second"), a_job("c", b"second")], NOW)
    assert answer == Pushed(existing=[0, 2])
    assert {job_id: row["payload"] for job_id, row in everything(store).items()} == {
        "a": b"first", "b": b"second", "c": b"first",
    }  # fmt: skip


def test_a_job_that_is_too_large_for_mongodb_is_refused_for_good(store: QueueStore) -> None:
    for large in (a_job(payload=bytes(17 * 2**20)), a_job(headers={"a": [1] * 2_000_000})):
        with pytest.raises(Refused) as refusal:
            store.push([large], NOW)
        assert refusal.value.code == "TOO_LARGE"


def test_an_id_twice_in_one_push_is_stored_once(store: QueueStore) -> None:
    assert store.push([a_job("a", b"first"), a_job("a", b"second")], NOW) == Pushed(existing=[1])
    assert stored(store, "a")["payload"] == b"first"


def test_a_push_of_an_id_whose_job_is_done_is_an_existing_one(store: QueueStore) -> None:
    [job] = pushed(store, a_job("a", remember=60.0, owner=ME))
    store.complete([finished(job, b"result")], NOW)
    answer = store.push([a_job("a")], NOW)
    assert answer == Pushed(existing=[0])
    assert stored(store, "a")["state"] == "done"


def test_an_insert_that_is_sent_again_stores_no_job_anew_that_is_done_by_now(store: QueueStore) -> None:
    # Given an insert that was applied, whose answer is lost
    insertion = store.insertion([a_job("a", owner=ME), a_job("b")], NOW)
    with lost_answer(insertion):
        insertion.send(NOW)
    # When one of its jobs is done before it is sent again
    store.commit([a_job("a", owner=ME)])
    answer = insertion.send(NOW)
    assert answer == Pushed()
    assert everything(store).keys() == {"b"}


def test_an_insert_that_lands_after_it_was_sent_again_is_refused(store: QueueStore) -> None:
    # Given an insert that was sent twice, and was applied the second time
    insertion = store.insertion([a_job("a", owner=ME)], NOW)
    with lost_answer(insertion, applied=False) as late:
        insertion.send(NOW)
    insertion.send(NOW)
    store.commit([a_job("a", owner=ME)])
    # When the first lands, and when it lands after the session has gone on
    again = late[0]()
    store.push([a_job("b")], NOW)
    assert again["retriedStmtIds"] == [0]
    with pytest.raises(OperationFailure, match="newer retryable write"):
        late[0]()
    assert everything(store).keys() == {"b"}


def test_an_insert_that_found_its_id_taken_stores_nothing_if_one_lands_late(store: QueueStore) -> None:
    # Given a second push of an id, sent twice, which found the first one there
    pushed(store, a_job("a", owner=ME))
    insertion = store.insertion([a_job("a")], NOW)
    with lost_answer(insertion, applied=False) as late:
        insertion.send(NOW)
    answer = insertion.send(NOW)
    # When that is done, and then the first copy lands
    store.commit([a_job("a", owner=ME)])
    with pytest.raises(OperationFailure, match="newer retryable write"):
        late[0]()
    assert answer == Pushed(existing=[0])
    assert everything(store) == {}


def test_statements_that_are_refused_leave_their_sessions_to_others(store: QueueStore) -> None:
    sessions = sessions_of(store.jobs.database.client)
    store.push([a_job()], NOW)
    before = len(sessions._free)
    for _ in range(3):
        with pytest.raises(Refused):
            store.push([a_job(headers={"never": object()})], NOW)
    assert len(sessions._free) == before


def test_a_claim_leaves_a_job_that_was_pushed_anew_under_an_id_since_it_was_read(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed(store, a_job("a", b"old"))

    def done_and_pushed_anew() -> None:
        store.commit(claim(store, owner=OTHER).jobs)
        pushed(store, a_job("a", b"new"))

    between_read_and_update(store, monkeypatch, done_and_pushed_anew)
    mine = claim(store)
    assert mine.jobs == []
    assert [job.payload for job in claim(store).jobs] == [b"new"]


def test_a_new_job_has_its_attempts_anew(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a job without attempts left, which is cancelled and pushed anew while it is claimed
    spent = a_job("a", max_attempts=2)
    spent.attempts = 2
    pushed(store, spent)

    def push_anew() -> None:
        store.jobs.delete_one({"_id": "a"})
        pushed(store, a_job("a", max_attempts=2))

    before(monkeypatch, Claims, "_end_spent", push_anew)
    claimed = claim(store)
    assert (claimed.jobs, claimed.died) == ([], ())
    assert stored(store, "a")["state"] == "ready"


@pytest.mark.parametrize("code", [64, 91])
def test_an_insert_whose_durability_is_in_doubt_is_sent_again_as_the_same(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    insertion = store.insertion([a_job("a", owner=ME)], NOW)
    with monkeypatch.context() as patch:
        command = Connection.command
        doubt = {"writeConcernError": {"code": code, "errmsg": "in doubt"}}
        patch.setattr(Connection, "command", lambda *args, **options: {**command(*args, **options), **doubt})
        with pytest.raises(Unclear, match="durability"):
            insertion.send(NOW)
    store.commit([a_job("a", owner=ME)])
    answer = insertion.send(NOW)
    assert (answer, everything(store)) == (Pushed(), {})


def test_nothing_else_is_sent_in_the_session_of_an_insert_until_it_is_answered(store: QueueStore) -> None:
    # Given an insert that was applied, whose answer is lost
    insertion = store.insertion([a_job("a", owner=ME)], NOW)
    with lost_answer(insertion):
        insertion.send(NOW)
    # When other jobs are pushed, and the first is done, before it is sent again
    for _ in range(3):
        store.push([a_job()], NOW)
    store.commit([a_job("a", owner=ME)])
    answer = insertion.send(NOW)
    assert answer == Pushed()
    assert "a" not in everything(store)


def test_inserts_one_after_the_other_share_one_session(store: QueueStore) -> None:
    sessions = MongoSessions(store.jobs.database.client)
    for number in range(5):
        insert = Insert(sessions, store.jobs.database, store.name)
        insert.send([{"_id": f"job-{number}"}])
        insert.end(all_stored=True)
    assert len(sessions._free) == 1


def test_a_job_that_is_refused_again_and_again_with_a_code_nobody_knows_is_refused_alone(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Connection.command
    refused = {"writeErrors": [{"index": 1, "code": 4_242_424, "errmsg": "strange"}]}
    monkeypatch.setattr(
        Connection, "command", lambda *args, **options: {**command(*args, **options), **refused}
    )
    insertion = store.insertion(some_jobs(3), NOW)
    for _ in range(MOST_DOUBTS - 1):
        with pytest.raises(Doubtful):
            insertion.send(NOW)
    answer = insertion.send(NOW)
    assert {at: type(why) for at, why in answer.refused.items()} == {1: TooLargeError}


def test_a_job_inserted_reserved_is_held_and_not_claimed(store: QueueStore) -> None:
    pushed(store, a_job("a", owner=ME), a_job("b"))
    assert ids(claim(store, owner=OTHER).jobs) == ["b"]
    assert store.reservations(ME) == {("a", 0)}
    assert stored(store, "a")["attempts"] == 1


@pytest.mark.parametrize("code", [64, 100])
def test_a_push_whose_durability_is_in_doubt_is_unclear(store: QueueStore, code: int) -> None:
    doubt = {"writeErrors": [{"index": 0, "code": 11000}], "writeConcernErrors": [{"code": code}]}
    with pytest.raises(Unclear, match="durability"):
        refusals(BulkWriteError(doubt))


def test_a_server_in_trouble_is_not_taken_for_a_fault_of_the_job(store: QueueStore) -> None:
    no_shard = {"writeErrors": [{"index": 0, "code": 133, "errmsg": "FailedToSatisfyReadPreference"}]}
    with pytest.raises(Unclear, match="has not taken all"):
        refusals(BulkWriteError(no_shard))


def test_a_duplicate_of_another_unique_index_is_refused(documents: Database[dict[str, Any]]) -> None:
    store = QueueStore(documents, "queue.unique")
    store.jobs.create_index("priority", unique=True)
    pushed(store, a_job(priority=1))
    answer = store.push([a_job(priority=1), a_job(priority=2)], NOW)
    assert answer.existing == []
    assert isinstance(answer.refused.pop(0), TooLargeError)
    assert not answer.refused


def test_an_unreadable_message_is_a_dead_letter_and_may_be_buried_twice(store: QueueStore) -> None:
    letter = {"_id": "a", "payload": b"\xff", "raw_headers": b"{", "reason": "BAD_HEADERS: no", "size": 9}
    store.keep_unreadable([letter], NOW)
    store.keep_unreadable([letter], NOW)
    assert store.find(["a"])["a"] == Found(State.DEAD, "", b"", "BAD_HEADERS: no")
    assert stored(store, "a")["raw_headers"] == b"{"
    assert claim(store).jobs == []


@contextmanager
def lost_answer(
    insertion: Insertion, *, applied: bool = True
) -> Iterator[list[Callable[[], dict[str, Any]]]]:
    """The answer to an insert is lost; what is not applied can be sent later, by what this gives."""
    kept: list[Callable[[], dict[str, Any]]] = []
    statement = insertion._statement
    real = statement._database

    class Cut:
        client, name = property(lambda self: self), real.name

        @contextmanager
        def _conn_for_writes(self, *_arguments: Any) -> Iterator[Any]:
            yield self

        def command(self, _database: str, command: dict[str, Any]) -> dict[str, Any]:
            if applied:
                send_write(real, command)
            else:
                kept.append(lambda: send_write(real, command))
            raise AutoReconnect("cut")

    statement._database = Cut()  # type: ignore[assignment]
    with pytest.raises(Unclear):
        yield kept
    statement._database = real
