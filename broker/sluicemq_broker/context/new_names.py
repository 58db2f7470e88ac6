"""How fast new names may come to be: of queues, of streams, of subscriptions. Every door asks here."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sluicemq.protocol.errors import QueueFull
from sluicemq_broker.runtime import Bucket, Count, Counters

#: Names that one peer makes: so many a second, and so many at once after a rest.
_EACH_SECOND: Final = 10.0
_AT_ONCE: Final = 100.0
#: The same over all peers; of these so many are left to peers that have made few.
_EACH_SECOND_OF_ALL: Final = 20.0
_AT_ONCE_OF_ALL: Final = 200.0
_LEFT: Final = 50.0
_FEW: Final = 10
#: A part of all names that there may be, which is left to peers of the library that have made few.
_KEPT_PART: Final = 10
#: Peers that are remembered: those that made one last.
_REMEMBERED: Final = 10_000


class NewNames:
    """The account of a peer that makes names, or of the operator, for whom no rate holds.

    Each name is a collection in MongoDB, or a document for ever, and costs every broker something at rest. So
    a flood of names, of a typing error in a loop, is slowed down, and leaves room to all others.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._of_all = Bucket(_EACH_SECOND_OF_ALL, _AT_ONCE_OF_ALL)
        self._peers: OrderedDict[str, _Peer] = OrderedDict()

    def ask(
        self, what: str, peer: str | None, now: float, *, there: int, most: int, plain: bool = False
    ) -> None:
        """Raise :class:`QueueFull` where ``what`` may not be made now.

        ``peer``: the connection that makes it; None: the operator, by configuration or command. ``there``:
        how many there are, of ``most``; a tenth is left by plain sockets (``plain``), whose every typing
        error makes a name, and by peers that have made many. ``now``: monotonic seconds.
        """
        known = self._peers.get(peer) if peer else None
        few = known is None or known.made < _FEW
        if there >= (most if few and not plain else most - most // _KEPT_PART):
            self._refuse(f"{what} can't be made: there are {there} already, and max_queues = {most}")
        if peer is None:
            return
        known = known or _Peer()
        left = self._of_all.left(now)
        if left < (1 if few else _LEFT) or not known.bucket.take(now):
            self._refuse(f"{what} can't be made now: too many were made just before; try again in a second")
        self._of_all.take(now)
        known.made += 1
        self._peers[peer] = known
        self._peers.move_to_end(peer)
        if len(self._peers) > _REMEMBERED:
            self._peers.popitem(last=False)

    def _refuse(self, why: str) -> None:
        self._counters.notice(Count.NAMES_REFUSED, why)
        raise QueueFull(why)


class _Peer:
    """Names that one peer has made."""

    __slots__ = ("bucket", "made")

    def __init__(self) -> None:
        self.bucket = Bucket(_EACH_SECOND, _AT_ONCE)
        self.made = 0
