"""Looking at jobs and queues, and ordering them about: over the library, at a real broker."""

from __future__ import annotations

import threading

import pytest

from sluicemq import Client, NotFoundError, Worker
from support.own_queue import LONG, SECONDS, OwnQueue, written
from support.waiting import wait_until


def test_jobs_that_nobody_holds_can_be_removed(jobs: OwnQueue) -> None:
    # beanstalkd, delete: ready, delayed and buried jobs can be deleted: our cancel, and purge of the dead.
    jobs.client.jobs.cancel(jobs.queue, jobs.push())
    jobs.client.jobs.cancel(jobs.queue, jobs.push(delay=LONG))
    buried = jobs.push()
    jobs.take().reject()
    assert jobs.client.queues.purge(jobs.queue, "dead").result() == 1
    assert jobs.state(buried) == "gone"
    assert not jobs.ready()


def test_a_redrive_moves_no_more_dead_letters_than_it_is_told_the_oldest_first(jobs: OwnQueue) -> None:
    # beanstalkd, kick <bound>: it makes no more than so many buried jobs ready, the oldest first: our
    # redrive.
    buried = [jobs.push() for _ in range(3)]
    for job in jobs.reserve(3):
        job.reject()
    assert jobs.client.dead_letters.redrive(jobs.queue, limit=2).result().moved == 2
    assert (jobs.ids("ready"), jobs.ids("dead")) == (buried[:2], buried[2:])


def test_one_dead_letter_is_redriven_and_one_delayed_job_promoted_by_its_id(jobs: OwnQueue) -> None:
    # beanstalkd, kick-job: one job, buried or delayed, becomes ready by its id: our redrive and promote.
    buried = [jobs.push() for _ in range(2)]
    for _ in buried:
        jobs.take().reject()
    delayed = jobs.push(delay=LONG)
    jobs.client.dead_letters.redrive(jobs.queue, [buried[1]]).result()
    jobs.client.jobs.promote(jobs.queue, delayed)
    assert sorted(jobs.ids("ready")) == sorted([buried[1], delayed])
    with pytest.raises(NotFoundError):
        jobs.client.jobs.promote(jobs.queue, buried[0])


def test_a_peek_shows_the_next_job_of_a_state_and_takes_none(jobs: OwnQueue) -> None:
    # beanstalkd, peek-ready, -delayed, -buried: the next job of a state, the delayed one with the shortest
    # delay.
    jobs.push(b"buried")
    jobs.take().reject()
    for payload, seconds in ((b"later", 2 * LONG), (b"sooner", LONG), (b"ready", 0)):
        jobs.push(payload, delay=seconds)
    seen = [jobs.client.peek(jobs.queue, state, 1)[0]["payload"] for state in ("ready", "scheduled", "dead")]
    assert seen == [b"ready", b"sooner", b"buried"]
    assert jobs.take().payload == b"ready"  # it was only looked at


def test_a_job_is_shown_with_its_state_its_priority_and_its_attempts(jobs: OwnQueue) -> None:
    # beanstalkd, stats-job: id, state, priority, age, and how many times it was reserved: our show.
    put = jobs.push(priority=7)
    jobs.take().rollback(delay=0)
    jobs.take()
    shown = jobs.show(put)
    assert [shown[key] for key in ("id", "state", "priority", "attempts")] == [put, "reserved", 7, 2]
    assert shown["created_at"] <= shown["reserved_at"]


def test_a_queue_is_counted_by_states(jobs: OwnQueue) -> None:
    # beanstalkd, stats-tube: how many jobs of a tube are ready, reserved, delayed, buried: our queues.
    jobs.push()
    jobs.take().reject()
    jobs.push()
    jobs.take()
    jobs.push(delay=LONG)
    jobs.push()
    counts = jobs.counts()
    assert [counts[state] for state in ("ready", "reserved", "scheduled", "dead")] == [1, 1, 1, 1]


def test_nothing_is_handed_out_of_a_paused_queue_until_it_is_resumed(jobs: OwnQueue) -> None:
    # beanstalkd, pause-tube: no new job of the tube is reserved: our pause, which lasts until resume.
    jobs.push()
    jobs.client.queues.pause(jobs.queue)
    assert not jobs.ready()
    jobs.client.queues.resume(jobs.queue)
    assert jobs.ready()


def test_it_can_be_seen_who_holds_a_job(jobs: OwnQueue) -> None:
    # Work queues in MongoDB, a process id in the job: it can be seen which listener has picked a job up.
    pushed = jobs.push()
    jobs.take()
    assert jobs.show(pushed)["worker"]


def test_a_kept_job_tells_when_it_was_made_started_and_ended(jobs: OwnQueue) -> None:
    # Work queues in MongoDB, createdOn, startTime, endTime: a finished job tells its times until a TTL index
    # removes it.
    pushed = jobs.push(keep_done=LONG)
    jobs.take().commit()
    kept = jobs.show(pushed)
    assert kept["created_at"] <= kept["started_at"] <= kept["ended_at"] < kept["remove_at"]


def test_jobs_of_each_state_are_listed_oldest_first(jobs: OwnQueue) -> None:
    # Zaqar, messages, GET: the messages, oldest first, on demand with the delayed or the claimed: our peek.
    claimed, first, second = (jobs.push() for _ in range(3))
    jobs.take()
    delayed = jobs.push(delay=LONG)
    jobs.await_ready(first, second)
    assert [jobs.ids(state) for state in ("ready", "reserved", "scheduled")] == [
        [first, second], [claimed], [delayed],
    ]  # fmt: skip


def test_a_queue_tells_how_old_its_oldest_ready_job_is(jobs: OwnQueue) -> None:
    # Zaqar, queues, GET stats: how many messages are there by status, and how old the oldest is.
    jobs.push()
    jobs.take()
    jobs.push()
    counts = jobs.counts()
    assert (counts["ready"], counts["reserved"]) == (1, 1)
    assert 0 <= counts["oldest_ready_age"] < SECONDS


def test_a_purge_removes_all_ready_jobs_and_a_delete_the_queue(jobs: OwnQueue) -> None:
    # Zaqar, queues, purge and DELETE: all messages are removed; a queue is removed with its messages.
    jobs.push()
    jobs.push()
    assert jobs.client.queues.purge(jobs.queue).result() == 2
    jobs.push()
    assert jobs.client.queues.delete(jobs.queue).result() == 1
    assert all(row.name != jobs.queue for row in jobs.client.queues.list())


def test_a_job_is_cancelled_by_its_id_unless_it_is_reserved(jobs: OwnQueue) -> None:
    # keuss, queue, remove: an element is removed by the id of its push, unless it is reserved: our cancel.
    reserved, removed = jobs.push(), jobs.push()
    jobs.take()
    jobs.await_ready(removed)
    jobs.client.jobs.cancel(jobs.queue, removed)
    with pytest.raises(NotFoundError):
        jobs.client.jobs.cancel(jobs.queue, reserved)
    with pytest.raises(NotFoundError):
        jobs.client.jobs.cancel(jobs.queue, "never pushed")
    assert (jobs.state(removed), jobs.state(reserved)) == ("gone", "reserved")


def test_a_pause_holds_for_workers_that_are_there_and_producers_go_on(jobs: OwnQueue) -> None:
    # keuss, queue, pause: all consumers pause, also those that come later; producers go on.
    came = threading.Event()
    endpoint = jobs.endpoint
    with Worker(jobs.queue, lambda job: came.set(), endpoint=endpoint), Client(endpoint=endpoint) as other:
        wait_until(lambda: any(r.name == jobs.queue and r.workers for r in jobs.client.queues.list()))
        other.queues.pause(jobs.queue)
        pushed = jobs.push()
        assert not jobs.ready()
        assert jobs.counts()["paused"] == ("delivery",)
        assert jobs.state(pushed) == "ready"
        assert not came.is_set()
        other.queues.resume(jobs.queue)
        assert came.wait(SECONDS)


def test_ready_delayed_and_reserved_jobs_are_counted_apart(jobs: OwnQueue) -> None:
    # keuss, queue, size, schedSize, resvSize: elements that are due, those that are not yet, and the
    # reserved.
    jobs.push()
    jobs.take()
    for seconds in (0, 0, LONG):
        jobs.push(delay=seconds)
    counts = jobs.counts()
    assert [counts[state] for state in ("ready", "scheduled", "reserved")] == [2, 1, 1]


def test_the_next_delayed_job_tells_when_it_is_due(jobs: OwnQueue) -> None:
    # keuss, queue, next_t: the time of the next element: our peek of ready, else of scheduled.
    jobs.push(delay=2 * LONG)
    shown = jobs.show(jobs.push(delay=LONG))
    assert jobs.client.jobs.list(jobs.queue, "scheduled", 1)[0].eligible_at == shown["eligible_at"]
    assert shown["eligible_at"] == pytest.approx(shown["created_at"] + LONG, abs=5)


def test_pushes_deliveries_commits_and_rollbacks_are_counted(jobs: OwnQueue) -> None:
    # keuss, concepts, stats: elements put, got, reserved, committed, rolled back: our counters.
    names = ("pushed", "delivered", "committed", "rolled_back")
    before = [jobs.broker.counter(name) for name in names]
    jobs.push()
    jobs.take().rollback(delay=0)
    jobs.take().commit()
    counted = [jobs.broker.counter(name) - was for name, was in zip(names, before, strict=True)]
    assert counted == [1, 2, 1, 1]


def test_a_redrive_into_another_queue_is_one_transaction(jobs: OwnQueue) -> None:
    # keuss, concepts, pipeline: an element passes to another queue atomically: our redrive into another.
    pushed, other = jobs.push(), f"{jobs.queue}-other"
    jobs.producer.push(other, b"that makes it").wait(SECONDS)
    jobs.take().reject()
    with jobs.collection.database.watch() as changes:
        jobs.client.dead_letters.redrive(jobs.queue, to=other).result()
        of_it = (each for each in written(changes) if each["documentKey"]["_id"] == pushed)
        gone = next(each for each in of_it if each["operationType"] == "delete")
        there = jobs.collection.database[f"queue.{other}"].watch(start_at_operation_time=gone["clusterTime"])
        with there:
            come = next(each for each in written(there) if each["operationType"] == "insert")
    assert (come["lsid"], come["txnNumber"]) == (gone["lsid"], gone["txnNumber"])
