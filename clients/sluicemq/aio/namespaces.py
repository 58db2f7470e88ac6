"""The namespaces of an async client: the verbs of those for threads, awaited.

Each line makes a verb of one for threads, which is steps only (:mod:`sluicemq.steps`): its arguments, checks
and what it returns are stated there, and checkers of types read them through these lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from sluicemq.aio.asking import ask, run
from sluicemq.aio.claim import ClaimInLoop, FetchInLoop, Reserving
from sluicemq.aio.loop import LoopMailbox
from sluicemq.aio.verbs import Awaited, Each, Operating
from sluicemq.namespaces import (
    audit,
    brokers,
    dead_letters,
    events,
    history,
    jobs,
    operations,
    principals,
    queues,
    schedules,
    streams,
)
from sluicemq.namespaces.calls import Calls
from sluicemq.steps import Ask, Finds, Found, Pause, Step, Steps
from sluicemq.transport.asker import Asker

R = TypeVar("R")


class AskerInLoop(Asker):
    """Asks over one connection, from the tasks of one event loop."""

    _open_mailbox = staticmethod(LoopMailbox)

    async def do(self, step: Step) -> Any:
        """Do one step."""
        match step:
            case Ask(verb, fields, repeat, timeout, more):
                limit = self.limit(timeout, more)
                return await ask(self._questions, verb, *fields, timeout=limit, repeat=repeat)
            case Pause(seconds):
                await asyncio.sleep(seconds)
        return None


class CallsInLoop(Calls):
    """Requests of one async client: what :meth:`run` returns is awaited."""

    asker: AskerInLoop
    Claim = ClaimInLoop
    Fetch = FetchInLoop

    def run(self, steps: Steps[R]) -> Any:
        """Return what does one step after the other."""
        return run(steps, self.asker.do)

    def each(self, steps: Finds) -> Any:
        """Return what yields the findings of one step after the other."""
        return self._each(steps)

    async def _each(self, steps: Finds) -> AsyncIterator[Any]:
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                return
            if isinstance(step, Found):
                yield step.value
                answer = None
            else:
                answer = await self.asker.do(step)


class _Namespace:
    def __init__(self, verbs: Any) -> None:
        self._verbs = verbs

    def __repr__(self) -> str:
        return repr(self._verbs)


class Queues(_Namespace):
    """Queues: look at them, pause them, empty them, change their settings."""

    list = Awaited(queues.Queues.list)
    get = Awaited(queues.Queues.get)
    backlog = Awaited(queues.Queues.backlog)
    settings = Awaited(queues.Queues.settings)
    set_settings = Awaited(queues.Queues.set_settings)
    unset_settings = Awaited(queues.Queues.unset_settings)
    pause = Awaited(queues.Queues.pause)
    resume = Awaited(queues.Queues.resume)
    purge = Operating(queues.Queues.purge)
    delete = Operating(queues.Queues.delete)
    wait_until_empty = Awaited(queues.Queues.wait_until_empty)


class Jobs(_Namespace):
    """Single jobs of a queue: look at them, change them, take them."""

    list = Awaited(jobs.Jobs.list)
    get = Awaited(jobs.Jobs.get)
    ended = Awaited(jobs.Jobs.ended)
    find = Awaited(jobs.Jobs.find)
    change = Awaited(jobs.Jobs.change)
    promote = Awaited(jobs.Jobs.promote)
    cancel = Awaited(jobs.Jobs.cancel)
    result = Awaited(jobs.Jobs.result)
    reserve = Reserving(jobs.Jobs.reserve)
    pop = Awaited(jobs.Jobs.pop)


class DeadLetters(_Namespace):
    """Dead letters of a queue: jobs that failed too often, were rejected, or came too late."""

    list = Awaited(dead_letters.DeadLetters.list)
    latest = Awaited(dead_letters.DeadLetters.latest)
    iterate = Each(dead_letters.DeadLetters.iterate)
    count = Awaited(dead_letters.DeadLetters.count)
    by_reason = Awaited(dead_letters.DeadLetters.by_reason)
    by_error = Awaited(dead_letters.DeadLetters.by_error)
    redrive = Operating(dead_letters.DeadLetters.redrive)
    discard = Operating(dead_letters.DeadLetters.discard)


class Streams(_Namespace):
    """Streams: messages that are kept, and read from any point on."""

    list = Awaited(streams.Streams.list)
    get = Awaited(streams.Streams.get)
    trim = Awaited(streams.Streams.trim)
    erase = Awaited(streams.Streams.erase)


class Subscriptions(_Namespace):
    """Subscriptions: how far the named readers of streams have come."""

    list = Awaited(streams.Subscriptions.list)
    seek = Awaited(streams.Subscriptions.seek)
    release = Awaited(streams.Subscriptions.release)
    delete = Awaited(streams.Subscriptions.delete)


class Schedules(_Namespace):
    """Schedules: jobs that are pushed again and again."""

    list = Awaited(schedules.Schedules.list)
    get = Awaited(schedules.Schedules.get)
    add = Awaited(schedules.Schedules.add)
    delete = Awaited(schedules.Schedules.delete)
    pause = Awaited(schedules.Schedules.pause)
    resume = Awaited(schedules.Schedules.resume)
    run = Awaited(schedules.Schedules.run)


class Principals(_Namespace):
    """Principals: who may connect to the brokers, by which keys, and what each may do."""

    list = Awaited(principals.Principals.list)
    get = Awaited(principals.Principals.get)
    add = Awaited(principals.Principals.add)
    grant = Awaited(principals.Principals.grant)
    rotate = Awaited(principals.Principals.rotate)
    remove = Awaited(principals.Principals.remove)


class Operations(_Namespace):
    """Operations: orders on many jobs that took long, of all brokers."""

    list = Awaited(operations.Operations.list)
    get = Awaited(operations.Operations.get)
    cancel = Awaited(operations.Operations.cancel)
    wait = Awaited(operations.Operations.wait)


class Brokers(_Namespace):
    """The brokers of the database, and the schema of their store."""

    list = Awaited(brokers.Brokers.list)
    schema = Awaited(brokers.Brokers.schema)
    upgrade = Awaited(brokers.Brokers.upgrade)


class Workers(_Namespace):
    """The workers at this broker."""

    list = Awaited(brokers.Workers.list)
    quiet = Awaited(brokers.Workers.quiet)
    stop = Awaited(brokers.Workers.stop)


class Kinds(_Namespace):
    """The kinds of jobs at this broker."""

    list = Awaited(brokers.Kinds.list)


class Events(_Namespace):
    """Events: what happens to jobs at this broker."""

    read = Awaited(events.Events.read)
    follow = Each(events.Events.follow)


class History(_Namespace):
    """Counters of all brokers together, by a ``span`` of time."""

    queue = Awaited(history.History.queue)
    kind = Awaited(history.History.kind)
    stream = Awaited(history.History.stream)
    device = Awaited(history.History.device)
    broker = Awaited(history.History.broker)


class Incidents(_Namespace):
    """Incidents: what happened to queues and brokers that is out of the ordinary."""

    list = Awaited(history.Incidents.list)


class Audit(_Namespace):
    """The audit: administrative acts, logins and refusals. Needs the permission ``operate``."""

    list = Awaited(audit.Audit.list)
    iterate = Each(audit.Audit.iterate)
