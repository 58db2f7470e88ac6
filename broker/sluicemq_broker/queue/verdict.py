"""Verdicts of workers on their deliveries, and the answer once all that came together are durable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sluicemq.protocol import job_headers, wire
from sluicemq.protocol.errors import BadFramesError, SluiceError, UnavailableError
from sluicemq_broker.job import NOT_DESCRIBED, Failure
from sluicemq_broker.queue.ports import Durable
from sluicemq_broker.runtime import FLAG, shielded
from sluicemq_broker.security import Caller

#: Children of one FANOUT at most, and bytes of all their headers that came as frames.
MOST_CHILDREN: Final = 1000
MOST_HEADERS: Final = 1 << 20


class Onward(NamedTuple):
    """A new job in another queue: its payload (None: that of the job that makes it) and its own options.

    ``frame``: its options as a plain socket sent them; :meth:`read` reads them.
    """

    queue: str
    payload: bytes | None
    options: Mapping[str, Any]
    frame: bytes = b""

    @property
    def size(self) -> int:
        """Bytes that it holds until it is written."""
        return len(self.payload or b"") + len(self.frame)

    def read(self) -> Onward:
        """Return it with its options; raises BadHeaders, or TooLarge."""
        return self._replace(options=job_headers.decode(self.frame)) if self.frame else self


class Verdict(NamedTuple):
    """A worker's verdict on one delivery; ``detail`` is the result (bytes) or the reason (text).

    ``onward`` is where a FORWARD goes, or the children of a FANOUT; ``join``: the job is delivered once more
    when these have ended; ``allow_failures``: it goes on if any of them fails. ``failure``: the exception
    behind a failure.
    """

    receipt: bytes
    kind: str
    detail: bytes | str = b""
    delay: float | None = None
    onward: tuple[Onward, ...] = ()
    join: bool = False
    allow_failures: bool = False
    failure: Failure = NOT_DESCRIBED

    @property
    def size(self) -> int:
        """Bytes that it holds until it is written."""
        return len(self.detail) + len(self.failure.traceback) + sum([forward.size for forward in self.onward])


#: Options of a FANOUT.
FAN_OUT_OPTIONS: Final = {"join": FLAG, "allow_failures": FLAG}


class Settlement:
    """Verdicts that came together; once all are settled, ``on_durable`` is called with those refused.

    ``caller``: who gave the verdicts, where that is not the worker on its own connection.
    """

    __slots__ = ("_on_durable", "_pending", "caller", "problems")

    def __init__(
        self,
        on_durable: Durable | None = None,
        caller: Caller | None = None,
    ) -> None:
        self.caller = caller
        self._pending = 1  # until close(): no more verdicts come
        self.problems: dict[int, SluiceError] = {}
        """Verdicts that were refused so far, by their positions."""
        self._on_durable = on_durable

    def expect(self, count: int) -> None:
        """Wait for ``count`` more verdicts."""
        self._pending += count

    def refuse(self, position: int, problem: SluiceError) -> None:
        """Refuse one of them; it is settled later."""
        self.problems[position] = problem

    def settled(self, position: int, problem: SluiceError | None = None) -> None:
        """One of them is durable, or refused."""
        if problem:
            self.problems[position] = problem
        self.close()

    def join(self, positions: Sequence[int], problems: Mapping[int, SluiceError]) -> None:
        """Verdicts at these positions, which were expected as one and settled apart, are settled."""
        self.problems.update({positions[at]: error for at, error in problems.items()})
        self.close()

    def close(self, count: int = 1) -> None:
        """Wait for ``count`` fewer."""
        self._pending -= count
        if not self._pending and self._on_durable:
            shielded(self._on_durable, self.problems)


def not_durable() -> UnavailableError:
    """Return the answer to a verdict that could not be written."""
    return UnavailableError(
        "this is not durable: the broker stops, or has failed; the job is delivered again"
    )


def read_verdict(kind: bytes) -> str:
    """Return the verdict that a plain worker's frame names; raises :class:`BadFrames` for anything else."""
    try:
        return PLAIN[kind]
    except KeyError:
        raise BadFramesError(f"verdict {kind[:32]!r} is not {_WORDS}") from None


#: Verdicts of plain workers by their frames; RELEASE is for the library.
PLAIN: Final = {
    kind.encode(): kind for kind in (wire.COMMIT, wire.ROLLBACK, wire.REJECT, wire.FORWARD, wire.FAN_OUT)
}
_WORDS: Final = f"{', '.join(list(PLAIN.values())[:-1])} or {list(PLAIN.values())[-1]}"
