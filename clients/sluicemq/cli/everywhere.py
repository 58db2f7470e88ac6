"""A question to the brokers at all endpoints, each asked by a client of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, NamedTuple

from sluicemq.cli.output import Invocation
from sluicemq.client import Client
from sluicemq.protocol.errors import SluiceError
from sluicemq.transport.endpoints import place
from sluicemq.transport.names import addresses_of

#: Brokers that are asked at one time.
_AT_ONCE: Final = 16


class Answer(NamedTuple):
    """The answer of the broker at one endpoint, or the error in its place."""

    endpoint: str
    value: Any = None
    error: SluiceError | None = None


def at_each(invocation: Invocation, ask: Callable[[Client], Any]) -> list[Answer]:
    """Return what each broker answers; raises the error of the first if none does."""
    access = invocation.access
    endpoints = [each for given in access.endpoints for each in _brokers_at(given)]

    def asked(endpoint: str) -> Answer:
        there = replace(access, endpoints=(endpoint,))
        try:
            with Client(there, timeout=invocation.timeout, patient=False) as client:
                return Answer(endpoint, ask(client))
        except SluiceError as error:
            return Answer(endpoint, error=error)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(asked, endpoints))
    errors = [each.error for each in answers if each.error is not None]
    if len(errors) == len(answers):
        raise errors[0]
    return answers


def unanswered(invocation: Invocation, answers: Sequence[Answer]) -> list[dict[str, str]]:
    """Say which brokers have not answered, and return them for ``--json``."""
    missing = [(each.endpoint, each.error) for each in answers if each.error is not None]
    for endpoint, error in missing:
        invocation.note(f"no answer from {endpoint}: {error}")
    return [{"endpoint": where, "code": why.code, "message": str(why)} for where, why in missing]


def _brokers_at(endpoint: str) -> list[str]:
    """Return an endpoint for each broker: a name that stands for several is looked up now."""
    where = place(endpoint)
    if not where.all_of:
        return [endpoint]
    try:
        return [f"tcp://{each.text}:{where.port}" for each in addresses_of(where.host)]
    except OSError:
        return [endpoint]
