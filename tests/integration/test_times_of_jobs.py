"""Times of jobs: delays, expiry, visibility timeouts; and priorities."""

import json
from collections.abc import Iterator
from time import monotonic

import pytest
import zmq

from sluicemq import ExpiredError, LeaseLostError, Producer, Worker
from sluicemq.protocol import wire
from support.broker_under_test import BrokerUnderTest, serving, spare
from support.own_queue import LONG, SECONDS, SHORT, OwnQueue, own_queue, passed
from support.raw_sockets import receive
from support.waiting import wait_until


def test_a_delayed_job_is_ready_when_its_delay_is_over(jobs: OwnQueue) -> None:
    # beanstalkd, put <delay>: a job put with a delay becomes ready when it is over.
    began = monotonic()
    put = jobs.push(delay=SHORT)
    assert not jobs.ready()
    assert jobs.state(put) == "scheduled"
    assert jobs.take().id == put
    assert passed(began) >= SHORT


def test_a_job_s_own_delay_goes_before_that_of_its_queue(jobs: OwnQueue) -> None:
    # Zaqar, messages, POST: delay: it can't be claimed before; the message's own goes before the queue's.
    jobs.queue = "late"
    assert jobs.state(jobs.push()) == "scheduled"
    own = jobs.push(delay=0)
    assert jobs.take().id == own


def test_a_job_is_not_handed_out_before_the_time_it_names(jobs: OwnQueue) -> None:
    # keuss, queue, push: mature: an element is not extracted before this time: our not_before.
    began = monotonic()
    now = jobs.show(jobs.push(delay=LONG))["created_at"]  # by MongoDB's clock
    matures = jobs.push(not_before=now + SHORT)
    assert not jobs.ready()
    assert jobs.take().id == matures
    assert passed(began) >= SHORT - 0.1


def test_a_job_that_becomes_due_behind_everybody_s_back_is_found(jobs: OwnQueue) -> None:
    # Not so in keuss (signaller): a lost event leaves a consumer asleep until its next poll, 15 s later.
    pushed = jobs.push(delay=LONG)
    with jobs.waiting_worker() as came:
        due = {"$set": {"eligible_at": jobs.now()}}
        jobs.collection.update_one({"_id": pushed}, due)  # behind every broker's back: nobody is told
        wait_until(lambda: came == [pushed])


def test_the_clock_of_a_client_decides_nothing(jobs: OwnQueue) -> None:
    # Not so in keuss (queue, push: delay, mature): the clients' clocks decide when an element is due, and in
    # which order.
    first = jobs.push(b"first")
    with Producer(
        now=lambda: 0, endpoint=jobs.endpoint
    ) as wrong:  # in 1970, so its ids sort before all others
        receipts = [wrong.push(jobs.queue, b"second"), wrong.push(jobs.queue, b"third", delay=LONG)]
    ready, delayed = (receipt.id for receipt in receipts)
    assert ready < first
    assert jobs.ids("ready") == [first, ready]
    shown = jobs.show(delayed)
    assert shown["eligible_at"] - shown["created_at"] == pytest.approx(LONG, abs=SECONDS)
    assert shown["created_at"] == pytest.approx(jobs.now().timestamp(), abs=SECONDS)


#: The sweep comes once in a lease: never, as far as these tests go.
NO_SWEEP = 10_000.0


@pytest.fixture(scope="module")
def unswept_broker(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    """A broker whose sweep comes too late for everything, so what expires does so by its own time."""
    with serving(mongo_uri, spare(ask=2), lease=NO_SWEEP) as broker:
        yield broker


@pytest.fixture
def unswept(unswept_broker: BrokerUnderTest) -> Iterator[OwnQueue]:
    """A queue of the test's own there."""
    with own_queue(unswept_broker) as jobs:
        yield jobs


def test_a_job_that_is_held_does_not_expire(jobs: OwnQueue) -> None:
    # Zaqar, claims, POST: grace: a claimed message lives at least as long as its claim, whatever its ttl.
    held = jobs.push(b"held", ttl=SHORT)
    job = jobs.take()
    left = jobs.push(b"left", ttl=SHORT)
    wait_until(lambda: jobs.state(left) == "gone")  # the younger one has expired
    assert jobs.state(held) == "reserved"
    job.commit()


def test_an_expired_job_is_not_handed_out_and_is_removed(jobs: OwnQueue) -> None:
    # Zaqar, messages, POST: ttl: a message that is older than its ttl is not handed out, and is removed.
    posted = jobs.push(ttl=0.3)
    wait_until(lambda: not jobs.ready())
    wait_until(lambda: jobs.state(posted) == "gone")


def test_an_asker_hears_that_its_job_has_expired_without_a_sweep(unswept_broker: BrokerUnderTest) -> None:
    # Given two questions at a queue without workers, of which the first lives longer
    doors = unswept_broker.take("ask")
    asker = unswept_broker.socket(zmq.DEALER, doors.front)
    for name, ttl in ((b"later", 1.0), (b"sooner", 0.5)):
        asker.send_multipart([name, b"", b"", json.dumps({"ttl": ttl}).encode(), b"x"])
    # When, then
    for name in (b"sooner", b"later"):
        number, _, error, why = receive(asker)
        assert (number, error, json.loads(why)["code"]) == (name, b"ERROR", "EXPIRED")
    wait_until(lambda: not unswept_broker.counts(doors.queue))


def test_who_asks_by_the_id_of_a_stored_job_hears_that_it_has_expired(unswept: OwnQueue) -> None:
    with pytest.raises(ExpiredError):
        unswept.producer.call(unswept.queue, b"x", ttl=0.5, timeout=SECONDS)


def test_thousands_of_a_moment_expire_without_a_sweep_and_each_is_counted(unswept: OwnQueue) -> None:
    expired = unswept.broker.counter("expired")
    for receipt in unswept.producer.push_many(unswept.queue, [b"x"] * 3000, ttl=1.0):
        receipt.wait(SECONDS)
    wait_until(lambda: not unswept.collection.count_documents({}))
    wait_until(lambda: unswept.broker.counter("expired") - expired == 3000)


def test_a_job_that_expires_while_it_waits_for_a_busy_worker_is_not_delivered(unswept: OwnQueue) -> None:
    # Given a worker with one job, so that the others are staged behind it
    came: list[bytes] = []
    go_on = False

    def handler(job: object) -> None:
        came.append(job.payload)  # type: ignore[attr-defined]
        wait_until(lambda: go_on)

    unswept.push(b"first")
    with Worker(unswept.queue, handler, endpoint=unswept.endpoint):
        wait_until(lambda: came)
        over = unswept.push(b"over", ttl=0.5)
        unswept.push(b"last")
        wait_until(lambda: not unswept.collection.find_one({"_id": over}))
        go_on = True
        wait_until(lambda: len(came) > 1)
    assert came == [b"first", b"last"]


def test_a_job_that_is_given_back_after_its_time_expires_at_once(unswept: OwnQueue) -> None:
    kept = unswept.push(ttl=0.5)
    job = unswept.take()
    wait_until(lambda: unswept.now().timestamp() > unswept.show(kept)["expires_at"])
    job.rollback("too late")
    wait_until(lambda: not unswept.collection.find_one({"_id": kept}))


def test_an_expired_job_counts_as_nothing_and_is_not_shown_as_ready(unswept: OwnQueue) -> None:
    # Given jobs as another broker would leave them: nobody here waits for their time
    unswept.push(b"stays")
    unswept.push(b"later", delay=LONG)
    old, delayed = unswept.push(ttl=LONG), unswept.push(ttl=3 * LONG, delay=2 * LONG)
    unswept.collection.update_many({"_id": {"$in": [old, delayed]}}, {"$set": {"expires_at": unswept.now()}})
    counts = unswept.counts()
    assert (counts["ready"], counts["scheduled"]) == (1, 1)
    assert {unswept.state(old), unswept.state(delayed)} == {"gone"}
    assert unswept.show(old)["state"] == "expired"


@pytest.mark.full
def test_after_a_restart_the_sweep_ends_what_has_expired(mongo_uri: str) -> None:
    with serving(mongo_uri, [], lease=NO_SWEEP) as broker, own_queue(broker) as jobs:
        posted = jobs.push(ttl=LONG)
        broker.process.kill()
        jobs.collection.update_one({"_id": posted}, {"$set": {"expires_at": jobs.now()}})
        broker.process.restart()
        wait_until(lambda: not jobs.collection.find_one({"_id": posted}))


def test_a_job_that_is_not_settled_in_its_time_comes_again(jobs: OwnQueue) -> None:
    # beanstalkd, put <ttr>: a job that is not settled within its time to run is ready again.
    put = jobs.push(visibility_timeout=SHORT)
    began = monotonic()
    jobs.take()
    again = jobs.take()
    assert (again.id, again.attempt) == (put, 2)
    assert passed(began) >= SHORT


def test_an_extension_postpones_the_end_of_a_reservation(jobs: OwnQueue) -> None:
    # beanstalkd, touch: it postpones the end of a reservation until that many seconds from now.
    jobs.push(b"touched", visibility_timeout=SHORT)
    touched = jobs.take()
    touched.extend(LONG)
    jobs.push(b"forgotten", visibility_timeout=SHORT)
    jobs.take()
    assert jobs.take().payload == b"forgotten"  # the later one's time is over, so the first one's was too
    touched.commit()


def test_a_commit_after_the_visibility_timeout_is_refused(jobs: OwnQueue) -> None:
    # beanstalkd, delete: NOT_FOUND if the job timed out before: our LEASE_LOST.
    put = jobs.push(visibility_timeout=SHORT)
    late = jobs.take()
    wait_until(lambda: jobs.state(put) == "ready")
    with pytest.raises(LeaseLostError):
        late.commit()
    assert jobs.state(put) == "ready"


def test_the_jobs_of_a_claim_whose_time_is_over_go_to_another(jobs: OwnQueue) -> None:
    # Zaqar, claims, POST: ttl: when a claim expires, its messages can be claimed by another worker.
    posted = [jobs.push(visibility_timeout=SHORT) for _ in range(3)]
    jobs.reserve(3)
    assert sorted(job.id for job in jobs.reserve(3)) == sorted(posted)


def test_a_claim_is_renewed_for_all_of_its_jobs(jobs: OwnQueue) -> None:
    # Zaqar, claims, PATCH: a claim is renewed with a new ttl, for all of its messages.
    for _ in range(2):
        jobs.push(b"renewed", visibility_timeout=SHORT)
    renewed = jobs.reserve(2)
    renewed.extend(LONG)
    jobs.push(b"forgotten", visibility_timeout=SHORT)
    jobs.take()
    assert jobs.take().payload == b"forgotten"
    renewed.commit()


def test_a_late_worker_commits_nothing_that_another_holds(jobs: OwnQueue) -> None:
    # Not so in keuss (queue, ok): a late worker commits what another has reserved by now.
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


def test_the_highest_priority_comes_first_and_in_a_priority_the_oldest(jobs: OwnQueue) -> None:
    # beanstalkd, put <pri>, reserve: the most urgent is first (0 there, 255 here), in a priority the oldest.
    for payload, priority in ((b"c", 1), (b"a", 255), (b"d", 1), (b"e", 0), (b"b", 255)):
        jobs.push(payload, priority=priority)
    assert jobs.in_order(5) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_job_that_was_rolled_back_may_get_another_priority(jobs: OwnQueue) -> None:
    # beanstalkd, release <pri>: a job that is put back may get a new priority: our rollback, then change.
    put = jobs.push(b"back", priority=9)
    other = jobs.push(b"other", priority=5)
    jobs.take().rollback(delay=0)
    jobs.await_ready(put, other)
    jobs.client.jobs.change(jobs.queue, put, priority=1)
    assert jobs.in_order(2) == [b"other", b"back"]
