"""Explanation of a missing answer: whether the broker answers, and whether its store does."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from sluicemq.cli.output import CommandClient, Invocation
from sluicemq.client import Client
from sluicemq.producer import Producer
from sluicemq.protocol import wire
from sluicemq.protocol.errors import NotAdmittedError, SluiceError, TimeoutError, UnavailableError
from sluicemq.transport.connection import NOBODY_ANSWERS
from sluicemq.transport.entry import CANT_ENTER

#: Exit codes: no broker answers; one does, but its store (MongoDB) does not; one does not let this client in.
NO_BROKER, NO_STORE, NOT_ADMITTED = 3, 4, 5


def reached(
    invocation: Invocation, error: NotAdmittedError | TimeoutError | UnavailableError
) -> tuple[int, str]:
    """Return the exit code for this error, and what the user should know."""
    if CANT_ENTER in str(error):
        return NOT_ADMITTED, ""
    if NOBODY_ANSWERS in str(error):
        return NO_BROKER, "start one with `sluicemq serve`, or name another with --endpoint"
    try:
        # Seconds for the test, at most
        with Client(timeout=min(invocation.timeout, 3.0), wait=False, endpoint=invocation.access) as client:
            health = client.health()
    except NotAdmittedError as refusal:
        return NOT_ADMITTED, str(refusal)
    except SluiceError:
        return NO_BROKER, ""
    if problem := store_problem(health.store):
        return NO_STORE, f"the broker answers, its store does not: {problem}{_what_to_do(error)}"
    late = isinstance(error, TimeoutError)
    return NO_BROKER, "the broker and its store answer: give it more time with --timeout" if late else ""


def leave(producer: Producer) -> None:
    """Don't wait any longer for confirmations that did not come in time."""
    with suppress(SluiceError):
        producer.close(0.0)


def store_problem(store: object) -> str:
    """Return what the broker says is wrong with its store; empty: nothing, or it does not say."""
    said = str(store or wire.STORE_OK)
    return "" if said == wire.STORE_OK else said


def counted(client: CommandClient, queue: str | None) -> list[dict[str, Any]]:
    """Return one queue, or all, as the broker sends them."""
    sent = client.sent.queues
    return list(sent.list()) if queue is None else [sent.get(queue)]


def last_counts(
    client: CommandClient, failure: TimeoutError | UnavailableError
) -> tuple[list[dict[str, Any]], str]:
    """Return the queues as they were counted last, and what is wrong with the store.

    Raises the error of the question if nothing is wrong with the store.
    """
    stats = client.sent.stats()
    if problem := store_problem(stats["broker"].get("store")):
        return stats["queues"], problem
    raise failure


def _what_to_do(error: SluiceError) -> str:
    if error.changes_nothing:
        return ""
    if isinstance(error, TimeoutError) and error.id is not None:
        return (
            f". Job {error.id} may be stored already, or still be: push it again with --id {error.id}, "
            "which makes no second one"
        )
    return ". A change may still be carried out"
