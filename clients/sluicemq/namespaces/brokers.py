"""``client.brokers``, ``client.workers`` and ``client.kinds``."""

from __future__ import annotations

import builtins
from operator import itemgetter
from typing import Any

from sluicemq.arguments import checked
from sluicemq.namespaces.namespace import CalledBefore, Namespace
from sluicemq.protocol import wire
from sluicemq.protocol.rows import BrokerRow, KindRow, SchemaRow, UpgradeRow, WorkerRow


@checked()
class Brokers(CalledBefore, verb="list"):
    """The brokers of the database, and the schema of their store."""

    __slots__ = ()

    def list(self) -> builtins.list[BrokerRow]:
        """Return all brokers, also those of the last day that fell silent, whose ``ended`` says when.

        ``reads``: the oldest and the newest schema of the store that a broker reads.
        """
        return self._calls.read(builtins.list[BrokerRow], wire.BROKERS, pick=itemgetter("brokers"))

    def schema(self) -> SchemaRow:
        """Return the schema of the store, and the ``newest``, to which :meth:`upgrade` raises it."""
        return self._calls.read(SchemaRow, wire.BROKERS)

    def upgrade(self) -> UpgradeRow:
        """Raise the store's schema to the newest of this broker; ``before``: what it was.

        Raises :class:`~sluicemq.OldBrokerError` while a broker lives that can't read it. There is no way
        back.
        """
        return self._calls.change(UpgradeRow, wire.UPGRADE)

    def _called(self, plain: Any) -> Any:
        return plain.schema()


@checked()
class Workers(CalledBefore, verb="list"):
    """The workers at this broker."""

    __slots__ = ()

    def list(self, queue: str | None = None) -> builtins.list[WorkerRow]:
        """Return the workers at this broker, or those of one queue, up to 1,000.

        Each has its ``queue``, its ``name`` (its own or its kind, with host and pid; of a plain socket the
        address), the ``door`` through which it works, the seconds for which it is ``connected``, the first of
        its ``jobs``, and the name of its ``broker``.
        """
        return self._calls.read(builtins.list[WorkerRow], wire.WORKERS, queue)

    def quiet(self, name: str) -> int:
        """Give no more jobs to the workers of this name at this broker, until they connect again.

        Returns how many queues they work on: 0, there is no such worker here.
        """
        return self._calls.read(int, wire.WORKER, wire.QUIET, name)

    def stop(self, name: str) -> int:
        """End the workers of this name: they get no more jobs, and end what they have begun.

        Plain workers, and those of older libraries, are only made quiet. Returns as :meth:`quiet` does.
        """
        return self._calls.read(int, wire.WORKER, wire.END, name)


@checked()
class Kinds(Namespace):
    """The kinds of jobs at this broker."""

    __slots__ = ()

    def list(self, queue: str | None = None) -> builtins.list[KindRow]:
        """Return the kinds of jobs, or those of one queue, as this broker has counted them since its start.

        Older brokers don't know kinds: :class:`~sluicemq.BadVerbError`.
        """
        return self._calls.read(builtins.list[KindRow], wire.KINDS, queue)
