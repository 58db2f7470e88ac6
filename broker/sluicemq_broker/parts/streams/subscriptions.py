"""The verbs of subscriptions: a session holds some, reports how far it has worked, and may vanish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFramesError, QueueFullError, SluiceError, UnavailableError
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rows import SubscriptionRow
from sluicemq.protocol.rules import whole
from sluicemq_broker.runtime import read_options
from sluicemq_broker.security import Audit, Caller, Door, Unchanged, authorize
from sluicemq_broker.store import Subscription
from sluicemq_broker.streams import NEWEST, Subscriptions, Wish, not_held

#: Subscriptions that one session may hold.
_MOST_HELD: Final = 1000


class SessionSubscriptions:
    """The subscriptions that one session holds. Each method is a verb, and may wait for MongoDB.

    ``who()``: the name of the session for people. A fence is a small number that rises, so it proves nothing:
    a hold is its session's, and another session that guesses its fence changes nothing.
    """

    def __init__(
        self, subscriptions: Subscriptions, who: Callable[[], str], caller: Caller, audit: Audit
    ) -> None:
        self._subscriptions = subscriptions
        self._audit = audit
        self._caller = caller
        self._who = who
        self._held: dict[tuple[str, str], Subscription] = {}
        self._gone = False

    @property
    def streams(self) -> set[str]:
        """Names of the streams of which it holds subscriptions."""
        return {stream for stream, _name in self._held}

    def hold(self, stream: str, name: str, kind: str, options: dict[str, Any]) -> dict[str, Any]:
        """Hold a subscription; one that the session holds already gets a new fence.

        ``after`` moves one that is there as SEEK does: it needs what SEEK needs, and is recorded.
        """
        read = read_options(options, _OPTIONS, "a HOLD")
        move = _Move(self._caller, self._audit, stream, name, read.get("after"))
        wish = Wish(stream, name, kind, self._who(), **read, peer=self._caller.maker, may_move=move.authorize)
        earlier = self._held.pop((stream, name), None)
        if earlier:
            self._subscriptions.vanish(earlier)
        elif len(self._held) >= _MOST_HELD:
            raise QueueFullError(f"a session holds {_MOST_HELD} subscriptions at most")
        try:
            held = self._subscriptions.hold(wish)
        except SluiceError as error:
            move.failed(error)
            raise
        if self._gone:
            self._subscriptions.vanish(held)
        else:
            self._held[stream, name] = held
        move.record(held)
        if self._gone:
            raise UnavailableError("the session has ended meanwhile")
        return {"fence": held.fence, "watermark": held.watermark}

    def mark(self, stream: str, name: str, fence: int, watermark: int) -> None:
        """Note that all messages up to a watermark are done; raises LeaseLost."""
        if self._own(stream, name, fence) is None:
            raise self._subscriptions.late(stream, name, fence)
        self._subscriptions.mark(stream, name, fence, _number(watermark))

    def free(self, stream: str, name: str, fence: int | None) -> None:
        """Release a subscription that it holds with this fence; None: take it from any holder."""
        if fence is None:
            self._subscriptions.free(stream, name)
            return
        held = self._own(stream, name, fence)
        if held is None:
            raise not_held(stream, name, fence)
        self._subscriptions.release(stream, name, fence)
        if self._held.get((stream, name)) is held:
            self._subscriptions.left(self._held.pop((stream, name)))

    def listed(self, stream: str | None) -> list[SubscriptionRow]:
        """Return all subscriptions, or those of one stream; those that it holds with their fences."""
        return [self._with_fence(row) for row in self._subscriptions.listed(stream)]

    def seek(self, stream: str, name: str, watermark: int) -> Unchanged | None:
        """Set the watermark of a subscription that nobody holds."""
        number = watermark if watermark == NEWEST else _number(watermark)
        moved = self._subscriptions.seek(stream, name, number, self._caller.maker)
        return None if moved else Unchanged()

    def forget(self, stream: str, name: str) -> None:
        """Remove a subscription that nobody holds."""
        self._subscriptions.delete(stream, name)

    def vanish(self) -> None:
        """Release all: the session has ended, so others of their kinds may take over."""
        self._gone = True
        for held in self._held.values():
            self._subscriptions.vanish(held)
        self._held.clear()

    def _own(self, stream: str, name: str, fence: int) -> Subscription | None:
        """Return what this session holds under a fence; None: it does not."""
        held = self._held.get((stream, name))
        return held if held and held.fence == fence else None

    def _with_fence(self, row: SubscriptionRow) -> SubscriptionRow:
        held = self._held.get((row.stream, row.name))
        return replace(row, fence=held.fence) if held else row


class _Move:
    """A hold that moves a watermark: each try asks the permission, and the move is recorded once."""

    def __init__(self, caller: Caller, audit: Audit, stream: str, name: str, after: int | None) -> None:
        self._caller = caller
        self._stream = stream
        self._act = audit.act(caller, Door.SMQ, "hold", stream, {"name": name, "watermark": after}, None)
        self._fence: int | None = None  # before the move that was tried last

    def authorize(self, found: Subscription) -> None:
        """Raise Forbidden where the caller may not move the watermark of what was found."""
        self._fence = found.fence
        authorize(self._caller, Action.MANAGE, self._stream)

    def record(self, held: Subscription) -> None:
        """Record the move if this hold has made it; waits for MongoDB."""
        if self._fence is not None and held.fence == self._fence + 1:
            self._act.done()

    def failed(self, error: SluiceError) -> None:
        """Count the move as refused if the hold was about to make it."""
        if self._fence is not None:
            self._act.refused(error.code)


def _number(value: int) -> int:
    if not 0 <= value <= wire.MAX_NUMBER:
        raise BadFramesError(f"{value} is no number of a message")
    return value


_OPTIONS: Final = dict.fromkeys(
    ("after", "born"), whole(NEWEST, wire.MAX_NUMBER, f"the number of a message, or {NEWEST} for the newest")
)
