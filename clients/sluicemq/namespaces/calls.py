"""The requests that namespaces are made of, and what their answers are read as."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from sluicemq.operation import Operation
from sluicemq.protocol.errors import UnfinishedError
from sluicemq.protocol.rows import from_wire
from sluicemq.protocol.wire import TaskField
from sluicemq.transport.asker import Asker

#: Seconds of a bulk order's time-out that are kept for the answer's way back.
_ON_ITS_WAY: Final = 1.0

Answer = TypeVar("Answer")


class Calls:
    """Requests of one client; each answer is read as a type of ``protocol/rows.py``."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker

    def read(self, kind: type[Answer], verb: bytes, *fields: Any) -> Answer:
        """Ask a question, or order what may be done twice: it is sent again after a lost connection."""
        return self.converted(kind, self.asker.ask(verb, *fields))

    def change(self, kind: type[Answer], verb: bytes, *fields: Any) -> Answer:
        """Give an order that is sent once, and return its answer."""
        return self.converted(kind, self.asker.ask(verb, *fields, repeat=False))

    def act(self, verb: bytes, *fields: Any) -> None:
        """Give an order that is sent once and has no answer."""
        self.asker.ask(verb, *fields, repeat=False)

    def order(self, kind: type[Answer], verb: bytes, *fields: Any, wait: float | None) -> Operation[Answer]:
        """Give an order on many jobs; ``wait``: seconds until it is answered while it goes on."""
        return Operation.begun(self, kind, self._ordered(verb, *fields, wait=wait))

    def converted(self, kind: type[Answer], value: Any) -> Answer:
        """Return an answer as this type."""
        return from_wire(kind, value)

    def _ordered(self, verb: bytes, *fields: Any, wait: float | None) -> Any:
        timeout = self.asker.timeout
        most = max(timeout / 2, timeout - _ON_ITS_WAY)
        return self.asker.ask(verb, *fields, most if wait is None else min(wait, most), repeat=False)


class PlainCalls(Calls):
    """Requests whose answers stay as the broker sent them, also with fields of a newer one."""

    def converted(self, kind: type[Answer], value: Any) -> Answer:  # noqa: ARG002
        """Return the answer as it is."""
        return value  # type: ignore[no-any-return]

    def order(self, kind: type[Answer], verb: bytes, *fields: Any, wait: float | None) -> Any:  # noqa: ARG002
        """Return the outcome of an order; raises UnfinishedError if it goes on after ``wait`` seconds."""
        answer = self._ordered(verb, *fields, wait=wait)
        if isinstance(answer, dict) and TaskField.TASK in answer:
            id_, done, total = (answer[each] for each in TaskField)
            of = "" if total is None else f" of {total}"
            raise UnfinishedError(
                f"the broker goes on, as operation {id_}: {done}{of} jobs so far", id_, done, total
            )
        return answer
