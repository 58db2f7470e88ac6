"""A worker's word on its jobs, and whoever waits until it is durable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from sluicemq import wire
from sluicemq.errors import BadFrames, SluiceError, Unavailable
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

    __slots__ = ("on_durable", "pending", "problems")

    def __init__(self, on_durable: Callable[[dict[int, SluiceError]], None] | None = None) -> None:
        self.pending = 1
        self.problems: dict[int, SluiceError] = {}
        self.on_durable = on_durable

    def settled(self, position: int, problem: SluiceError | None = None) -> None:
        """One of them is durable or refused."""
        if problem:
            self.problems[position] = problem
        self.close()

    def close(self, count: int = 1) -> None:
        """So many fewer to wait for."""
        self.pending -= count
        if not self.pending and self.on_durable:
            shielded(self.on_durable, self.problems)


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
