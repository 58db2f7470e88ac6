"""The requests that namespaces are made of, and what their answers are read as."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from sluicemq.claim import Claim
from sluicemq.operation import Operation
from sluicemq.protocol.errors import UnfinishedError
from sluicemq.protocol.rows import from_wire
from sluicemq.protocol.wire import TaskField
from sluicemq.steps import Ask, Finds, Found, Steps, run
from sluicemq.transport.asker import Asker
from sluicemq.transport.job_fetch import JobFetch

Answer = TypeVar("Answer")


def unchanged(answer: Any) -> Any:
    """Return an answer as it is."""
    return answer


class Calls:
    """Requests of one client; each answer is read as a type of ``protocol/rows.py``.

    Verbs are made of steps, and :meth:`run` and :meth:`each` do these. For asyncio both are awaited, and so
    is all that is made of them.
    """

    #: How jobs are claimed and fetched.
    Claim: ClassVar[type[Claim]] = Claim
    Fetch: ClassVar[type[JobFetch]] = JobFetch

    def __init__(self, asker: Asker) -> None:
        self.asker = asker

    def run(self, steps: Steps[Answer]) -> Answer:
        """Do one step after the other; return what they return."""
        return run(steps, self.asker.do)

    def each(self, steps: Finds) -> Iterator[Any]:
        """Do one step after the other; yield what they find."""
        answer: Any = None
        with suppress(StopIteration):
            while True:
                step = steps.send(answer)
                if isinstance(step, Found):
                    yield step.value
                    answer = None
                else:
                    answer = self.asker.do(step)

    def reading(self, kind: type[Answer], ask: Ask, pick: Callable[[Any], Any] = unchanged) -> Steps[Answer]:
        """Ask, and return the part of the answer that ``pick`` returns, as this type."""
        return self.converted(kind, pick((yield ask)))

    def read(
        self, kind: type[Answer], verb: bytes, *fields: Any, pick: Callable[[Any], Any] = unchanged
    ) -> Answer:
        """Ask a question, or order what may be done twice: it is sent again after a lost connection."""
        return self.run(self.reading(kind, Ask(verb, fields), pick))

    def change(self, kind: type[Answer], verb: bytes, *fields: Any) -> Answer:
        """Give an order that is sent once, and return its answer."""
        return self.run(self.reading(kind, Ask(verb, fields, repeat=False)))

    def act(self, verb: bytes, *fields: Any, repeat: bool = False) -> None:
        """Give an order that has no answer; it is sent once, unless it may be done twice."""
        return self.run(self._acting(Ask(verb, fields, repeat)))

    def order(self, kind: type[Answer], verb: bytes, *fields: Any, wait: float | None) -> Operation[Answer]:
        """Give an order on many jobs; ``wait``: seconds until it is answered while it goes on."""
        return self.run(self._ordering(kind, verb, *fields, wait=wait))

    def converted(self, kind: type[Answer], value: Any) -> Answer:
        """Return an answer as this type."""
        return from_wire(kind, value)

    def _acting(self, ask: Ask) -> Steps[None]:
        yield ask

    def _ordering(self, kind: type[Answer], verb: bytes, *fields: Any, wait: float | None) -> Steps[Any]:
        timeout = self.asker.timeout
        # Seconds of a bulk order's time-out that are kept for the answer's way back
        most = max(timeout / 2, timeout - 1.0)
        within = most if wait is None else min(wait, most)
        return self._ordered(kind, (yield Ask(verb, (*fields, within), repeat=False)))

    def _ordered(self, kind: type[Answer], answer: Any) -> Any:
        return Operation.begun(self, kind, answer)


class PlainCalls(Calls):
    """Requests whose answers stay as the broker sent them, also with fields of a newer one."""

    def converted(self, kind: type[Answer], value: Any) -> Answer:  # noqa: ARG002
        """Return the answer as it is."""
        return value  # type: ignore[no-any-return]

    def _ordered(self, kind: type[Answer], answer: Any) -> Any:  # noqa: ARG002
        """Return the outcome of an order; raises UnfinishedError if it goes on."""
        if isinstance(answer, dict) and TaskField.TASK in answer:
            id_, done, total = (answer[field] for field in TaskField)
            of = "" if total is None else f" of {total}"
            raise UnfinishedError(
                f"the broker goes on, as operation {id_}: {done}{of} jobs so far", id_, done, total
            )
        return answer
