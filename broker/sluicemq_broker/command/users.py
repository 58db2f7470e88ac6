"""Principals changed in MongoDB itself, without a broker: a way back in when nobody may operate any more."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from sluicemq_broker.admin import at_store
from sluicemq_broker.security import hash_password
from sluicemq_broker.store import PrincipalStore, connect, require_safe

__all__ = ["act", "hash_password"]


def act(uri: str, database: str, action: str, fields: dict[str, Any]) -> Any:
    """Carry out one action of the verb USERS on the principals of a database; brokers there follow at once.

    Raises :class:`~sluicemq.SluiceError`, as the verb does.
    """
    with closing(connect(uri)) as mongo:
        require_safe(mongo, allow_unsafe=False)
        store = PrincipalStore(mongo[database])
        store.prepare()
        return at_store(store, hash_password).do(action, fields)
