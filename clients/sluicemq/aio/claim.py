"""Claims for asyncio: the jobs and verbs of those for threads, awaited."""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Self

from sluicemq import claim, job
from sluicemq.aio.asking import ask, run
from sluicemq.aio.job import Job
from sluicemq.aio.loop import LoopMailbox, Noticed, Room, disconnected, require
from sluicemq.aio.verbs import Awaited, Verb
from sluicemq.protocol import wire
from sluicemq.steps import Ask, Leave, Step, Steps, Until
from sluicemq.transport import questions
from sluicemq.transport.job_fetch import JobFetch

P = ParamSpec("P")


class ClaimedJob(Job, claim.ClaimedJob):
    """A job of a claim, settled by ``await job.commit()``, ``retry``, ``requeue``, ``reject``, ``forward``.

    Errors are those of :class:`sluicemq.ClaimedJob`. ``progress`` does not wait.
    """

    __slots__ = ()

    commit = Awaited(claim.ClaimedJob.commit)  # type: ignore[assignment]
    retry = Awaited(claim.ClaimedJob.retry)  # type: ignore[assignment]
    requeue = Awaited(claim.ClaimedJob.requeue)  # type: ignore[assignment]
    reject = Awaited(claim.ClaimedJob.reject)  # type: ignore[assignment]
    forward = Awaited(claim.ClaimedJob.forward)  # type: ignore[assignment]
    extend = Awaited(claim.ClaimedJob.extend)  # type: ignore[assignment]

    @property
    def _verbs(self) -> Self:
        return self

    async def _ask_how_to_end(self, size: int) -> bytes:
        answer: Any = self._statements_of_end(size)
        return bytes(await answer)


class FetchInLoop(JobFetch):
    """Takes some jobs once, for a task of one event loop: what :meth:`run` returns is awaited."""

    Popped = Job
    _open_mailbox = staticmethod(LoopMailbox)

    def run(self, steps: Steps[Any]) -> Any:
        """Return what does one step after the other; raises RuntimeError in another event loop."""
        loop = self._connection.mailbox.loop  # type: ignore[attr-defined]
        try:
            require(loop, "claim")
        except RuntimeError:
            if loop.is_closed():
                self.close()
            raise
        return run(steps, self.do)

    async def do(self, step: Step) -> Any:
        """Do one step."""
        match step:
            case Ask(verb, fields, repeat, timeout):
                return await ask(self, verb, *fields, timeout=timeout, repeat=repeat)
            case Until(holds, seconds):
                return await self._tasks.wait(holds, seconds)
            case Leave():
                return await disconnected(self._connection.close)

    def close(self, timeout: float | None = None) -> None:  # noqa: ARG002 - as for threads
        """Disconnect soon, in a thread."""
        threading.Thread(target=self._connection.close, name="sluicemq-close", daemon=True).start()

    def _changes(self) -> threading.Condition:
        self._tasks = Room()
        return Noticed(threading.Lock(), self._tasks.wake_first)


class ClaimInLoop(claim.Claim):
    """A claim of threads, whose jobs come in the event loop; its verbs return what is awaited."""

    _Job = ClaimedJob
    _Fetch = FetchInLoop

    def _report(self, job: job.Job, row: list[Any]) -> None:
        if self._fetch.has(job.epoch):
            self._fetch.put(questions.Question(wire.PROGRESS, [row], repeat=False))  # nobody waits for it


class Claim:
    """Jobs that were reserved together, made by ``client.jobs.reserve``; iterate over it, or use ``jobs``.

    >>> async with client.jobs.reserve("mail", 100, wait=5) as claim:
    ...     for job in claim:
    ...         await job.commit()

    Leaving its ``async with`` block, also by a cancel, or :meth:`requeue`, gives unsettled jobs back without
    counting the attempt. An exception that leaves the block rolls them back, as that of
    :class:`sluicemq.Claim` does.
    """

    def __init__(self, verbs: ClaimInLoop) -> None:
        self._verbs: Any = verbs

    extend = Awaited(claim.Claim.extend)
    commit = Awaited(claim.Claim.commit)
    requeue = Awaited(claim.Claim.requeue)
    close = Awaited(claim.Claim.close)

    @property
    def queue(self) -> str:
        """Return the queue of its jobs."""
        return self._verbs.queue  # type: ignore[no-any-return]

    @property
    def jobs(self) -> list[ClaimedJob]:
        """Return all jobs of the claim, settled or not."""
        return self._verbs.jobs  # type: ignore[no-any-return]

    @property
    def unsettled(self) -> list[ClaimedJob]:
        """Return the jobs that are still to be settled."""
        return self._verbs.unsettled  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[ClaimedJob]:
        return iter(self.jobs)

    async def __aiter__(self) -> AsyncIterator[ClaimedJob]:
        for reserved in self.jobs:
            yield reserved

    def __len__(self) -> int:
        return len(self.jobs)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        await self._verbs.leave(error)


class Reservation(Coroutine[Any, Any, Claim]):
    """A claim to come: ``async with client.jobs.reserve(...)``, or ``await client.jobs.reserve(...)``."""

    def __init__(self, filling: Coroutine[Any, Any, Claim]) -> None:
        self._filling = filling

    def __await__(self) -> Generator[Any, Any, Claim]:
        return self._filling.__await__()

    async def __aenter__(self) -> Claim:
        self._claim = await self
        return self._claim

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._claim.__aexit__(kind, error, trace)

    def send(self, value: Any) -> Any:
        """Go on, as a coroutine does."""
        return self._filling.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error in it, as in a coroutine."""
        return self._filling.throw(*error)

    def close(self) -> None:
        """End it, as a coroutine."""
        self._filling.close()


class Reserving(Verb, Generic[P]):
    """A verb that is awaited, or entered."""

    def __init__(self, verb: Callable[Concatenate[Any, P], claim.Claim]) -> None:
        super().__init__(verb)

    def _calling(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        async def fill(namespace: Any, /, *args: Any, **given: Any) -> Claim:
            return Claim(await verb(namespace._verbs, *args, **given))

        def call(*args: Any, **given: Any) -> Reservation:
            return Reservation(fill(*args, **given))

        functools.update_wrapper(fill, verb)  # the name that Python warns with
        return call

    def __get__(self, namespace: Any, _owner: Any = None) -> Callable[P, Reservation]:
        return super().__get__(namespace)  # type: ignore[no-any-return]
