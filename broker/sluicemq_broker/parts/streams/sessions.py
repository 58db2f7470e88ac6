"""The verbs of streams in library sessions: publish, read, hold subscriptions, administer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sluicemq.protocol import wire
from sluicemq.protocol.permissions import Action
from sluicemq_broker.config import BrokerSettings
from sluicemq_broker.doors import AdminVerb, Fields, Session, SessionVerb, Verbs
from sluicemq_broker.parts.streams.admin import StreamAdmin
from sluicemq_broker.parts.streams.publishing import Publishing
from sluicemq_broker.parts.streams.reading import ReadBounds, Reads
from sluicemq_broker.parts.streams.subscriptions import SessionSubscriptions
from sluicemq_broker.runtime import Counters
from sluicemq_broker.security import Effect, Need, Needs, visible
from sluicemq_broker.streams import Streams, Subscriptions
from sluicemq_devices.hub import Watermark, nothing

_SUBSCRIBE: Final = Needs(Action.SUBSCRIBE, 0)
_MANAGE: Final = Needs(Action.MANAGE, 0)
#: Permissions that the verbs of streams need.
NEEDS: Final[Mapping[bytes, Needs]] = {
    wire.PUBLISH: Needs(Action.PUBLISH, 0, also=(Effect(Action.CREATE, "the stream, if it is not there"),)),
    wire.READ: _SUBSCRIBE,
    wire.STREAMS: Needs(Action.SUBSCRIBE, shows=visible.streams),
    wire.STREAM: _SUBSCRIBE,
    wire.TRIM: _MANAGE,
    wire.ERASE: _MANAGE,
    # Whether it moves a watermark is known when it is found: `SessionSubscriptions.hold` asks then.
    wire.HOLD: _SUBSCRIBE._replace(
        also=(Effect(Action.MANAGE, "the stream, if `after` moves a subscription that is there"),)
    ),
    wire.MARK: _SUBSCRIBE,
    # Holders name their fence; a caller without one takes the subscription from its holder.
    wire.FREE: _SUBSCRIBE._replace(
        more=lambda _held, stream, _name, fence: [(Action.MANAGE, stream)] if fence is None else (),
        also=(Effect(Action.MANAGE, "the stream, with nil for the fence"),),
        acts=lambda fields: fields[2:3] == [None],
    ),
    wire.SUBS: Needs(Action.SUBSCRIBE, 0, shows=visible.subscriptions),
    wire.SEEK: _MANAGE,
    wire.FORGET: _MANAGE,
}


class StreamSession:
    """One session's subscriptions and its READs."""

    def __init__(self, subscriptions: SessionSubscriptions, reads: Reads) -> None:
        self.subscriptions = subscriptions
        self.reads = reads

    def needs(self) -> Iterator[Need]:
        """Yield what it needs to hold its subscriptions: others of their kinds wait for them."""
        self.reads.recheck_permission()
        return ((Action.SUBSCRIBE, stream) for stream in self.subscriptions.streams)

    def leave(self) -> None:
        """End them: the session has ended."""
        self.subscriptions.vanish()
        self.reads.forget()


class StreamSessions:
    """Streams for all sessions of the library; each session has a :class:`StreamSession`."""

    def __init__(
        self,
        settings: BrokerSettings,
        streams: Streams,
        subscriptions: Subscriptions,
        admin: StreamAdmin,
        counters: Counters,
    ) -> None:
        # Messages come and go by the thousand
        mark = Watermark(10 * settings.hwm, settings.hwm_bytes, nothing, nothing)
        self._publishing = Publishing(streams, counters, mark, settings.max_job_bytes)
        self._streams = streams
        self._subscriptions = subscriptions
        self._admin = admin
        self._read_bounds = ReadBounds()

    def join(self, session: Session) -> StreamSession:
        """Return the state of a new session."""
        return StreamSession(
            SessionSubscriptions(
                self._subscriptions, lambda: session.name, session.caller, session.door.audit
            ),
            Reads(self._streams, self._read_bounds, session.lane, session.answer),
        )

    def verbs(self, part: Any) -> Verbs:
        """Return the verbs of streams; ``part``: the extension under which a session keeps its state."""

        def read(session: Session, number: int, fields: Fields) -> None:
            session.state(part).reads.read(number, fields)

        def admin(_session: Session) -> StreamAdmin:
            return self._admin

        def own(session: Session) -> SessionSubscriptions:
            state: StreamSession = session.state(part)
            return state.subscriptions

        return {
            wire.PUBLISH: SessionVerb(self._publishing.publish, NEEDS[wire.PUBLISH], charged=True),
            wire.READ: SessionVerb(read, NEEDS[wire.READ], reads=True),
            wire.STREAMS: AdminVerb(admin, StreamAdmin.list, NEEDS[wire.STREAMS], reads=True),
            wire.STREAM: AdminVerb(admin, StreamAdmin.show, NEEDS[wire.STREAM], (str,), reads=True),
            wire.TRIM: AdminVerb(admin, StreamAdmin.trim, NEEDS[wire.TRIM], (str, int)),
            wire.ERASE: AdminVerb(admin, StreamAdmin.erase, NEEDS[wire.ERASE], (str,)),
            # Each holder sends these three now and then; each is one statement.
            wire.HOLD: AdminVerb(
                own, SessionSubscriptions.hold, NEEDS[wire.HOLD], (str, str, str, dict), at_once=True
            ),
            wire.MARK: AdminVerb(
                own, SessionSubscriptions.mark, NEEDS[wire.MARK], (str, str, int, int), at_once=True
            ),
            wire.FREE: AdminVerb(
                own, SessionSubscriptions.free, NEEDS[wire.FREE], (str, str, int | None), at_once=True
            ),
            wire.SUBS: AdminVerb(own, SessionSubscriptions.listed, NEEDS[wire.SUBS], (str | None,)),
            wire.SEEK: AdminVerb(own, SessionSubscriptions.seek, NEEDS[wire.SEEK], (str, str, int)),
            wire.FORGET: AdminVerb(own, SessionSubscriptions.forget, NEEDS[wire.FORGET], (str, str)),
        }
