"""Explanation of a handshake that failed, from what libzmq reports of it."""

from __future__ import annotations

from typing import Final, NamedTuple

import zmq

from sluicemq.protocol.errors import NotAdmittedError, SluiceError, UnavailableError
from sluicemq.protocol.keys import key_id
from sluicemq.protocol.readable import brief
from sluicemq.transport.access import CURVE, NULL, PLAIN, Access

#: First words of each explanation.
CANT_ENTER: Final = "can't enter"

_WANTS: Final = "the broker wants a key: give key_file and server_key (or user and password)"
_STATUS_DENIED: Final = 400


class Failure(NamedTuple):
    """An event of libzmq's monitor: its number, and its value."""

    event: int
    value: int


def explained(access: Access, failure: Failure) -> SluiceError | None:
    """Return the error for a failed handshake; None: nothing is known that a key could mend.

    It is :class:`~sluicemq.NotAdmittedError` where the broker has answered, and
    :class:`~sluicemq.UnavailableError` where it may have had another reason to hang up.
    """
    if failure.event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        denied = failure.value == _STATUS_DENIED
        return _refused(access) if denied else _error(access, UnavailableError, _UNDECIDED)
    if failure.event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and failure.value == _MISMATCH:
        return _other_mechanism(access)
    if failure.event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and access.mechanism == PLAIN:
        return _refused(access)  # libzmq reads no ERROR here: its own name for it is misspelt
    return _other_key(access) if access.mechanism == CURVE else None


_MISMATCH: Final = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
_UNDECIDED: Final = "the broker can't decide now whether this client may"


def _refused(access: Access) -> SluiceError:
    if access.keys:
        own = key_id(access.keys.public)
        why = f"the broker refused this key (id {own}): `sluicemq principals` there adds it"
    elif access.mechanism == PLAIN:
        why = f"the broker refused user {brief(access.user)} with this password"
    else:
        why = "the broker wants a key that it knows: give a key_file" if access.server_key else _WANTS
    return _error(access, NotAdmittedError, why)


def _other_mechanism(access: Access) -> SluiceError:
    if access.mechanism == NULL:
        return _error(access, NotAdmittedError, _WANTS)
    shown = "key (CURVE)" if access.mechanism == CURVE else "user and password (PLAIN)"
    return _error(access, NotAdmittedError, f"this door of the broker takes no {shown}")


def _other_key(access: Access) -> SluiceError:
    """Return the error for a broker that hung up: it can't read what was encrypted for another key."""
    other = f"its key is another one than server_key (id {key_id(access.server_key)})"
    return _error(
        access, UnavailableError, f"it hangs up: {other}, or it takes no keys, or has no connection left"
    )


def _error(access: Access, kind: type[SluiceError], why: str) -> SluiceError:
    return kind(f"{CANT_ENTER} {access.endpoint}: {why}")
