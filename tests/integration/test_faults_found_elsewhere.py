"""The faults found in the code of Zaqar and keuss, each with a check that ours has it not: a table.

A row says where and what goes wrong there. Their code is not run here; the same steps are gone at a
real broker, and end well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pymongo import WriteConcern

from launcher import wait_until
from other_systems import LONG, SECONDS, SHORT, Jobs, Row, Table, parameters, written
from sluicemq import Duplicate, LeaseLost, Producer, Worker, producer, wire
from sluicemq_broker.store.connection import durable

zaqar = Table("Zaqar")
keuss = Table("keuss")

# ------------------------------------------------------------------------ Zaqar


@zaqar("claims, PATCH", "renewing a claim forgets how often the message was delivered")
def renewal_forgets(jobs: Jobs) -> None:
    posted = jobs.push(max_attempts=2)
    for attempt in (1, 2):
        job = jobs.take()
        job.extend(LONG)
        assert (job.attempt, jobs.show(posted)["attempts"]) == (attempt, attempt)
        job.rollback("poison", delay=0)
    assert jobs.state(posted) == "dead"


@zaqar("claims, DELETE", "releasing a claim forgets how often the message was delivered before")
def release_forgets(jobs: Jobs) -> None:
    posted = jobs.push(max_attempts=2)
    jobs.take().rollback("poison", delay=0)
    jobs.reserve().release()  # never started: this delivery does not count, the one before does
    wait_until(lambda: jobs.state(posted) == "ready")
    assert jobs.show(posted)["attempts"] == 1
    last = jobs.take()
    assert last.attempt == 2
    last.rollback("poison", delay=0)
    assert jobs.state(posted) == "dead"


@zaqar("claims, DELETE", "a worker that fails and leaves its claim makes its poison immortal")
def failing_claims(jobs: Jobs) -> None:
    posted = jobs.push(max_attempts=2)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), jobs.reserve() as claim:
            print(1 / len(claim.unsettled[1:]))
        wait_until(lambda: jobs.state(posted) in ("ready", "dead"))
    assert jobs.state(posted) == "dead"
    assert "ZeroDivisionError" in jobs.show(posted)["errors"][-1]["reason"]


@zaqar("messages, DELETE ?claim_id", "the final delete does not check that the claim is still there")
def unchecked_delete(jobs: Jobs) -> None:
    posted = jobs.push(visibility_timeout=SHORT)
    late = jobs.take()
    wait_until(lambda: jobs.state(posted) == "ready")
    with pytest.raises(LeaseLost):
        late.commit()
    assert jobs.take().id == posted


@zaqar("messages, POST", "a post that is tried again is there twice")
def repeated_post(jobs: Jobs) -> None:
    first = jobs.push(b"1", id="mine", dedupe_id="piece of work")
    again = jobs.producer.push(jobs.queue, b"1", id=first, dedupe_id="piece of work")
    again.wait(SECONDS)
    other = jobs.producer.push(jobs.queue, b"1", id="another", dedupe_id="piece of work")
    with pytest.raises(Duplicate) as refused:
        other.wait(SECONDS)
    assert (again.existed, refused.value.id) == (True, first)
    assert jobs.ids("ready") == [first]


# ------------------------------------------------------------------------ keuss


@keuss("queue, ok", "a late worker commits what another has reserved by now")
def commit_of_another(jobs: Jobs) -> None:
    pushed = jobs.push(visibility_timeout=SHORT)
    late, (its_receipt, *_) = jobs.stranger()
    holder, (receipt, again, *_) = jobs.stranger()
    assert again == pushed
    holder.ask(wire.EXTEND, [receipt], LONG)
    # Neither with its own receipt nor with the holder's
    for told in (its_receipt, receipt):
        answer = late.ask(wire.SETTLE, [[told, wire.COMMIT, b"late", None]])
        assert [code for _, code, _ in answer.fields[0]] == ["LEASE_LOST"]
    assert jobs.state(pushed) == "reserved"
    assert not holder.ask(wire.SETTLE, [[receipt, wire.COMMIT, b"", None]]).fields[0]
    assert jobs.state(pushed) == "gone"


@keuss("factory, deadletter", "an element that kills its consumer is never dead: only a ko counts")
def dead_by_crash(jobs: Jobs) -> None:
    pushed = jobs.push(max_attempts=2)
    for attempt in (1, 2):
        victim, job = jobs.stranger()
        assert job[4] == attempt
        victim.plain.close()  # without a word
    wait_until(lambda: jobs.state(pushed) == "dead")
    assert jobs.show(pushed)["errors"][-1]["reason"] == "the worker died"


@keuss("factory, deadletter", "an element whose reservation runs out again and again is never dead")
def dead_by_timeout(jobs: Jobs) -> None:
    pushed = jobs.push(max_attempts=2, visibility_timeout=0.2)
    jobs.take()
    jobs.take()
    wait_until(lambda: jobs.state(pushed) == "dead")
    assert not jobs.ready()


@keuss("factory, deadletter", "committed here, then pushed there: a crash between the two loses it")
def dead_in_two_steps(jobs: Jobs) -> None:
    with jobs.collection.watch() as changes:
        jobs.push()
        jobs.take().reject()
        seen = written(changes)
        # It is never removed, and never put anew
        assert [next(seen)["operationType"] for _ in range(3)] == ["insert", "update", "update"]


@keuss("signaller", "a lost event leaves a consumer asleep until its next poll, 15 s later")
def lost_wake_up(jobs: Jobs) -> None:
    pushed = jobs.push(delay=LONG)
    with waiting(jobs) as came:
        due = {"$set": {"eligible_at": jobs.now()}}
        jobs.collection.update_one({"_id": pushed}, due)  # behind every broker's back: nobody is told
        wait_until(lambda: came == [pushed])


@keuss("signaller", "of pushes within 50 ms the last ones wake nobody: the window has no event at its end")
def trailing_event(jobs: Jobs) -> None:
    with waiting(jobs) as came:
        pushed = [jobs.producer.push(jobs.queue, b"burst").id for _ in range(200)]
        wait_until(lambda: sorted(came) == sorted(pushed))


@keuss("queue, push: delay, mature", "the clients' clocks decide when an element is due, and in which order")
def clients_clock(jobs: Jobs) -> None:
    first = jobs.push(b"first")
    with pytest.MonkeyPatch.context() as clock:
        clock.setattr(producer, "time_ns", lambda: 0)  # in 1970, so its id sorts before all others
        with Producer(jobs.house.broker.doors["smq"]) as wrong:
            receipts = [wrong.push(jobs.queue, b"second"), wrong.push(jobs.queue, b"third", delay=LONG)]
    ready, delayed = (receipt.id for receipt in receipts)
    assert ready < first
    assert jobs.ids("ready") == [first, ready]
    shown = jobs.show(delayed)
    assert shown["eligible_at"] - shown["created_at"] == pytest.approx(LONG, abs=0.01)
    assert shown["created_at"] == pytest.approx(jobs.now().timestamp(), abs=SECONDS)


@keuss("mongo backend", "writes go out without a write concern: what was confirmed may be rolled back")
def write_concern(jobs: Jobs) -> None:
    assert durable(jobs.collection.database).write_concern == WriteConcern("majority")
    # and a MongoDB whose majority is not journaled is refused: test_unsafe_store.py


# ---------------------------------------------------------------------- helpers


@contextmanager
def waiting(jobs: Jobs) -> Iterator[list[str]]:
    """A worker that waits already; the ids of the jobs that have come to it."""
    came: list[str] = []
    with Worker(jobs.house.broker.doors["smq"], jobs.queue, lambda job: came.append(job.id), prefetch=8):
        wait_until(lambda: any(r["name"] == jobs.queue and r["workers"] for r in jobs.client.queues()))
        yield came


# ------------------------------------------------------------------------------


@pytest.mark.parametrize("row", parameters(zaqar, keuss))
def test_the_faults_of_others_are_not_ours(row: Row, jobs: Jobs) -> None:
    row.check(jobs)
