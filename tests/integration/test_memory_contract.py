"""A broker in memory does what a real one does: each test runs over both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from secrets import token_hex
from typing import Any

import pytest

from sluicemq import (
    PREVIOUS,
    App,
    BadHeadersError,
    BadQueueError,
    Client,
    ConflictError,
    DeadError,
    DuplicateError,
    ExpiredError,
    FanOut,
    Forward,
    HeldError,
    Job,
    LeaseLostError,
    NotFoundError,
    PausedError,
    Producer,
    Publisher,
    Reader,
    Reject,
    Requeue,
    Retry,
    SluiceError,
    Subscription,
    TimeoutError,
    Worker,
    aio,
    chain,
    group,
)
from sluicemq.testing import MemoryBroker
from support.broker_under_test import BrokerUnderTest
from support.own_queue import SECONDS, quick_broker
from support.waiting import wait_until


class Place:
    """A broker of either kind, and a queue of the test's own there."""

    def __init__(self, endpoint: str, pass_time: Callable[[float], None]) -> None:
        self.endpoint = endpoint
        self.pass_time = pass_time
        """Let time pass for jobs; a real broker's passes by itself."""
        self.producer = Producer(endpoint=endpoint)
        self.client = Client(endpoint=endpoint)
        self.queue = f"q{token_hex(6)}"

    def push(self, payload: bytes = b"job", *, to: str | None = None, **options: Any) -> str:
        receipt = self.producer.push(to or self.queue, payload, **options)
        receipt.wait(SECONDS)
        return receipt.id

    def reserve(self, limit: int = 1, *, of: str | None = None) -> Any:
        """Reserve jobs of a queue, once it is there."""
        queue = of or self.queue
        wait_until(lambda: any(listed.name == queue for listed in self.client.queues.list()))
        return self.client.jobs.reserve(queue, limit, SECONDS)

    def shown(self, job_id: str) -> Any:
        return self.client.jobs.get(self.queue, job_id)

    def fail(self, job_id: str, count: int = 1) -> None:
        """Have a job fail so often."""
        for _ in range(count):
            (job,) = self.reserve()
            assert job.id == job_id
            job.rollback("it fails")
            self.pass_time(3600.0)

    def ids(self, state: Any) -> list[str]:
        return [job.id for job in self.client.jobs.list(self.queue, state, 100)]

    def working(self, handler: Callable[[Job], Any], queue: str | None = None, **options: Any) -> Worker:
        return Worker(queue or self.queue, handler, endpoint=self.endpoint, **options)

    def close(self) -> None:
        self.producer.close()
        self.client.close()


@pytest.fixture(scope="module")
def real_broker(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with quick_broker(mongo_uri) as broker:
        yield broker


@pytest.fixture(params=["memory", "real"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "real":
        broker: BrokerUnderTest = request.getfixturevalue("real_broker")
        found = Place(broker.doors["smq"], lambda _seconds: None)
        yield found
        found.close()
        return
    with MemoryBroker() as memory:
        memory.configure("*", backoff="none")
        found = Place(memory.endpoint, memory.advance)
        yield found
        found.close()


# ---------------------------------------------------------------------- pushes


def test_job_that_is_there_is_not_stored_twice(place: Place) -> None:
    first = place.producer.push(place.queue, b"1", id="one")
    first.wait(SECONDS)  # of two that are under way at once either may be the first
    second = place.producer.push(place.queue, b"2", id="one")
    second.wait(SECONDS)
    assert (first.existed, second.existed, second.state) == (False, True, "ready")
    assert place.shown("one").payload == b"1"


def test_duplicate_within_its_window_names_the_first_job(place: Place) -> None:
    first = place.push(dedupe_id="order 7")
    with pytest.raises(DuplicateError) as refused:
        place.push(dedupe_id="order 7")
    assert refused.value.id == first
    place.push(dedupe_id="order 8")


@pytest.mark.parametrize(
    ("options", "error"),
    [({"headers": {"a": object()}}, Exception), ({"delay": 60, "ttl": 5}, BadHeadersError)],
)
def test_refused_jobs(place: Place, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        place.push(**options)
    assert place.push()


def test_wrong_queue_name(place: Place) -> None:
    with pytest.raises(BadQueueError):
        place.push(to="no/name")


def test_shown_job(place: Place) -> None:
    """All that is said at the push is shown as given."""
    job_id = place.push(b"abc", priority=7, delay=1000, max_attempts=3, keep_done=60, headers={"a": 1})
    found = place.shown(job_id)
    said = (found.state, found.payload, found.priority, found.max_attempts, found.headers, found.keep_done)
    assert said == ("scheduled", b"abc", 7, 3, {"a": 1}, 60.0)
    assert found.attempts in (0, None)
    assert found.eligible_at - found.created_at == pytest.approx(1000, abs=2)


# ---------------------------------------------------------------------- order


def test_order_is_priority_then_acceptance(place: Place) -> None:
    ids = [place.push(priority=number) for number in (1, 5, 5, 9)]
    got = [job.id for _ in ids for job in place.reserve()]
    assert got == [ids[3], ids[1], ids[2], ids[0]]


def test_delayed_job_comes_when_it_is_due(place: Place) -> None:
    later, now = place.push(delay=0.05), place.push()
    place.pass_time(1.0)
    assert {job.id for job in place.reserve(2)} == {later, now}


def test_promoted_job_is_ready_and_a_changed_one_has_its_priority(place: Place) -> None:
    late, other = place.push(delay=1000), place.push()
    place.client.jobs.promote(place.queue, late)
    place.client.jobs.change(place.queue, late, priority=9)
    assert [job.id for job in place.reserve(2)] == [late, other]


def test_jobs_of_a_group_come_one_at_a_time(place: Place) -> None:
    first, second = place.push(group="a"), place.push(group="a")
    other = place.push(group="b")
    (one, two) = place.reserve(2)
    assert {one.id, two.id} == {first, other}
    assert place.ids("waiting") == [second]
    for job in (one, two):
        job.commit()
    assert [job.id for job in place.reserve()] == [second]


# ---------------------------------------------------------------------- verdicts


def test_result_of_a_worker(place: Place) -> None:
    with place.working(lambda job: job.payload * 2):
        assert place.producer.call(place.queue, b"ab", SECONDS) == b"abab"


def test_results_are_kept_for_who_asks_later(place: Place) -> None:
    job_id = place.push(reply="result")
    with pytest.raises(TimeoutError):
        place.client.jobs.result(place.queue, job_id)
    (job,) = place.reserve()
    job.commit(b"done")
    assert place.client.jobs.result(place.queue, job_id, SECONDS) == b"done"
    with pytest.raises(NotFoundError):
        place.client.jobs.result(place.queue, "nobody")


def test_failing_job_is_a_dead_letter_with_its_reasons(place: Place) -> None:
    job_id = place.push(max_attempts=3, reply="result")
    place.fail(job_id, 3)
    found = place.shown(job_id)
    assert found.state == "dead"
    assert [(error.attempt, error.reason) for error in found.errors] == [(n, "it fails") for n in (1, 2, 3)]
    with pytest.raises(DeadError, match="it fails"):
        place.client.jobs.result(place.queue, job_id)
    assert place.client.dead_letters.count(place.queue).count == 1


@pytest.mark.parametrize(
    ("error", "attempt"), [(Retry("again", delay=0.01), 2), (Requeue(delay=0.01), 1), (ValueError("no"), 2)]
)
def test_handlers_that_want_the_job_again(place: Place, error: Exception, attempt: int) -> None:
    attempts: list[int] = []

    def handler(job: Job) -> bytes:
        attempts.append(job.attempt)
        if len(attempts) == 1:
            raise error
        return b"at last"

    with place.working(handler):
        reply = place.producer.submit(place.queue, b"")
        wait_until(lambda: attempts)
        wait_until(lambda: _passed(place) or reply.done())
        assert reply.result(SECONDS) == b"at last"
    assert attempts == [1, attempt]


def _passed(place: Place) -> bool:
    place.pass_time(1.0)
    return False


def test_rejected_jobs_are_redriven_and_discarded(place: Place) -> None:
    reason = "bad"

    def reject(_job: Job) -> bytes:
        raise Reject(reason)

    with place.working(reject):
        first, second = place.push(), place.push()
        wait_until(lambda: len(place.ids("dead")) == 2)
    done = place.client.dead_letters.redrive(place.queue, ids=[first]).result(SECONDS)
    assert (done.moved, done.left) == (1, 0)
    (job,) = place.reserve()
    assert (job.id, job.attempt) == (first, 1)
    assert [error.reason for error in place.shown(first).errors] == ["bad", "redriven"]
    assert place.client.dead_letters.by_reason(place.queue)[0].reason == "bad"
    assert place.client.dead_letters.discard(place.queue).result(SECONDS) == 1
    assert place.ids("dead") == []
    assert second not in place.ids("ready")


def test_void_receipt_is_refused(place: Place) -> None:
    job_id = place.push(visibility_timeout=1.0, max_attempts=3)
    claim = place.reserve()
    place.pass_time(1.5)
    (again,) = place.reserve()
    assert (again.id, again.attempt) == (job_id, 2)
    with pytest.raises(LeaseLostError):
        claim.jobs[0].commit()
    again.commit()


def test_extended_job_is_held_on(place: Place) -> None:
    place.push(visibility_timeout=30.0)
    (job,) = place.reserve()
    job.extend(1000)
    place.pass_time(100.0)
    job.commit()


def test_progress_is_shown(place: Place) -> None:
    job_id = place.push()
    (job,) = place.reserve()
    job.progress(3, 10, "on the way")
    found = wait_until(lambda: place.shown(job_id).progress)
    assert (found.done, found.total, found.note) == (3, 10, "on the way")


def test_popped_job_is_gone(place: Place) -> None:
    job_id = place.push(b"pop")
    assert [(job.id, job.payload) for job in place.client.jobs.pop(place.queue, 2)] == [(job_id, b"pop")]
    assert place.client.queues.get(place.queue).ready == 0


def test_expired_job(place: Place) -> None:
    job_id = place.push(ttl=0.05, reply="result")
    place.pass_time(1.0)

    def result() -> Any:
        try:
            return place.client.jobs.result(place.queue, job_id)
        except TimeoutError:
            return None

    with pytest.raises((ExpiredError, NotFoundError)):
        wait_until(result)
    assert place.ids("ready") == []


# ---------------------------------------------------------------------- flows


def test_forwarded_job_has_its_result_from_the_next_queue(place: Place) -> None:
    onward = f"{place.queue}.next"
    with (
        place.working(lambda _job: Forward(onward, b"moved", priority=3)),
        place.working(lambda job: job.payload + b"!", queue=onward),
    ):
        assert place.producer.call(place.queue, b"", SECONDS) == b"moved!"


def test_forwarded_job_keeps_what_is_not_said(place: Place) -> None:
    onward = f"{place.queue}.next"
    job_id = place.push(b"same", headers={"a": 1}, priority=4)
    with place.working(lambda _job: Forward(onward)):
        (job,) = place.reserve(of=onward)
    assert (job.id, job.payload, job.headers, job.priority, job.attempt) == (job_id, b"same", {"a": 1}, 4, 1)


def test_parent_is_done_when_its_children_are(place: Place) -> None:
    children = f"{place.queue}.children"

    def split(_job: Job) -> FanOut:
        return FanOut(Forward(children, b"1"), Forward(children), result=b"both")

    with place.working(split):
        reply = place.producer.submit(place.queue, b"whole")
        parent = reply.receipt.id
        claim = place.reserve(2, of=children)
        assert place.ids("waiting") == [parent]
        found = place.shown(parent).children
        assert found is not None
        assert (found.total, found.left) == (2, 2)
        assert [(job.id, job.payload) for job in claim] == [(f"{parent}.1", b"1"), (f"{parent}.2", b"whole")]
        for job in claim:
            job.commit()
        assert reply.result(SECONDS) == b"both"


def test_job_that_allows_failures_goes_on_without_the_children_that_fail(place: Place) -> None:
    children = f"{place.queue}.children"

    def book(job: Job) -> FanOut | bytes:
        if job.children is None:
            return FanOut(*(Forward(children) for _ in range(3)), join=True, allow_failures=True)
        return b"+".join(child.result or child.error.encode() for child in job.children)

    with place.working(book):
        reply = place.producer.submit(place.queue, b"x")
        first, second = place.reserve(2, of=children)
        first.reject("no ink")
        second.commit(b"page")
        place.client.jobs.cancel(children, f"{reply.receipt.id}.3")
        assert reply.result(SECONDS) == b"no ink+page+it was cancelled"
    assert place.client.jobs.get(children, first.id).parent is None


def test_job_is_delivered_once_more_with_what_its_children_return(place: Place) -> None:
    children = f"{place.queue}.children"

    def book(job: Job) -> FanOut | bytes:
        if job.children is None:
            return FanOut(*(Forward(children, b"%d" % number) for number in range(3)), join=True)
        return b"+".join(child.result or b"" for child in job.children)

    with place.working(book), place.working(lambda job: job.payload * 2, queue=children):
        assert place.producer.call(place.queue, b"", SECONDS) == b"00+11+22"


def test_parent_goes_on_when_its_failed_child_is_redriven(place: Place) -> None:
    children = f"{place.queue}.children"
    with place.working(lambda _job: FanOut(Forward(children), result=b"all")):
        parent = place.push(keep_done=60)
        (job,) = place.reserve(of=children)
        job.reject("broken")
        wait_until(lambda: place.ids("dead") == [parent])
        for queue in (children, place.queue):
            assert place.client.dead_letters.redrive(queue).result(SECONDS).moved == 1
        found = place.shown(parent)
        reason = "redriven: it waits for the children that are left"
        assert (found.state, found.errors[-1].reason) == ("waiting", reason)
        (job,) = place.reserve(of=children)
        assert job.attempt == 1
        job.commit()
        wait_until(lambda: place.ids("done") == [parent])
        assert place.client.jobs.get(place.queue, parent).result == b"all"


def test_parent_of_a_dead_child_is_dead(place: Place) -> None:
    children = f"{place.queue}.children"
    with place.working(lambda _job: FanOut(Forward(children))):
        reply = place.producer.submit(place.queue, b"")
        (job,) = place.reserve(of=children)
        job.reject("broken")
        with pytest.raises(DeadError, match="broken"):
            reply.result(SECONDS)


def test_tasks_in_chains_and_groups(place: Place) -> None:
    app = App(endpoint=place.endpoint)
    done: list[int] = []

    @app.task(queue=place.queue)
    def add(a: int, b: int = 1) -> int:
        done.append(a)
        return a + b

    @app.task(queue=place.queue)
    def total(results: list[int]) -> int:
        return sum(results)

    with app, app.worker():
        assert add.call(1, b=2) == 3
        assert chain(add.s(1), add.s(PREVIOUS, 5)).call(SECONDS) == 7
        group(add.s(10), add.s(20)).call(SECONDS)
        assert sorted(done[-2:]) == [10, 20]
        assert group(add.s(1), add.s(2)).then(total.s(PREVIOUS)).call(SECONDS) == 5


# ---------------------------------------------------------------------- administration


def test_paused_queue(place: Place) -> None:
    place.push()
    assert place.client.queues.pause(place.queue) == ["delivery"]
    assert place.client.queues.pause(place.queue, "intake") == ["delivery", "intake"]
    with pytest.raises(PausedError):
        place.push()
    assert place.client.jobs.pop(place.queue) == []
    place.client.queues.resume(place.queue, "intake")
    assert place.client.queues.resume(place.queue) == []
    assert len(place.reserve()) == 1


def test_counts_cancel_purge_and_delete(place: Place) -> None:
    first, *_ = [place.push() for _ in range(3)]
    place.push(delay=1000)
    place.client.jobs.cancel(place.queue, first)
    with pytest.raises(NotFoundError):
        place.client.jobs.cancel(place.queue, first)
    row = wait_until(lambda: (found := place.client.queues.get(place.queue)).ready == 2 and found)
    assert (row.ready, row.scheduled, row.dead, row.reserved) == (2, 1, 0, 0)
    assert place.client.queues.purge(place.queue, "ready").result(SECONDS) == 2
    assert place.client.queues.delete(place.queue).result(SECONDS) == 1
    with pytest.raises(NotFoundError):
        place.client.queues.get(place.queue)


def test_schedules(place: Place) -> None:
    name = f"s{token_hex(4)}"
    row = place.client.schedules.add(name, place.queue, b"now", every=3600, priority=2)
    assert (row.every, row.queue, row.options, row.paused) == (3600.0, place.queue, {"priority": 2}, False)
    again = place.client.schedules.add(name, place.queue, b"now", every=3600, priority=2)
    assert again.next_at == row.next_at
    assert place.client.schedules.run(name).startswith(f"{name}@")
    (job,) = place.reserve()
    assert (job.payload, job.priority) == (b"now", 2)
    place.client.schedules.pause(name)
    assert place.client.schedules.get(name).paused
    place.client.schedules.resume(name)
    place.client.schedules.delete(name)
    with pytest.raises(NotFoundError):
        place.client.schedules.get(name)
    with pytest.raises(SluiceError):
        place.client.schedules.add(name, place.queue, b"", cron="61 * * * *")


# ---------------------------------------------------------------------- streams


def test_stream_is_read_and_waited_for(place: Place) -> None:
    stream = place.queue
    with Publisher(endpoint=place.endpoint) as publisher:
        numbers = [publisher.publish(stream, topic, topic.encode()).wait(SECONDS) for topic in ("a.x", "b")]
        assert numbers == [1, 2]
        with Reader(stream, topics=["a.*"], follow=True, endpoint=place.endpoint) as reader:
            messages = iter(reader)
            assert next(messages).payload == b"a.x"
            publisher.publish(stream, "b", b"no").wait(SECONDS)
            publisher.publish(stream, "a.y", b"yes").wait(SECONDS)
            assert (next(messages).sequence) == 4
        again = publisher.publish(stream, "a", b"", id="once")
        assert again.wait(SECONDS) == publisher.publish(stream, "a", b"", id="once").wait(SECONDS) == 5
        with pytest.raises(ConflictError) as refused:
            publisher.publish(stream, "a", b"", expect=2).wait(SECONDS)
        assert refused.value.last == 5
    assert place.client.streams.get(stream).messages == 5


def test_subscription_goes_on_at_its_watermark(place: Place) -> None:
    stream = place.queue
    got: list[bytes] = []
    with Publisher(endpoint=place.endpoint) as publisher:
        for payload in (b"1", b"2"):
            publisher.publish(stream, "t", payload).wait(SECONDS)

        def run(**options: Any) -> None:
            Subscription(
                stream, "books", lambda batch: got.extend(job.payload for job in batch),
                follow=False, endpoint=place.endpoint, **options,
            ).run()  # fmt: skip

        run()
        publisher.publish(stream, "t", b"3").wait(SECONDS)
        run()
    assert got == [b"1", b"2", b"3"]
    (row,) = place.client.subscriptions.list(stream)
    assert (row.watermark, row.behind) == (3, 0)
    entered, leave = threading.Event(), threading.Event()

    def hold(_batch: Any) -> None:
        entered.set()
        leave.wait(SECONDS)

    with Subscription(stream, "held", hold, endpoint=place.endpoint) as holder:
        assert holder is not None
        entered.wait(SECONDS)
        with pytest.raises(HeldError):
            Subscription(stream, "held", hold, kind="rebuild", wait=False, endpoint=place.endpoint).run()
        leave.set()


# ---------------------------------------------------------------------- asyncio


def test_asyncio(place: Place) -> None:
    async def double(job: aio.Job) -> bytes:
        await asyncio.sleep(0)
        return job.payload * 2

    async def main() -> bytes:
        async with (
            aio.Worker(place.queue, double, endpoint=place.endpoint),
            aio.Producer(endpoint=place.endpoint) as producer,
        ):
            return await producer.call(place.queue, b"ab", SECONDS)

    assert asyncio.run(main()) == b"abab"
