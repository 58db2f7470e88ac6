"""The rate of new names of queues, streams and subscriptions, at every door."""

from __future__ import annotations

from sluicemq.protocol.errors import QueueFullError
from sluicemq_broker.runtime import Bucket, Count, Counters
from sluicemq_devices.hub import Latest


class NewNames:
    """The rates of peers that make names; the operator has none.

    Each name is a collection in MongoDB, or a document for ever, and costs every broker something at rest. A
    flood of names, as from a typing error in a loop, is slowed down and leaves room for all others.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._of_all = Bucket(20.0, 200.0)
        self.peers: Latest[str, _Peer] = Latest(10_000)

    def ask(
        self, what: str, peer: str | None, now: float, *, there: int, most: int, plain: bool = False
    ) -> None:
        """Raise :class:`QueueFull` where ``what`` may not be made now.

        ``peer``: the connection that makes it; None: the operator, by configuration or command. ``there``:
        how many there are, of ``most``. Plain sockets (``plain``), where every typing error makes a name, and
        peers that have made many leave a tenth of these to others. ``now``: monotonic seconds.
        """
        known = self.peers.get(peer) if peer else None
        few = known is None or known.made < 10
        # A tenth of all names that there may be is left to peers of the library that have made few.
        if there >= (most if few and not plain else most - most // 10):
            self._refuse(f"{what} can't be made: there are {there} already, and max_queues = {most}")
        if peer is None:
            return
        known = known or _Peer()
        left = self._of_all.left(now)
        # Of the names of all peers, 50 are left to peers that have made few
        if left < (1 if few else 50.0) or not known.bucket.take(now):
            self._refuse(f"{what} can't be made now: too many were made just before; try again in a second")
        self._of_all.take(now)
        known.made += 1
        self.peers[peer] = known

    def _refuse(self, why: str) -> None:
        self._counters.notice(Count.NAMES_REFUSED, why)
        raise QueueFullError(why)


class _Peer:
    """The rate of one peer, and the names it has made."""

    __slots__ = ("bucket", "made")

    def __init__(self) -> None:
        # Names that one peer may make: in a second, and at once after a rest.
        self.bucket = Bucket(10.0, 100.0)
        self.made = 0
