"""A broker whose clients are principals by their address, run as ``... --config FILE --ready-file FILE``.

Clients at 127.0.0.1 may do everything and have no name. Each other address, such as 127.0.0.2, is a principal
of its own, named in :data:`NAMES`. The verb PERMIT changes what it may do, while its connections are open.
"""

from __future__ import annotations

import sys
from pathlib import Path

NAMES = {"127.0.0.2": "eve", "127.0.0.3": "bob"}
PERMIT, NEEDS = b"PERMIT", b"NEEDS"

if __name__ == "__main__":
    from gevent import monkey

    monkey.patch_all()

    import json
    import os
    import signal
    from typing import Any

    import gevent
    from gevent.event import Event

    from sluicemq.protocol import wire
    from sluicemq.protocol.permissions import Permissions
    from sluicemq_broker.command.logs import set_up
    from sluicemq_broker.config import load
    from sluicemq_broker.doors import Fields, Session, SessionVerb
    from sluicemq_broker.parts import PARTS
    from sluicemq_broker.process import server as process
    from sluicemq_broker.process.part import Core, Part
    from sluicemq_broker.security import ANYBODY, NOTHING, Caller, Principal, Security
    from sluicemq_devices.sockets import Decide, Guard
    from sluicemq_devices.zmtp import Credentials

    PEOPLE = {name: Principal(name, Permissions()) for name in NAMES.values()}

    class ByAddress(Guard):
        """Takes a peer for the principal of its address."""

        def __init__(self, security: Security) -> None:
            self._security = security

        def admit(self, credentials: Credentials, peer: str, decide: Decide) -> None:
            del credentials
            host = peer.removeprefix("tcp://").rpartition(":")[0]
            principal = PEOPLE[NAMES[host]] if host in NAMES else ANYBODY.principal
            decide(Caller(principal, peer, refused=self._security.refused), "")

    class ManySecurity(Security):
        """Gives every door the guard by address."""

        def guard(self, *_door: Any, **_more: Any) -> Any:
            return ByAddress(self)

    class Permits(Part):
        """Verbs of the test: PERMIT ``[n, name, permissions, tenant]``, and NEEDS, which lists all verbs."""

        def __init__(self, core: Core) -> None:
            super().__init__(core)
            self.verbs = {
                PERMIT: SessionVerb(self._permit, NOTHING),
                NEEDS: SessionVerb(self._needs, NOTHING),
            }

        def _permit(self, session: Session, number: int, fields: Fields) -> None:
            name, permissions, tenant = fields
            PEOPLE[name].change(Permissions.read(permissions), tenant=tenant)
            session.send(wire.OK, number, None)

        def _needs(self, session: Session, number: int, _fields: Fields) -> None:
            verbs = session.door.verbs.items()
            rows = [[name, each.needs.action] for name, each in verbs if name not in self.verbs]
            session.send(wire.OK, number, rows)

    vars(process)["Security"] = ManySecurity
    config = load(Path(sys.argv[2]), {}, {})
    set_up("info", "text")
    stop = Event()
    gevent.signal_handler(signal.SIGTERM, stop.set)
    uri = config.broker.mongodb_uri
    server = process.Server(config, uri.text if uri else "", (*PARTS, Permits), alone=False)
    try:
        server.start()
        part = Path(sys.argv[4]).with_suffix(".part")
        part.write_text(json.dumps({"pid": os.getpid(), **server.describe()}))
        part.rename(sys.argv[4])
        stop.wait()
    finally:
        server.stop()
