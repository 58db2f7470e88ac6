"""The verbs of subscriptions: a session holds some, says how far it has come, and may vanish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFrames, QueueFull, Unavailable
from sluicemq_broker.store import Subscription
from sluicemq_broker.streams import NEWEST, Subscriptions, Wish

#: Subscriptions that one session may hold.
_MOST_HELD: Final = 1000


class Holds:
    """What one session holds. Each method is a verb, and may wait for MongoDB.

    ``who``: how the session is shown to people; ``peer``: its connection.
    """

    def __init__(self, subscriptions: Subscriptions, who: Callable[[], str], peer: str) -> None:
        self._subscriptions = subscriptions
        self._peer = peer
        self._who = who
        self._held: dict[tuple[str, str], Subscription] = {}
        self._gone = False

    def hold(self, stream: str, name: str, kind: str, options: dict[str, Any]) -> dict[str, Any]:
        """Hold a subscription; of one that it holds already this begins a new hold."""
        wish = Wish(stream, name, kind, self._who(), **_options(options), peer=self._peer)
        earlier = self._held.pop((stream, name), None)
        if earlier:
            self._subscriptions.vanish(earlier)
        elif len(self._held) >= _MOST_HELD:
            raise QueueFull(f"a session holds {_MOST_HELD} subscriptions at most")
        held = self._subscriptions.hold(wish)
        if self._gone:
            self._subscriptions.vanish(held)
            raise Unavailable("the session has ended meanwhile")
        self._held[stream, name] = held
        return {"fence": held.fence, "watermark": held.watermark}

    def mark(self, stream: str, name: str, fence: int, watermark: int) -> None:
        """Messages up to there are worked on."""
        self._subscriptions.mark(stream, name, fence, _number(watermark))

    def free(self, stream: str, name: str, fence: int | None) -> None:
        """Give up the hold with this fence; None: whoever has it."""
        if fence is None:
            self._subscriptions.free(stream, name)
            return
        self._subscriptions.release(stream, name, fence)
        held = self._held.get((stream, name))
        if held and held.fence == fence:
            self._subscriptions.left(self._held.pop((stream, name)))

    def listed(self, stream: str | None) -> list[dict[str, Any]]:
        """All subscriptions, or those of one stream."""
        return self._subscriptions.listed(stream)

    def seek(self, stream: str, name: str, watermark: int) -> None:
        """Have a subscription that nobody holds go on behind this message."""
        self._subscriptions.seek(stream, name, _number_or_newest(watermark), self._peer)

    def forget(self, stream: str, name: str) -> None:
        """Remove a subscription that nobody holds."""
        self._subscriptions.delete(stream, name)

    def vanish(self) -> None:
        """The session has ended: others of the same kind may take over."""
        self._gone = True
        for held in self._held.values():
            self._subscriptions.vanish(held)
        self._held.clear()


def _options(options: dict[str, Any]) -> dict[str, int]:
    if options.keys() - {"after", "born"}:
        raise BadFrames("the options of a HOLD are a map of after and born")
    for value in options.values():
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadFrames("after and born are numbers of messages")
        _number_or_newest(value)
    return options


def _number(value: int) -> int:
    if not 0 <= value <= wire.MAX_NUMBER:
        raise BadFrames(f"{value} is no number of a message")
    return value


def _number_or_newest(value: int) -> int:
    return value if value == NEWEST else _number(value)
