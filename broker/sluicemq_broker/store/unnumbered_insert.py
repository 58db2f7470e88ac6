"""Insert of one document without a number of the driver, for documents that may come twice or get lost.

The driver numbers each insert so that it can send it again, and for each number the server writes a second
document (``config.transactions``): 0.2 ms of the 2 to 3 ms of a majority insert. A segment of a stream needs
no number, since its place tells whether it is there; nor does an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluicemq_broker.store.connection import Documents
from sluicemq_broker.store.errors import Refused, translated
from sluicemq_broker.store.short_way import send_write
from sluicemq_broker.store.write_results import outcome


def insert(database: Documents, collection: str, document: Mapping[str, Any], w: int | str) -> bool:
    """Store a document; False: its ``_id`` is there. ``w``: how many nodes the write waits for.

    Crash or lost reply: it is stored or not, once. Raises as every statement does.
    """
    command = {"insert": collection, "documents": [document], "writeConcern": {"w": w}}
    with translated():
        # failpoint *
        pushed = outcome(send_write(database, command))
    for error in pushed.refused.values():
        raise Refused(str(error))
    return not pushed.existing
