"""Principals changed in MongoDB itself, without a broker: a way back in when nobody may operate any more."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, suppress
from getpass import getuser
from socket import gethostname
from typing import Any

from sluicemq.protocol import rows
from sluicemq.protocol.errors import SluiceError
from sluicemq.protocol.wire import ONLY_LOOK
from sluicemq_broker.admin import at_store
from sluicemq_broker.config import MongoUri
from sluicemq_broker.runtime import Counters
from sluicemq_broker.security import ANYBODY, Audit, Caller, Door, hash_password, plain
from sluicemq_broker.store import AuditStore, PrincipalStore, connect, require_safe

__all__ = ["act", "hash_password"]


def act(uri: str, database: str, action: str, fields: dict[str, Any]) -> Any:
    """Carry out one action of the verb USERS on the principals of a database; brokers there follow at once.

    Raises :class:`~sluicemq.SluiceError`, as the verb does, and ValueError for a URI that is none.
    """
    _require_uri(uri)
    with closing(connect(uri)) as mongo:
        require_safe(mongo, allow_unsafe=False)
        store, records = PrincipalStore(mongo[database]), AuditStore(mongo[database])
        store.prepare()
        admin = at_store(store, hash_password)
        if action in ONLY_LOOK:
            return rows.plain(admin.do(action, fields))
        return _recorded(records, action, fields, lambda: admin.do(action, fields))


def _recorded(records: AuditStore, action: str, fields: dict[str, Any], change: Callable[[], Any]) -> Any:
    """Change a principal, and record that in the audit of the brokers on this database."""
    records.prepare()
    audit = Audit(Counters())
    audit.begin(records, "", time.time, retention=1)  # brokers remove old records
    caller = Caller(ANYBODY.principal, f"{getuser()}@{gethostname()}")
    try:
        with audit.act(caller, Door.STORE, f"users {action}", str(fields.get("name", "")), fields) as act:
            answer = change()
        act.done(answer)
    finally:
        with suppress(SluiceError):  # the principal is changed, and its new token must be shown
            audit.flush()
    return rows.plain(plain(answer))


def _require_uri(uri: str) -> None:
    try:
        MongoUri.read(uri)
    except ValueError as error:
        raise ValueError(f"expected {error}") from None
