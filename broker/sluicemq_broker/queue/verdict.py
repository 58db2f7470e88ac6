"""A worker's word on its jobs, and whoever waits until it is durable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFrames, SluiceError, Unavailable
from sluicemq_broker.runtime import shielded


class Onward(NamedTuple):
    """Where a job goes on: to which queue, with which payload (None: its own), and options said anew."""

    queue: str
    payload: bytes | None
    options: Mapping[str, Any]


class Verdict(NamedTuple):
    """A worker's word on one delivery; ``detail`` is the result (bytes) or the reason (text).

    ``onward``, of a FORWARD: where the job goes on; of a FANOUT: its children.
    """

    receipt: bytes
    kind: str
    detail: bytes | str = b""
    delay: float | None = None
    onward: tuple[Onward, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that it keeps until it is written."""
        return len(self.detail) + sum([len(each.payload or b"") for each in self.onward])


class Settlement:
    """Verdicts that came together: when all are durable, ``on_durable`` hears which were refused."""

    __slots__ = ("_on_durable", "_pending", "problems")

    def __init__(self, on_durable: Callable[[dict[int, SluiceError]], None] | None = None) -> None:
        self._pending = 1  # until it is closed: no more verdicts come
        self.problems: dict[int, SluiceError] = {}
        """Those that were refused so far, by their positions."""
        self._on_durable = on_durable

    def expect(self, count: int) -> None:
        """So many verdicts more are to be settled."""
        self._pending += count

    def refuse(self, position: int, problem: SluiceError) -> None:
        """One of them is refused, whenever it is settled."""
        self.problems[position] = problem

    def settled(self, position: int, problem: SluiceError | None = None) -> None:
        """One of them is durable or refused."""
        if problem:
            self.problems[position] = problem
        self.close()

    def join(self, positions: Sequence[int], problems: Mapping[int, SluiceError]) -> None:
        """Those at these positions, which were settled apart as one of those expected, are all settled."""
        self.problems.update({positions[at]: error for at, error in problems.items()})
        self.close()

    def close(self, count: int = 1) -> None:
        """So many fewer to wait for."""
        self._pending -= count
        if not self._pending and self._on_durable:
            shielded(self._on_durable, self.problems)


def not_durable() -> Unavailable:
    """What whoever waits hears of a verdict that could not be written."""
    return Unavailable("this is not durable: the broker stops, or has failed; the job is delivered again")


def read_verdict(kind: bytes) -> str:
    """The verdict a plain worker's frame names; raises :class:`BadFrames` for anything else."""
    try:
        return PLAIN[kind]
    except KeyError:
        raise BadFrames(f"verdict {kind[:32]!r} is not {_WORDS}") from None


#: What a plain worker may say, by its frame: RELEASE is the library's.
PLAIN: Final = {
    kind.encode(): kind for kind in (wire.COMMIT, wire.ROLLBACK, wire.REJECT, wire.FORWARD, wire.FAN_OUT)
}
_WORDS: Final = f"{', '.join(list(PLAIN.values())[:-1])} or {list(PLAIN.values())[-1]}"
