"""Long work in short turns of the hub, so that all connections have theirs in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import thread_time
from typing import Final, TypeVar

import gevent

#: Seconds to sleep until the next turn of the hub: a sleep of 0 would run before timers and starve them.
NEXT_TURN: Final = 1e-9
#: Seconds of CPU that a greenlet with much to do takes in one turn.
_PIECE: Final = 0.002

_Item = TypeVar("_Item")


def let_others_run() -> None:
    """Wait for the next turn of the hub, so that timers and other greenlets run before."""
    gevent.sleep(NEXT_TURN)


def in_pieces(items: Iterable[_Item]) -> Iterator[_Item]:
    """Yield items to a greenlet; others run whenever it has computed with them for some milliseconds."""
    until = thread_time() + _PIECE
    for item in items:
        if thread_time() > until:
            let_others_run()
            until = thread_time() + _PIECE
        yield item


def in_parts(items: Sequence[_Item], most: int) -> Iterator[Sequence[_Item]]:
    """Yield items in parts of ``most``; the last one may be smaller."""
    return (items[start : start + most] for start in range(0, len(items), most))


def in_turns(step: Callable[[], bool]) -> None:
    """Call ``step`` now, and then once in each turn of the hub while it returns True."""
    if step():
        gevent.spawn(_repeat, step)


def _repeat(step: Callable[[], bool]) -> None:
    let_others_run()
    while step():
        let_others_run()
