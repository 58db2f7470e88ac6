"""What beanstalkd and the work queue of a schema book document of a job holds here: a table.

Each row names its source and says it in a sentence; its check shows that ours does it, with our word
for the verb. The places are

* beanstalkd: the commands of its doc/protocol;
* the work queue: the fields of its job, in the design pattern "Queues" of a book on MongoDB schemas.
  That each fetch is one index scan is shown by ``test_explain.py``.

Zaqar and keuss: ``test_as_documented_by_zaqar_and_keuss.py``; faults: ``test_faults_found_elsewhere.py``.
"""

from __future__ import annotations

import threading
from time import monotonic

import pytest

from launcher import wait_until
from other_systems import LONG, SECONDS, SHORT, Jobs, Row, Table, parameters, passed
from sluicemq import LeaseLost, NotFound

beanstalkd = Table("beanstalkd")
work_queue = Table("work queue")

# ------------------------------------------------------------------- beanstalkd


@beanstalkd("put <delay>", "a job put with a delay becomes ready when it is over")
def delay(jobs: Jobs) -> None:
    began = monotonic()
    put = jobs.push(delay=SHORT)
    assert not jobs.ready()
    assert jobs.state(put) == "scheduled"
    assert jobs.take().id == put
    assert passed(began) >= SHORT


@beanstalkd("put <pri>, reserve", "the most urgent is first (0 there, 255 here), in a priority the oldest")
def urgency(jobs: Jobs) -> None:
    for payload, priority in ((b"c", 1), (b"a", 255), (b"d", 1), (b"e", 0), (b"b", 255)):
        jobs.push(payload, priority=priority)
    assert jobs.in_order(5) == [b"a", b"b", b"c", b"d", b"e"]


@beanstalkd("put <ttr>", "a job that is not settled within its time to run is ready again")
def time_to_run(jobs: Jobs) -> None:
    put = jobs.push(visibility_timeout=SHORT)
    began = monotonic()
    jobs.take()
    again = jobs.take()
    assert (again.id, again.attempt) == (put, 2)
    assert passed(began) >= SHORT


@beanstalkd("reserve", "it waits until a job becomes available; others don't see a reserved job")
def reserve(jobs: Jobs) -> None:
    came: list[str] = []
    waiting = threading.Thread(target=lambda: came.append(jobs.take().id))
    waiting.start()
    wait_until(lambda: any(row["name"] == jobs.queue and row["workers"] for row in jobs.client.queues()))
    put = jobs.push()
    waiting.join(SECONDS)
    assert came == [put]
    assert jobs.state(put) == "reserved"
    assert not jobs.ready()


@beanstalkd("reserve", "the body is a verbatim copy of the bytes that were put")
def verbatim(jobs: Jobs) -> None:
    body = bytes(range(256)) + b"\r\n"
    jobs.push(body)
    assert jobs.take().payload == body


@beanstalkd("reserve-with-timeout", "0 answers at once; a positive one limits the wait")
def reserve_with_timeout(jobs: Jobs) -> None:
    assert len(jobs.reserve(1, wait=0)) == 0
    began = monotonic()
    assert len(jobs.reserve(1, wait=0.3)) == 0
    assert passed(began) >= 0.3


@beanstalkd("touch", "it postpones the end of a reservation until that many seconds from now")
def touch(jobs: Jobs) -> None:
    jobs.push(b"touched", visibility_timeout=SHORT)
    touched = jobs.take()
    touched.extend(LONG)
    jobs.push(b"forgotten", visibility_timeout=SHORT)
    jobs.take()
    assert jobs.take().payload == b"forgotten"  # the later one's time is over, so the first one's was too
    touched.commit()


@beanstalkd("delete", "a reserved job is removed entirely: our commit")
def delete_reserved(jobs: Jobs) -> None:
    put = jobs.push()
    jobs.take().commit()
    with pytest.raises(NotFound):
        jobs.show(put)


@beanstalkd("delete", "ready, delayed and buried jobs can be deleted: our cancel, and purge of the dead")
def delete_others(jobs: Jobs) -> None:
    jobs.client.cancel(jobs.queue, jobs.push())
    jobs.client.cancel(jobs.queue, jobs.push(delay=LONG))
    buried = jobs.push()
    jobs.take().reject()
    assert jobs.client.purge(jobs.queue, "dead") == 1
    assert jobs.state(buried) == "gone"
    assert not jobs.ready()


@beanstalkd("delete", "NOT_FOUND if the job timed out before: our LEASE_LOST")
def delete_too_late(jobs: Jobs) -> None:
    put = jobs.push(visibility_timeout=SHORT)
    late = jobs.take()
    wait_until(lambda: jobs.state(put) == "ready")
    with pytest.raises(LeaseLost):
        late.commit()
    assert jobs.state(put) == "ready"


@beanstalkd(
    "release", "it puts a reserved job back, to be run by any client; with a delay, when that is over"
)
def release(jobs: Jobs) -> None:
    put = jobs.push()
    jobs.take().rollback(delay=0)
    second = jobs.take()
    assert second.id == put
    began = monotonic()
    second.rollback("busy", delay=SHORT)
    assert jobs.state(put) == "scheduled"
    assert jobs.take().id == put
    assert passed(began) >= SHORT


@beanstalkd("release <pri>", "a job that is put back may get a new priority: our rollback, then change")
def release_with_priority(jobs: Jobs) -> None:
    put = jobs.push(b"back", priority=9)
    other = jobs.push(b"other", priority=5)
    jobs.take().rollback(delay=0)
    jobs.await_ready(put, other)
    jobs.client.change(jobs.queue, put, priority=1)
    assert jobs.in_order(2) == [b"other", b"back"]


@beanstalkd("bury", "a buried job is not touched again until it is kicked: our reject")
def bury(jobs: Jobs) -> None:
    put = jobs.push()
    jobs.take().reject("no such cat")
    assert jobs.state(put) == "dead"
    assert not jobs.ready()
    assert jobs.show(put)["errors"][-1]["reason"] == "no such cat"


@beanstalkd("kick <bound>", "it makes no more than so many buried jobs ready, the oldest first: our redrive")
def kick(jobs: Jobs) -> None:
    buried = [jobs.push() for _ in range(3)]
    for job in jobs.reserve(3):
        job.reject()
    assert jobs.client.redrive(jobs.queue, limit=2)["moved"] == 2
    assert (jobs.ids("ready"), jobs.ids("dead")) == (buried[:2], buried[2:])


@beanstalkd("kick-job", "one job, buried or delayed, becomes ready by its id: our redrive and promote")
def kick_job(jobs: Jobs) -> None:
    buried = [jobs.push() for _ in range(2)]
    for _ in buried:
        jobs.take().reject()
    delayed = jobs.push(delay=LONG)
    jobs.client.redrive(jobs.queue, [buried[1]])
    jobs.client.promote(jobs.queue, delayed)
    assert sorted(jobs.ids("ready")) == sorted([buried[1], delayed])
    with pytest.raises(NotFound):
        jobs.client.promote(jobs.queue, buried[0])


@beanstalkd(
    "peek-ready, -delayed, -buried", "the next job of a state, the delayed one with the shortest delay"
)
def peek(jobs: Jobs) -> None:
    jobs.push(b"buried")
    jobs.take().reject()
    for payload, seconds in ((b"later", 2 * LONG), (b"sooner", LONG), (b"ready", 0)):
        jobs.push(payload, delay=seconds)
    seen = [jobs.client.peek(jobs.queue, state, 1)[0]["payload"] for state in ("ready", "scheduled", "dead")]
    assert seen == [b"ready", b"sooner", b"buried"]
    assert jobs.take().payload == b"ready"  # it was only looked at


@beanstalkd("stats-job", "id, state, priority, age, and how many times it was reserved: our show")
def stats_job(jobs: Jobs) -> None:
    put = jobs.push(priority=7)
    jobs.take().rollback(delay=0)
    jobs.take()
    shown = jobs.show(put)
    assert [shown[key] for key in ("id", "state", "priority", "attempts")] == [put, "reserved", 7, 2]
    assert shown["created_at"] <= shown["reserved_at"]


@beanstalkd("stats-tube", "how many jobs of a tube are ready, reserved, delayed, buried: our queues")
def stats_tube(jobs: Jobs) -> None:
    jobs.push()
    jobs.take().reject()
    jobs.push()
    jobs.take()
    jobs.push(delay=LONG)
    jobs.push()
    counts = jobs.counts()
    assert [counts[state] for state in ("ready", "reserved", "scheduled", "dead")] == [1, 1, 1, 1]


@beanstalkd("pause-tube", "no new job of the tube is reserved: our pause, which lasts until resume")
def pause_tube(jobs: Jobs) -> None:
    jobs.push()
    jobs.client.pause(jobs.queue)
    assert not jobs.ready()
    jobs.client.resume(jobs.queue)
    assert jobs.ready()


@beanstalkd("tubes", "a tube is made on demand when it is first used")
def tubes(jobs: Jobs) -> None:
    assert all(row["name"] != jobs.queue for row in jobs.client.queues())
    jobs.push()
    assert jobs.counts()["ready"] == 1


# ------------------------------------------------------------------- work queue


@work_queue("a process id in the job", "it can be seen which listener has picked a job up")
def holder(jobs: Jobs) -> None:
    pushed = jobs.push()
    jobs.take()
    assert jobs.show(pushed)["worker"]


@work_queue("createdOn, startTime, endTime", "a finished job tells its times until a TTL index removes it")
def times(jobs: Jobs) -> None:
    pushed = jobs.push(keep_done=LONG)
    jobs.take().commit()
    kept = jobs.show(pushed)
    assert kept["created_at"] <= kept["started_at"] <= kept["ended_at"] < kept["remove_at"]


# ------------------------------------------------------------------------------


@pytest.mark.parametrize("row", parameters(beanstalkd, work_queue))
def test_what_beanstalkd_documents_holds_here_too(row: Row, jobs: Jobs) -> None:
    row.check(jobs)
