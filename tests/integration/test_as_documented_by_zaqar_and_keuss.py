"""What Zaqar and keuss document of a job holds here: a table.

Each row names its source and says it in a sentence; its check shows that ours does it, with our word
for the verb. The places are

* Zaqar: the reference of its API v2 (api-ref/source: claims, messages, queues);
* keuss: its docs (api: queue, factory; concepts).

That Zaqar refuses an unsafe MongoDB unless told ``unreliable`` is ours too: ``test_unsafe_store.py``.
"""

from __future__ import annotations

import threading
from time import monotonic

import pytest

from launcher import wait_until
from other_systems import LONG, SECONDS, SHORT, Jobs, Row, Table, parameters, passed, written
from sluicemq import BadHeaders, Client, NotFound, Worker

zaqar = Table("Zaqar")
keuss = Table("keuss")

# ------------------------------------------------------------------------ Zaqar


@zaqar("claims, POST", "it claims up to limit messages from oldest to newest and skips claimed ones")
def claim(jobs: Jobs) -> None:
    posted = [jobs.push() for _ in range(5)]
    assert [job.id for job in jobs.reserve(2)] == posted[:2]
    jobs.await_ready(*posted[2:])
    assert [job.id for job in jobs.reserve(10, wait=0)] == posted[2:]
    assert len(jobs.reserve(10, wait=0)) == 0


@zaqar("claims, POST: ttl", "when a claim expires, its messages can be claimed by another worker")
def claim_expires(jobs: Jobs) -> None:
    posted = [jobs.push(visibility_timeout=SHORT) for _ in range(3)]
    jobs.reserve(3)
    assert sorted(job.id for job in jobs.reserve(3)) == sorted(posted)


@zaqar("claims, POST: grace", "a claimed message lives at least as long as its claim, whatever its ttl")
def grace(jobs: Jobs) -> None:
    held = jobs.push(b"held", ttl=SHORT)
    job = jobs.take()
    left = jobs.push(b"left", ttl=SHORT)
    wait_until(lambda: jobs.state(left) == "gone")  # the younger one has expired
    assert jobs.state(held) == "reserved"
    job.commit()


@zaqar("claims, PATCH", "a claim is renewed with a new ttl, for all of its messages")
def renew(jobs: Jobs) -> None:
    for _ in range(2):
        jobs.push(b"renewed", visibility_timeout=SHORT)
    renewed = jobs.reserve(2)
    renewed.extend(LONG)
    jobs.push(b"forgotten", visibility_timeout=SHORT)
    jobs.take()
    assert jobs.take().payload == b"forgotten"
    renewed.commit()


@zaqar("claims, DELETE", "the remaining, undeleted messages are available to others at once")
def release_claim(jobs: Jobs) -> None:
    posted = [jobs.push() for _ in range(3)]
    released = jobs.reserve(3)
    released.jobs[0].commit()
    released.release()
    jobs.await_ready(*posted[1:])


@zaqar("messages, POST: ttl", "a message that is older than its ttl is not handed out, and is removed")
def ttl(jobs: Jobs) -> None:
    posted = jobs.push(ttl=0.3)
    wait_until(lambda: not jobs.ready())
    wait_until(lambda: jobs.state(posted) == "gone")


@zaqar("messages, POST: delay", "it can't be claimed before; the message's own goes before the queue's")
def queue_delay(jobs: Jobs) -> None:
    jobs.queue = "late"
    assert jobs.state(jobs.push()) == "scheduled"
    own = jobs.push(delay=0)
    assert jobs.take().id == own


@zaqar("messages, POST", "many in one request: a result for each, in their order")
def post_many(jobs: Jobs) -> None:
    good, bad, last = jobs.producer.push_many(
        jobs.queue, [b"1", {"payload": b"2", "priority": 256}, {"payload": b"3", "id": "third"}]
    )
    good.wait(SECONDS)
    last.wait(SECONDS)
    with pytest.raises(BadHeaders):
        bad.wait(SECONDS)
    assert (bad.position, last.id) == (1, "third")
    assert jobs.in_order(2) == [b"1", b"3"]


@zaqar("messages, GET", "the messages, oldest first, on demand with the delayed or the claimed: our peek")
def list_messages(jobs: Jobs) -> None:
    claimed, first, second = (jobs.push() for _ in range(3))
    jobs.take()
    delayed = jobs.push(delay=LONG)
    jobs.await_ready(first, second)
    assert [jobs.ids(state) for state in ("ready", "reserved", "scheduled")] == [
        [first, second], [claimed], [delayed],
    ]  # fmt: skip


@zaqar("messages, DELETE ?pop", "so many messages are returned and deleted at once: our pop")
def pop_many(jobs: Jobs) -> None:
    posted = [jobs.push() for _ in range(3)]
    assert [job.id for job in jobs.client.pop(jobs.queue, 2)] == posted[:2]
    jobs.await_ready(posted[2])
    assert [jobs.state(each) for each in posted] == ["gone", "gone", "ready"]


@zaqar("queues: _max_claim_count", "a message claimed so often in vain goes to the dead letter queue")
def max_claim_count(jobs: Jobs) -> None:
    posted = jobs.push(max_attempts=2, visibility_timeout=0.2)
    jobs.take()
    jobs.take()
    wait_until(lambda: jobs.state(posted) == "dead")
    assert [error["attempt"] for error in jobs.show(posted)["errors"]] == [1, 2]


@zaqar("queues, GET stats", "how many messages are there by status, and how old the oldest is")
def queue_stats(jobs: Jobs) -> None:
    jobs.push()
    jobs.take()
    jobs.push()
    counts = jobs.counts()
    assert (counts["ready"], counts["reserved"]) == (1, 1)
    assert 0 <= counts["oldest_ready_age"] < SECONDS


@zaqar("queues, purge and DELETE", "all messages are removed; a queue is removed with its messages")
def purge(jobs: Jobs) -> None:
    jobs.push()
    jobs.push()
    assert jobs.client.purge(jobs.queue) == 2
    jobs.push()
    assert jobs.client.delete(jobs.queue) == 1
    assert all(row["name"] != jobs.queue for row in jobs.client.queues())


# ------------------------------------------------------------------------ keuss


@keuss("queue, push: mature", "an element is not extracted before this time: our not_before")
def mature(jobs: Jobs) -> None:
    began = monotonic()
    now = jobs.show(jobs.push(delay=LONG))["created_at"]  # by MongoDB's clock
    matures = jobs.push(not_before=now + SHORT)
    assert not jobs.ready()
    assert jobs.take().id == matures
    assert passed(began) >= SHORT - 0.1


@keuss("queue, push: hdrs", "scalars that travel beside the payload: our headers")
def hdrs(jobs: Jobs) -> None:
    given = {"kind": "cat", "size": 3, "tame": True}
    jobs.push(headers=given)
    assert jobs.take().headers == given


@keuss("queue, pop", "the element is obtained and gone; timeout: how long it waits for one")
def pop(jobs: Jobs) -> None:
    began = monotonic()
    assert jobs.client.pop(jobs.queue, wait=0.3) == []
    assert passed(began) >= 0.3
    pushed = jobs.push()
    assert [job.id for job in jobs.client.pop(jobs.queue)] == [pushed]
    assert jobs.state(pushed) == "gone"


@keuss("queue, pop: reserve", "without ok or ko the element is rolled back at some point")
def reserve_only(jobs: Jobs) -> None:
    pushed = jobs.push(visibility_timeout=SHORT)
    jobs.take()
    assert jobs.state(pushed) == "reserved"
    assert jobs.take().id == pushed


@keuss("queue, ok", "it erases the element from the queue: our commit")
def ok(jobs: Jobs) -> None:
    pushed = jobs.push()
    jobs.take().commit()
    assert jobs.state(pushed) == "gone"


@keuss("queue, ko", "the element is available again, at next_t or now: our rollback with its delay or 0")
def ko(jobs: Jobs) -> None:
    pushed = jobs.push()
    jobs.take().rollback(delay=0)
    jobs.take().rollback(delay=LONG)
    shown = jobs.show(pushed)
    assert shown["state"] == "scheduled"
    assert shown["eligible_at"] - shown["errors"][-1]["at"] == pytest.approx(LONG, abs=SECONDS)


@keuss("factory, deadletter", "a rollback more than max_ko moves the element away: max_attempts is one more")
def deadletter(jobs: Jobs) -> None:
    max_ko = 2
    pushed = jobs.push(max_attempts=max_ko + 1)
    for _ in range(max_ko):
        jobs.take().rollback("ko", delay=0)
        assert jobs.state(pushed) == "ready"
    jobs.take().rollback("ko", delay=0)
    assert jobs.state(pushed) == "dead"


@keuss("queue, remove", "an element is removed by the id of its push, unless it is reserved: our cancel")
def remove(jobs: Jobs) -> None:
    reserved, removed = jobs.push(), jobs.push()
    jobs.take()
    jobs.await_ready(removed)
    jobs.client.cancel(jobs.queue, removed)
    with pytest.raises(NotFound):
        jobs.client.cancel(jobs.queue, reserved)
    with pytest.raises(NotFound):
        jobs.client.cancel(jobs.queue, "never pushed")
    assert (jobs.state(removed), jobs.state(reserved)) == ("gone", "reserved")


@keuss("queue, pause", "all consumers pause, also those that come later; producers go on")
def pause(jobs: Jobs) -> None:
    came = threading.Event()
    endpoint = jobs.house.broker.doors["smq"]
    with Worker(endpoint, jobs.queue, lambda job: came.set()), Client(endpoint) as other:
        wait_until(lambda: any(r["name"] == jobs.queue and r["workers"] for r in jobs.client.queues()))
        other.pause(jobs.queue)
        pushed = jobs.push()
        assert not jobs.ready()
        assert jobs.counts()["paused"] == ["delivery"]
        assert jobs.state(pushed) == "ready"
        assert not came.is_set()
        other.resume(jobs.queue)
        assert came.wait(SECONDS)


@keuss("queue, size, schedSize, resvSize", "elements that are due, those that are not yet, and the reserved")
def sizes(jobs: Jobs) -> None:
    jobs.push()
    jobs.take()
    for seconds in (0, 0, LONG):
        jobs.push(delay=seconds)
    counts = jobs.counts()
    assert [counts[state] for state in ("ready", "scheduled", "reserved")] == [2, 1, 1]


@keuss("queue, next_t", "the time of the next element: our peek of ready, else of scheduled")
def next_t(jobs: Jobs) -> None:
    jobs.push(delay=2 * LONG)
    shown = jobs.show(jobs.push(delay=LONG))
    assert jobs.client.peek(jobs.queue, "scheduled", 1)[0]["eligible_at"] == shown["eligible_at"]
    assert shown["eligible_at"] == pytest.approx(shown["created_at"] + LONG, abs=0.01)


@keuss("concepts, stats", "elements put, got, reserved, committed, rolled back: our counters")
def stats(jobs: Jobs) -> None:
    names = ("pushed", "delivered", "committed", "rolled_back")
    before = [jobs.house.counter(name) for name in names]
    jobs.push()
    jobs.take().rollback(delay=0)
    jobs.take().commit()
    counted = [jobs.house.counter(name) - was for name, was in zip(names, before, strict=True)]
    assert counted == [1, 2, 1, 1]


@keuss("concepts, ps-mongo", "an extracted element is only marked, and removed after a ttl: our keep_done")
def history(jobs: Jobs) -> None:
    pushed = jobs.push(b"kept", keep_done=LONG)
    jobs.take().commit(b"result")
    kept = jobs.show(pushed)
    assert (kept["state"], kept["payload"], kept["result"]) == ("done", b"kept", b"result")
    assert kept["remove_at"] - kept["ended_at"] == pytest.approx(LONG, abs=SECONDS)


@keuss("concepts, pipeline", "an element passes to another queue atomically: our redrive into another")
def passed_on(jobs: Jobs) -> None:
    pushed, other = jobs.push(), f"{jobs.queue}-other"
    jobs.producer.push(other, b"that makes it").wait(SECONDS)
    jobs.take().reject()
    with jobs.collection.database.watch() as changes:
        jobs.client.redrive(jobs.queue, to=other)
        of_it = (each for each in written(changes) if each["documentKey"]["_id"] == pushed)
        gone = next(each for each in of_it if each["operationType"] == "delete")
        there = jobs.collection.database[f"queue.{other}"].watch(start_at_operation_time=gone["clusterTime"])
        with there:
            come = next(each for each in written(there) if each["operationType"] == "insert")
    assert (come["lsid"], come["txnNumber"]) == (gone["lsid"], gone["txnNumber"])


# ------------------------------------------------------------------------------


@pytest.mark.parametrize("row", parameters(zaqar, keuss))
def test_what_zaqar_and_keuss_document_holds_here_too(row: Row, jobs: Jobs) -> None:
    row.check(jobs)
