"""The verbs of streams in library sessions: publish, read, hold subscriptions, administer."""

from __future__ import annotations

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
from sluicemq_broker.security import Needs, visible
from sluicemq_broker.streams import Streams, Subscriptions
from sluicemq_devices.hub import Watermark, nothing

#: Messages on their way to MongoDB, at most, as a multiple of ``hwm``: they come and go by the thousand.
_MESSAGES: Final = 10


class StreamSession:
    """One session's subscriptions and its READs."""

    def __init__(self, subscriptions: SessionSubscriptions, reads: Reads) -> None:
        self.subscriptions = subscriptions
        self.reads = reads

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
        mark = Watermark(_MESSAGES * settings.hwm, settings.hwm_bytes, nothing, nothing)
        self._publishing = Publishing(streams, counters, mark, settings.max_job_bytes)
        self._streams = streams
        self._subscriptions = subscriptions
        self._admin = admin
        self._read_bounds = ReadBounds()

    def join(self, session: Session) -> StreamSession:
        """Return the state of a new session."""
        return StreamSession(
            SessionSubscriptions(self._subscriptions, lambda: session.name, session.peer),
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

        subscribe, manage = Needs(Action.SUBSCRIBE, 0), Needs(Action.MANAGE, 0)
        return {
            wire.PUBLISH: SessionVerb(self._publishing.publish, Needs(Action.PUBLISH, 0)),
            wire.READ: SessionVerb(read, subscribe, reads=True),
            wire.STREAMS: AdminVerb(
                admin, StreamAdmin.list, Needs(Action.SUBSCRIBE, shows=visible.streams), reads=True
            ),
            wire.STREAM: AdminVerb(admin, StreamAdmin.show, subscribe, (str,), reads=True),
            wire.TRIM: AdminVerb(admin, StreamAdmin.trim, manage, (str, int)),
            wire.ERASE: AdminVerb(admin, StreamAdmin.erase, manage, (str,)),
            # Each holder sends these three now and then; each is one statement.
            wire.HOLD: AdminVerb(
                own, SessionSubscriptions.hold, subscribe, (str, str, str, dict), at_once=True
            ),
            wire.MARK: AdminVerb(
                own, SessionSubscriptions.mark, subscribe, (str, str, int, int), at_once=True
            ),
            wire.FREE: AdminVerb(
                own, SessionSubscriptions.free, subscribe, (str, str, int | None), at_once=True
            ),
            wire.SUBS: AdminVerb(
                own,
                SessionSubscriptions.listed,
                Needs(Action.SUBSCRIBE, 0, shows=visible.subscriptions),
                (str | None,),
            ),
            wire.SEEK: AdminVerb(own, SessionSubscriptions.seek, manage, (str, str, int)),
            wire.FORGET: AdminVerb(own, SessionSubscriptions.forget, manage, (str, str)),
        }
