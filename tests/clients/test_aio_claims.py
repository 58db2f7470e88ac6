"""Claims and pops for asyncio: those of threads, awaited, and what a cancel leaves."""

from __future__ import annotations

import asyncio
from typing import Any, assert_type

import pytest
from pymongo import AsyncMongoClient

from sluicemq import LeaseLostError, Requeue
from sluicemq.aio import Claim, ClaimedJob, Client, Job
from support.own_queue import SECONDS, OwnQueue
from support.traces import id_of, traced
from support.waiting import wait_until


def attempts(jobs: OwnQueue) -> dict[str, int | None]:
    """Return the deliveries of each ready job."""
    return {job.id: job.attempts for job in jobs.client.jobs.list(jobs.queue, limit=100)}


async def until(condition: Any) -> None:
    await asyncio.to_thread(wait_until, condition, SECONDS)


def test_the_jobs_of_a_claim_are_settled_each_in_its_way_and_the_rest_goes_back(jobs: OwnQueue) -> None:
    ids = [jobs.push(b"%d" % number) for number in range(6)]
    reply = jobs.producer.submit(jobs.queue, b"last", priority=0)

    async def main() -> None:
        async with Client(endpoint=jobs.endpoint) as client:
            async with client.jobs.reserve(jobs.queue, 7, wait=SECONDS) as claim:
                assert_type(claim, Claim)
                assert_type(claim.jobs, list[ClaimedJob])
                assert [job.payload async for job in claim] == [job.payload for job in claim]
                assert (len(claim), claim.queue) == (7, jobs.queue)
                await claim.extend("5m")
                await claim.jobs[0].retry("not now", delay="1h")
                await claim.jobs[1].reject("no cat")
                await claim.jobs[2].requeue(delay="1h")
                await claim.jobs[3].forward(f"{jobs.queue}-next")
                claim.jobs[6].progress(1, 2, "half")
                await claim.jobs[6].extend(60)
                await claim.jobs[6].commit(b"result")
                with pytest.raises(LeaseLostError, match="was settled before"):
                    await claim.jobs[6].commit()
                assert claim.unsettled == claim.jobs[4:6]
            async with await client.jobs.reserve(jobs.queue, 1) as claim:
                await claim.commit()
            while claim := await client.jobs.reserve(jobs.queue, 10):
                await claim.requeue()
                break
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    wait_until(lambda: attempts(jobs) == {ids[5]: 0})
    assert set(jobs.ids("scheduled")) == {ids[0], ids[2]}
    assert jobs.ids("dead") == [ids[1]]
    assert reply.result(SECONDS) == b"result"
    assert [job.id for job in jobs.client.jobs.list(f"{jobs.queue}-next")] == [ids[3]]


def test_what_leaves_the_block_decides_whether_an_attempt_counts(jobs: OwnQueue) -> None:
    failed, requeued, cancelled = (jobs.push(priority=priority) for priority in (9, 8, 7))

    async def out_of_time(reservation: Any) -> None:
        async with asyncio.timeout(None) as limit, reservation:
            limit.reschedule(0)
            await asyncio.sleep(SECONDS)

    async def main() -> None:
        async with Client(endpoint=jobs.endpoint) as client:
            with pytest.raises(ValueError, match="no cat"):
                async with client.jobs.reserve(jobs.queue, 1):
                    raise ValueError("no cat")
            await until(lambda: attempts(jobs).get(failed) == 1)
            await client.jobs.cancel(jobs.queue, failed)
            with pytest.raises(Requeue):
                async with client.jobs.reserve(jobs.queue, 1):
                    raise Requeue
            await until(lambda: requeued in attempts(jobs))
            with pytest.raises(TimeoutError):
                await out_of_time(client.jobs.reserve(jobs.queue, 2))

    asyncio.run(main())
    wait_until(lambda: attempts(jobs) == {requeued: 0, cancelled: 0})


def test_a_cancelled_reservation_gives_back_what_has_come_and_leaves_nothing_behind(jobs: OwnQueue) -> None:
    ids = [jobs.push() for _ in range(2)]

    async def main() -> None:
        async with Client(endpoint=jobs.endpoint) as client:
            waiting = asyncio.create_task(client.jobs.reserve(jobs.queue, 3, wait=SECONDS))
            await until(lambda: jobs.counts()["reserved"] == 2)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await until(lambda: attempts(jobs) == dict.fromkeys(ids, 0))
            async with asyncio.TaskGroup() as group:
                claims = [group.create_task(client.jobs.reserve(jobs.queue, 1, SECONDS)) for _ in range(2)]
            for claim in claims:
                await claim.result().commit()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    assert jobs.state(ids[0]) == jobs.state(ids[1]) == "gone"


def test_pops_take_jobs_at_most_once_and_cancelled_ones_take_no_more(jobs: OwnQueue, mongo_uri: str) -> None:
    for number in range(3):
        jobs.push(b"%d" % number)

    async def main(session: Any) -> None:
        async with Client(endpoint=jobs.endpoint) as client:
            popped = await client.jobs.pop(jobs.queue, 2, wait=SECONDS)
            assert [job.payload for job in popped] == [b"0", b"1"]
            job = popped[0]
            assert isinstance(job, Job)
            job.progress(1)
            for refused in (job.extend(5), job.commit_in(session)):
                with pytest.raises(LeaseLostError, match="was popped"):
                    await refused
            assert len(await client.jobs.pop(jobs.queue, 2)) == 1
            waiting = asyncio.create_task(client.jobs.pop(jobs.queue, 1, wait=SECONDS))
            await until(lambda: jobs.counts()["workers"] == 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await until(lambda: jobs.counts()["workers"] == 0)
            assert jobs.push() in attempts(jobs)
        assert len(asyncio.all_tasks()) == 1

    async def with_session() -> None:
        async with (
            AsyncMongoClient[dict[str, Any]](mongo_uri) as mongo,
            mongo.start_session() as session,
            await session.start_transaction(),
        ):
            await main(session)

    asyncio.run(with_session())


def test_a_claims_jobs_end_in_a_transaction(jobs: OwnQueue, database: str, mongo_uri: str) -> None:
    reply = jobs.producer.submit(jobs.queue, b"pay")

    async def main() -> None:
        async with (
            AsyncMongoClient[dict[str, Any]](mongo_uri) as mongo,
            Client(endpoint=jobs.endpoint) as client,
            client.jobs.reserve(jobs.queue, 1, SECONDS) as claim,
        ):
            async with mongo.start_session() as session, await session.start_transaction():
                await mongo[database]["paid"].insert_one({"job": claim.jobs[0].id}, session=session)
                await claim.jobs[0].commit_in(session, b"paid")
            await claim.jobs[0].commit()

    asyncio.run(main())
    assert reply.result(SECONDS) == b"paid"


def test_a_claim_is_of_one_loop_and_is_given_back_once_that_is_seen_to_be_closed(jobs: OwnQueue) -> None:
    jobs.push()

    async def reserve() -> Claim:
        async with Client(endpoint=jobs.endpoint) as client:
            return await client.jobs.reserve(jobs.queue, 1, SECONDS)

    async def commit() -> None:
        with pytest.raises(RuntimeError, match="this claim belongs to another event loop, which is closed"):
            await claim.commit()

    claim = asyncio.run(reserve())
    asyncio.run(commit())
    wait_until(lambda: jobs.ids("ready"))


def test_a_claim_and_its_verdicts_have_spans(jobs: OwnQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Client(endpoint=jobs.endpoint) as client, client.jobs.reserve(jobs.queue, 1) as claim:
            await claim.commit()

    with traced(monkeypatch) as spans:
        jobs.push()
        asyncio.run(main())
        sent = id_of(spans.one(f"send {jobs.queue}"))
        for name in ("receive", "commit"):
            (link,) = spans.one(f"{name} {jobs.queue}").links
            assert link.context.span_id == sent
