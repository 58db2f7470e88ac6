"""Results on their way to who asked: a large one is read, and sent, when there is room for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import gevent

from sluicemq.protocol.errors import SluiceError, Unavailable
from sluicemq_broker.doors.refusals import refusal
from sluicemq_broker.queue import Outcome, StoredResult
from sluicemq_devices.sockets import SMALL, Lane

#: A stored result is in memory as it came from MongoDB, taken apart, and as it is sent.
_COPIES: Final = 3

Tell = Callable[[bytes | SluiceError], None]


def tell_when_it_fits(lane: Lane, outcome: Outcome, tell: Tell) -> None:
    """Call ``tell`` with what became of a job, once; not at all if the asker leaves before.

    A result that is here and does not fit is not kept: Unavailable says to ask again. So one large result, or
    many, asked for thousands of times by who does not read, takes the memory of a few.
    """
    if isinstance(outcome, StoredResult):
        lane.ration.when_room(_COPIES * outcome.size, partial(_begin_to_read, lane, outcome, tell))
    elif isinstance(outcome, bytes) and len(outcome) > SMALL and not lane.ration.fits(len(outcome)):
        tell(Unavailable("what was asked for before this has not been read: ask again"))
    else:
        tell(outcome)


def _begin_to_read(lane: Lane, outcome: StoredResult, tell: Tell, has_room: bool) -> None:  # noqa: FBT001 - as it is called
    if has_room:
        gevent.spawn(_read, lane, outcome, tell)


def _read(lane: Lane, outcome: StoredResult, tell: Tell) -> None:
    try:
        tell(outcome.read())
    except Exception as error:  # noqa: BLE001 - who asked must have an answer
        tell(refusal(error))
    finally:
        lane.ration.release(_COPIES * outcome.size)
