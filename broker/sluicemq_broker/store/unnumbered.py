"""An insert of one document that MongoDB does not number: for what may come twice, or be lost, anyway.

The driver numbers each insert, so that it can send it again, and for each number the server writes a second
document (``config.transactions``): 0.2 ms of the 2 to 3 ms that a majority insert took, measured in turns. A
segment of a stream needs none, for its place tells whether it is there; nor does an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluicemq_broker.store.connection import Documents, Refused, translated
from sluicemq_broker.store.inserts import outcome


def insert(database: Documents, collection: str, document: Mapping[str, Any], w: int | str) -> bool:
    """Store it; False: its ``_id`` is there. ``w``: how many nodes are waited for.

    Crash or lost reply: it is stored or not, once. Raises as every statement does.
    """
    concern = {"w": w}
    with translated():
        answer = database.command({"insert": collection, "documents": [document], "writeConcern": concern})
    pushed = outcome(answer)
    for error in pushed.refused.values():
        raise Refused(str(error))
    return not pushed.existing
