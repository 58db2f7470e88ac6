"""Claims and pops of the library, over real sockets: how many, by whom, and what is left when they end."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

import pytest

from sluicemq import Client, Job, LeaseLostError, Producer, Worker
from sluicemq.protocol import wire
from support.broker_under_test import BrokerUnderTest, serving, spare
from support.waiting import wait_until

SECONDS = 60.0


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, spare(pop=1), poll=0.5, stop_timeout=3) as broker:
        yield broker


@pytest.fixture
def queue(broker: BrokerUnderTest) -> str:
    name = token_hex(6)
    broker.make(name)
    return name


def push(broker: BrokerUnderTest, queue: str, count: int, **options: Any) -> list[str]:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        jobs = [b"%d" % number for number in range(count)]
        return [receipt.id for receipt in producer.push_many(queue, jobs, **options)]


def attempts(client: Client, queue: str) -> list[int]:
    return [job["attempts"] for job in client.peek(queue)]


# --------------------------------------------------------------------- claims


def test_a_claim_has_what_lies_ready_at_once(broker: BrokerUnderTest, client: Client, queue: str) -> None:
    ids = push(broker, queue, 30)
    with client.jobs.reserve(queue, 12) as claim:
        assert [job.id for job in claim] == ids[:12]
        assert [job.payload for job in claim.jobs] == [b"%d" % number for number in range(12)]
        claim.commit()
        assert claim.unsettled == []
    assert broker.counts(queue) == {"ready": 18}


def test_a_claim_on_an_empty_queue_is_empty(client: Client, queue: str) -> None:
    with client.jobs.reserve(queue, 5) as claim:
        assert len(claim) == 0


def test_one_claim_after_another_empties_a_queue(broker: BrokerUnderTest, client: Client, queue: str) -> None:
    ids = push(broker, queue, 50)
    seen: list[str] = []
    while claim := client.jobs.reserve(queue, 4):
        seen += [job.id for job in claim]
        claim.commit()
    assert sorted(seen) == sorted(ids)


def test_a_claim_waits_for_jobs_up_to_its_time(broker: BrokerUnderTest, client: Client, queue: str) -> None:
    claims = []
    waiting = threading.Thread(target=lambda: claims.append(client.jobs.reserve(queue, 3, wait=SECONDS)))
    waiting.start()
    wait_until(lambda: any(listed.name == queue and listed.workers for listed in client.queues.list()))
    ids = push(broker, queue, 3)
    waiting.join(SECONDS)
    with claims[0] as claim:
        assert [job.id for job in claim] == ids


def test_what_comes_after_a_full_claim_is_others(broker: BrokerUnderTest, client: Client, queue: str) -> None:
    push(broker, queue, 2)
    with client.jobs.reserve(queue, 1) as first, client.jobs.reserve(queue, 5) as second:
        assert (len(first), len(second)) == (1, 1)
        push(broker, queue, 1)
        with client.jobs.reserve(queue, 5) as third:
            assert len(third) == 1
            first.commit()  # makes no room: its credit was withdrawn
            push(broker, queue, 1)
            broker.await_count(queue, "ready", 1)  # held for a moment, perhaps, as there are workers
            assert broker.counts(queue) == {"ready": 1, "reserved": 2}


def test_leaving_a_claim_gives_back_what_is_unsettled_and_counts_no_attempt(
    broker: BrokerUnderTest, client: Client, queue: str
) -> None:
    ids = push(broker, queue, 4)
    with client.jobs.reserve(queue, 4) as claim:
        claim.jobs[0].commit()
        claim.jobs[1].rollback("not now", delay=60)
        claim.jobs[2].reject("no cat")
    broker.await_count(queue, "ready", 1)
    assert broker.counts(queue) == {"ready": 1, "scheduled": 1, "dead": 1}
    assert [(job["id"], job["attempts"]) for job in client.peek(queue)] == [(ids[3], 0)]
    assert broker.dead_letter(queue)["reason"] == "no cat"


def test_a_job_of_a_claim_commits_a_result(broker: BrokerUnderTest, client: Client, queue: str) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        reply = producer.submit(queue, b"2")
        with client.jobs.reserve(queue, 1, wait=SECONDS) as claim:
            claim.jobs[0].commit(b"4")
        assert reply.result(SECONDS) == b"4"


def test_one_renewal_keeps_all_jobs_of_a_claim_beyond_their_visibility_timeout(
    broker: BrokerUnderTest, client: Client, queue: str
) -> None:
    # Given two claims of jobs that must be settled soon, one of them renewed
    push(broker, queue, 6, visibility_timeout=3)
    before = broker.counter("timed_out")
    with client.jobs.reserve(queue, 3) as renewed:
        renewed.extend(60)
        forgotten = client.jobs.reserve(queue, 3)
        # When the time is over, then the others are lost, and these still the claim's
        wait_until(lambda: broker.counter("timed_out") >= before + 3)
        renewed.commit()
        with pytest.raises(LeaseLostError, match=r"3 of 3 jobs|the claim is lost"):
            forgotten.extend(60)
        assert forgotten.unsettled == []
    broker.await_count(queue, "ready", 3)


def test_a_job_is_settled_once(broker: BrokerUnderTest, client: Client, queue: str) -> None:
    push(broker, queue, 1)
    with client.jobs.reserve(queue, 1) as claim:
        claim.jobs[0].commit()
        with pytest.raises(LeaseLostError, match="was settled before"):
            claim.jobs[0].commit()


def test_a_dead_programs_claim_goes_to_others(broker: BrokerUnderTest, client: Client, queue: str) -> None:
    push(broker, queue, 2)
    program = "import sys; from sluicemq import Client; print(len(Client(sys.argv[1]).reserve(*eval(sys.argv[2]))), flush=True); sys.stdin.read()"  # noqa: E501
    command = [sys.executable, "-c", program, broker.doors["smq"], repr((queue, 2))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"2\n"
        finally:
            process.kill()
    broker.await_count(queue, "ready", 2)
    with client.jobs.reserve(queue, 1, wait=SECONDS) as other:
        assert len(other) == 1


def test_a_claim_of_a_lost_connection_says_that_it_is_lost(mongo_uri: str, queue: str) -> None:
    with serving(mongo_uri, [], lease=1) as own, Client(endpoint=own.doors["smq"]) as client:
        push(own, queue, 2)
        with client.jobs.reserve(queue, 2) as claim:
            own.process.kill()
            own.process.restart()
            client.ping(SECONDS)
            with pytest.raises(LeaseLostError, match="the claim is lost"):
                claim.jobs[0].commit()
            with pytest.raises(LeaseLostError):
                claim.commit() if claim.unsettled else claim.jobs[1].commit()


def test_a_queue_of_ended_claims_can_be_deleted(broker: BrokerUnderTest, client: Client, queue: str) -> None:
    push(broker, queue, 1)
    with client.jobs.reserve(queue, 1) as claim:
        claim.commit()
    wait_until(lambda: broker.workers(queue) == 0)
    client.queues.delete(queue).result()


@pytest.mark.parametrize("limit", [0, 1001])
def test_a_limit_out_of_bounds_is_refused(client: Client, queue: str, limit: int) -> None:
    with pytest.raises(ValueError, match="1 to 1000"):
        client.jobs.reserve(queue, limit)


# ----------------------------------------------------------------------- pops


def test_popped_jobs_are_gone_when_they_come(broker: BrokerUnderTest, client: Client, queue: str) -> None:
    ids = push(broker, queue, 30)
    popped = client.jobs.pop(queue, 12)
    assert [job.id for job in popped] == ids[:12]
    assert [job.payload for job in popped] == [b"%d" % number for number in range(12)]
    broker.await_count(queue, "ready", 18)  # what was held beyond them goes back
    assert broker.counts(queue) == {"ready": 18}
    with pytest.raises(LeaseLostError, match="popped"):
        popped[0].extend(5)


def test_a_pop_takes_no_more_than_asked_for(broker: BrokerUnderTest, client: Client, queue: str) -> None:
    taken: list[Job] = []

    def take() -> None:
        while len(taken) < 400:
            got = client.jobs.pop(queue, 7, wait=1)
            assert len(got) <= 7
            taken.extend(got)

    takers = [threading.Thread(target=take) for _ in range(2)]
    for taker in takers:
        taker.start()
    pushed = push(broker, queue, 400)
    for taker in takers:
        taker.join(60)
    wait_until(lambda: not broker.counts(queue))
    assert sorted(job.id for job in taken) == sorted(pushed)


def test_a_pop_of_an_empty_queue_is_empty(client: Client, queue: str) -> None:
    assert client.jobs.pop(queue, 5) == []


def test_credit_to_pop_is_used_up_and_more_is_added(broker: BrokerUnderTest, queue: str) -> None:
    library = broker.smq()
    push(broker, queue, 10)
    library.ask(wire.READY, queue, 2, {"pop": True})
    assert [row[2] for row in library.delivery()] == [b"0", b"1"]
    library.ask(wire.READY, queue, 1, {"pop": True})
    assert [row[2] for row in library.delivery()] == [b"2"]
    assert sum(broker.counts(queue).values()) == 7


def test_a_session_can_not_both_pop_and_reserve_of_one_queue(broker: BrokerUnderTest, queue: str) -> None:
    library = broker.smq()
    library.ask(wire.READY, queue, 1)
    answer = library.ask(wire.READY, queue, 1, {"pop": True})
    assert answer.fields[0] == "BAD_FRAMES"
    assert library.ask(wire.READY, queue, 1, {"pop": 1}).fields[0] == "BAD_FRAMES"


@contextmanager
def popping(broker: BrokerUnderTest, queue: str, handler: object, **options: int) -> Iterator[Worker]:
    worker = Worker(queue, handler, pop=True, **options, endpoint=broker.doors["smq"])  # type: ignore[arg-type]
    with worker:
        yield worker


def test_a_popping_worker_has_each_job_once_and_settles_nothing(broker: BrokerUnderTest, queue: str) -> None:
    seen: list[bytes] = []
    pushed = push(broker, queue, 2000)
    with popping(broker, queue, lambda job: seen.append(job.payload), prefetch=100) as worker:
        wait_until(lambda: len(seen) == len(pushed))
    assert sorted(seen) == sorted(b"%d" % number for number in range(2000))
    assert not broker.counts(queue)
    assert worker.failed == 0


def test_a_popped_job_whose_handler_raises_is_counted_logged_and_gone(
    broker: BrokerUnderTest, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    (job_id,) = push(broker, queue, 1)

    def handler(_job: Job) -> None:
        raise ValueError("no cat")

    with popping(broker, queue, handler) as worker:
        wait_until(lambda: worker.failed == 1)
    assert not broker.counts(queue)
    assert f"no cat'; job {job_id} was popped, so it is lost" in caplog.text


def test_a_popping_worker_has_no_more_jobs_than_its_prefetch(broker: BrokerUnderTest, queue: str) -> None:
    push(broker, queue, 10)
    running, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    def handler(job: Job) -> None:
        seen.append(job.id)
        running.set()
        assert go_on.wait(SECONDS)

    with popping(broker, queue, handler, prefetch=3):
        assert running.wait(SECONDS)
        wait_until(lambda: sum(broker.counts(queue).values()) == 7)
        assert broker.smq().ask(wire.PING).verb == wire.OK
        assert sum(broker.counts(queue).values()) == 7
        go_on.set()
        wait_until(lambda: len(seen) == 10)


def test_a_popping_worker_that_stops_works_off_what_has_come(broker: BrokerUnderTest, queue: str) -> None:
    push(broker, queue, 10)
    seen: list[bytes] = []
    running, go_on = threading.Event(), threading.Event()

    def handler(job: Job) -> None:
        running.set()
        assert go_on.wait(SECONDS)
        seen.append(job.payload)

    with popping(broker, queue, handler, prefetch=4) as worker:
        assert running.wait(SECONDS)
        wait_until(lambda: sum(broker.counts(queue).values()) == 6)
        stopping = threading.Thread(target=worker.stop)
        stopping.start()
        go_on.set()
        stopping.join(SECONDS)
    assert len(seen) + sum(broker.counts(queue).values()) == 10
    assert len(seen) >= 4
    assert worker.failed == 0


# --------------------------------------------------------------------- extend


def test_a_handler_that_extends_keeps_its_job_for_longer(broker: BrokerUnderTest, queue: str) -> None:
    # Given a job whose handler asks for more time, and then another one, which both run longer than they may
    before = broker.counter("timed_out")
    extended = threading.Event()
    seen: list[tuple[bytes, int]] = []

    def handler(job: Job) -> None:
        seen.append((job.payload, job.attempt))
        if job.attempt == 1:
            if not extended.is_set():
                job.extend(1000)
                extended.set()
            wait_until(lambda: broker.counter("timed_out") >= before + 1)

    with (
        Worker(queue, handler, prefetch=2, concurrency=2, endpoint=broker.doors["smq"]) as worker,
        Producer(endpoint=broker.doors["smq"]) as producer,
    ):
        producer.push(queue, b"extended", visibility_timeout=3)
        assert extended.wait(SECONDS)
        producer.push(queue, b"other", visibility_timeout=3)
        # Then only the other one is delivered again
        wait_until(lambda: len(seen) == 3 and not broker.counts(queue))
    assert sorted(seen) == [(b"extended", 1), (b"other", 1), (b"other", 2)]
    assert worker.late == 1
