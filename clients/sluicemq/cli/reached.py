"""Explanation of a missing answer: whether the broker answers, and whether its store does."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sluicemq.cli.output import Invocation
from sluicemq.client import Client
from sluicemq.producer import Producer
from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError, Timeout, Unavailable
from sluicemq.transport.connection import NOBODY_ANSWERS

#: Exit codes: no broker answers; one does, but its store (MongoDB) does not.
NO_BROKER, NO_STORE = 3, 4

_START_ONE = "start one with `sluicemq serve`, or name another with --endpoint"
_ASKED_FOR = 3.0  # seconds for the test, at most


def reached(invocation: Invocation, error: Timeout | Unavailable) -> tuple[int, str]:
    """Return the exit code for this error, and what the user should know."""
    if NOBODY_ANSWERS in str(error):
        return NO_BROKER, _START_ONE
    try:
        with Client(
            invocation.endpoint, timeout=min(invocation.timeout, _ASKED_FOR), patient=False
        ) as client:
            health = client.health()
    except SluiceError:
        return NO_BROKER, ""
    if problem := store_problem(health):
        return NO_STORE, f"the broker answers, its store does not: {problem}{_what_to_do(error)}"
    late = isinstance(error, Timeout)
    return NO_BROKER, "the broker and its store answer: give it more time with --timeout" if late else ""


def leave(producer: Producer) -> None:
    """Don't wait any longer for confirmations that did not come in time."""
    with suppress(SluiceError):
        producer.close(0.0)


def store_problem(health: Mapping[str, Any]) -> str:
    """Return what the broker says is wrong with its store; empty: nothing, or it does not say."""
    said = str(health.get("store", wire.STORE_OK))
    return "" if said == wire.STORE_OK else said


def last_counts(client: Client, failure: Timeout | Unavailable) -> tuple[list[dict[str, Any]], str]:
    """Return the queues as they were counted last, and what is wrong with the store.

    Raises the error of the question if nothing is wrong with the store.
    """
    stats = client.stats()
    if problem := store_problem(stats["broker"]):
        return stats["queues"], problem
    raise failure


def _what_to_do(error: Timeout | Unavailable) -> str:
    if error.changes_nothing:
        return ""
    if isinstance(error, Timeout) and error.id is not None:
        return (
            f". Job {error.id} may be stored already, or still be: push it again with --id {error.id}, "
            "which makes no second one"
        )
    return ". A change may still be carried out"
