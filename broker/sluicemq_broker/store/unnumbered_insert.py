"""An insert of one document that MongoDB does not number: for what may come twice, or be lost, anyway.

The driver numbers each insert, so that it can send it again, and for each number the server writes a second
document (``config.transactions``): 0.2 ms of the 2 to 3 ms that a majority insert took, measured in turns. A
segment of a stream needs none, for its place tells whether it is there; nor does an event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sluicemq_broker.store.connection import Documents, on_answer
from sluicemq_broker.store.errors import Refused, translated
from sluicemq_broker.store.write_results import outcome


def insert(
    database: Documents,
    collection: str,
    document: Mapping[str, Any],
    w: int | str,
    stored: Callable[[], None] | None = None,
) -> bool:
    """Store it; False: its ``_id`` is there. ``w``: how many nodes are waited for.

    ``stored`` is called as soon as MongoDB has said so, a moment before this returns, or not at all. It must
    not raise or wait. Crash or lost reply: it is stored or not, once. Raises as every statement does.
    """

    def heard(answer: Mapping[str, Any]) -> None:
        if stored and not ("writeErrors" in answer or "writeConcernError" in answer):
            stored()

    command = {"insert": collection, "documents": [document], "writeConcern": {"w": w}}
    listening = on_answer.set(heard)
    try:
        with translated():
            answer = database.command(command)
    finally:
        on_answer.reset(listening)
    pushed = outcome(answer)
    for error in pushed.refused.values():
        raise Refused(str(error))
    return not pushed.existing
