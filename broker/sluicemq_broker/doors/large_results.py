"""Results for clients: a large one is read, and sent, when there is memory for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import gevent

from sluicemq.protocol.errors import SluiceError, UnavailableError
from sluicemq_broker.admin import READ_PACKED_SENT
from sluicemq_broker.doors.refusals import refusal
from sluicemq_broker.queue import Outcome, StoredResult
from sluicemq_devices.sockets import SMALL, Lane

Send = Callable[[bytes | SluiceError], None]


def send_when_it_fits(lane: Lane, outcome: Outcome, send: Send) -> None:
    """Call ``send`` once with the outcome of a job; not at all if the client leaves before.

    A result that is here and does not fit is not kept; the client gets Unavailable and can ask again. So
    thousands of requests for large results, by clients that read nothing, take the memory of a few.
    """
    if isinstance(outcome, StoredResult):
        lane.ration.when_room(READ_PACKED_SENT * outcome.size, partial(_begin_to_read, lane, outcome, send))
    elif isinstance(outcome, bytes) and len(outcome) > SMALL and not lane.ration.fits(len(outcome)):
        send(UnavailableError("earlier answers on this connection were not read: read them, then ask again"))
    else:
        send(outcome)


def _begin_to_read(lane: Lane, outcome: StoredResult, send: Send, has_room: bool) -> None:  # noqa: FBT001 - as it is called
    if has_room:
        gevent.spawn(_read, lane, outcome, send)


def _read(lane: Lane, outcome: StoredResult, send: Send) -> None:
    try:
        send(outcome.read())
    except Exception as error:  # noqa: BLE001 - the client must have an answer
        send(refusal(error))
    finally:
        lane.ration.release(READ_PACKED_SENT * outcome.size)
