"""The client for questions and administration, for asyncio."""

from __future__ import annotations

from typing import Any, Unpack

from sluicemq import namespaces as of_threads
from sluicemq.aio import namespaces
from sluicemq.aio.life import Life
from sluicemq.aio.loop import disconnected
from sluicemq.aio.namespaces import AskerInLoop, CallsInLoop
from sluicemq.aio.verbs import Awaited
from sluicemq.arguments import checked
from sluicemq.codec import JSON, CodecArgument
from sluicemq.transport.access import Access, Broker
from sluicemq.transport.credentials import AccessOptions


class _Core:
    def __init__(self, asker: AskerInLoop) -> None:
        self.asker = asker
        self.verbs = of_threads.Namespaces(CallsInLoop(asker))


@checked()
class Client(Life[_Core]):
    """A connection for questions and administration, for the tasks of one event loop.

    Its verbs are those of :class:`sluicemq.Client`, awaited: ``await client.queues.pause("mail")``. So are
    its arguments, times and errors. A verb that is cancelled may have been carried out or not.
    """

    def __init__(
        self,
        *,
        timeout: float = 10.0,
        wait: bool = True,
        codec: CodecArgument = JSON,
        endpoint: Broker = None,
        **access: Unpack[AccessOptions],
    ) -> None:
        self._given: dict[str, Any] = {"timeout": timeout, "patient": wait, "codec": codec}
        self._access = Access.at_start(endpoint, access)

    def _made(self) -> _Core:
        return _Core(AskerInLoop(self._access(), **self._given))

    @property
    def connected_to(self) -> str:
        """Return the endpoint of the broker that it is connected to; empty while there is none."""
        return self._here.asker.connected_to

    @property
    def permissions(self) -> dict[str, list[str]] | None:
        """Return what this client may do, as the broker said last; None: everything, or not known."""
        return self._here.asker.permissions

    @property
    def _verbs(self) -> of_threads.Namespaces:
        return self._here.verbs

    stats = Awaited(of_threads.Namespaces.stats)
    counters = Awaited(of_threads.Namespaces.counters)
    health = Awaited(of_threads.Namespaces.health)
    ping = Awaited(of_threads.Namespaces.ping)

    async def close(self, timeout: float | None = None) -> None:  # noqa: ARG002 - as others
        """Disconnect from the broker; may be called again."""
        if self._loop is not None:
            await disconnected(self._here.asker.close)

    @property
    def queues(self) -> namespaces.Queues:
        """Return ``client.queues``."""
        return namespaces.Queues(self._verbs.queues)

    @property
    def jobs(self) -> namespaces.Jobs:
        """Return ``client.jobs``."""
        return namespaces.Jobs(self._verbs.jobs)

    @property
    def dead_letters(self) -> namespaces.DeadLetters:
        """Return ``client.dead_letters``."""
        return namespaces.DeadLetters(self._verbs.dead_letters)

    @property
    def streams(self) -> namespaces.Streams:
        """Return ``client.streams``."""
        return namespaces.Streams(self._verbs.streams)

    @property
    def subscriptions(self) -> namespaces.Subscriptions:
        """Return ``client.subscriptions``."""
        return namespaces.Subscriptions(self._verbs.subscriptions)

    @property
    def schedules(self) -> namespaces.Schedules:
        """Return ``client.schedules``."""
        return namespaces.Schedules(self._verbs.schedules)

    @property
    def principals(self) -> namespaces.Principals:
        """Return ``client.principals``."""
        return namespaces.Principals(self._verbs.principals)

    @property
    def operations(self) -> namespaces.Operations:
        """Return ``client.operations``."""
        return namespaces.Operations(self._verbs.operations)

    @property
    def brokers(self) -> namespaces.Brokers:
        """Return ``client.brokers``."""
        return namespaces.Brokers(self._verbs.brokers)

    @property
    def workers(self) -> namespaces.Workers:
        """Return ``client.workers``."""
        return namespaces.Workers(self._verbs.workers)

    @property
    def kinds(self) -> namespaces.Kinds:
        """Return ``client.kinds``."""
        return namespaces.Kinds(self._verbs.kinds)

    @property
    def events(self) -> namespaces.Events:
        """Return ``client.events``."""
        return namespaces.Events(self._verbs.events)

    @property
    def history(self) -> namespaces.History:
        """Return ``client.history``."""
        return namespaces.History(self._verbs.history)

    @property
    def incidents(self) -> namespaces.Incidents:
        """Return ``client.incidents``."""
        return namespaces.Incidents(self._verbs.incidents)

    @property
    def audit(self) -> namespaces.Audit:
        """Return ``client.audit``."""
        return namespaces.Audit(self._verbs.audit)
