"""Tasks that do nothing, by one library: ``URL=... tasks_driver.py sluicemq|arq|taskiq JOBS``.

One process, one event loop. Prints a JSON object: tasks pushed in a second, each awaited until it is stored,
100 at a time; tasks done in a second by a worker of 100; milliseconds from a push to its handler, one by one.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

URL = os.environ["URL"]
CROWD = 100
SINGLE = 50
#: Seconds between two looks of arq. Its default is 0.5: at most 1,000 tasks/s, and 250 ms for one.
ARQ_POLL = 0.02


class Count:
    """Tasks that were handled."""

    def __init__(self) -> None:
        self.handled = 0
        self.wanted = 0
        self.reached = asyncio.Event()

    def want(self, count: int) -> None:
        self.handled, self.wanted = 0, count
        self.reached.clear()

    def add(self) -> None:
        self.handled += 1
        if self.handled == self.wanted:
            self.reached.set()


Push = Callable[[int], Awaitable[Any]]
Working = Callable[[], Any]


@asynccontextmanager
async def sluicemq(count: Count) -> AsyncIterator[tuple[Push, Working]]:
    from sluicemq import App  # noqa: PLC0415 - another library is not there

    app = App(endpoint=URL)

    @app.task(queue="bench")
    async def task(number: int) -> None:
        count.add()

    yield task.apush, lambda: app.aworker(concurrency=CROWD)
    await asyncio.to_thread(app.close)


@asynccontextmanager
async def arq(count: Count) -> AsyncIterator[tuple[Push, Working]]:
    from arq import create_pool  # noqa: PLC0415 - another library is not there
    from arq.connections import RedisSettings  # noqa: PLC0415 - another library is not there
    from arq.worker import Worker, func  # noqa: PLC0415 - another library is not there

    pool = await create_pool(RedisSettings.from_dsn(URL))

    async def task(_ctx: Any, number: int) -> None:
        count.add()

    async def push(number: int) -> None:
        await pool.enqueue_job("task", number)

    @asynccontextmanager
    async def working() -> AsyncIterator[None]:
        functions = [func(task, name="task", keep_result=0)]
        worker = Worker(
            functions,
            redis_pool=pool,
            max_jobs=CROWD,
            poll_delay=ARQ_POLL,
            handle_signals=False,
            log_results=False,
        )
        running = asyncio.create_task(worker.main())
        yield
        while not running.done():  # it may overlook one
            running.cancel()
            await asyncio.wait({running}, timeout=0.1)
        await asyncio.gather(*worker.tasks.values(), return_exceptions=True)

    yield push, working
    await pool.aclose()


@asynccontextmanager
async def taskiq(count: Count) -> AsyncIterator[tuple[Push, Working]]:
    from taskiq.receiver import Receiver  # noqa: PLC0415 - another library is not there
    from taskiq_redis import RedisStreamBroker  # noqa: PLC0415 - another library is not there

    broker = RedisStreamBroker(URL)
    broker.is_worker_process = True

    @broker.task
    async def task(number: int) -> None:
        count.add()

    await broker.startup()

    @asynccontextmanager
    async def working() -> AsyncIterator[None]:
        finish = asyncio.Event()
        receiver = Receiver(broker, max_async_tasks=CROWD, run_startup=False)
        running = asyncio.create_task(receiver.listen(finish))
        yield
        finish.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    yield task.kiq, working
    await broker.shutdown()


async def measure(system: Any, jobs: int) -> dict[str, float]:
    count = Count()
    async with system(count) as (push, working):
        await push(0)  # connects
        async with working():
            count.want(1)
            await push(0)
            await count.reached.wait()
        began = perf_counter()
        left = iter(range(jobs))

        async def push_some() -> None:
            for number in left:
                await push(number)

        await asyncio.gather(*(push_some() for _ in range(CROWD)))
        figures = {"push": jobs / (perf_counter() - began)}
        count.want(jobs)
        began = perf_counter()
        async with working():
            await count.reached.wait()
            figures["drain"] = jobs / (perf_counter() - began)
            times = []
            for number in range(SINGLE):
                count.want(1)
                began = perf_counter()
                await push(number)
                await count.reached.wait()
                times.append(perf_counter() - began)
        figures["p50"] = statistics.median(times) * 1000
    return figures


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(globals()[sys.argv[1]], int(sys.argv[2])))), flush=True)
    os._exit(0)  # what a library leaves behind is not measured
