"""A question to the brokers at all endpoints, each asked by a client of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import monotonic
from typing import Any, Final, NamedTuple

from sluicemq.cli.output import CommandClient, Invocation
from sluicemq.protocol.errors import SluiceError
from sluicemq.transport.access import Access
from sluicemq.transport.endpoints import Place, place
from sluicemq.transport.names import Names, Resolve

#: Brokers that are asked at one time.
_AT_ONCE: Final = 16


class Answer(NamedTuple):
    """The answer of the broker at one endpoint, or the error in its place."""

    endpoint: str
    value: Any = None
    error: SluiceError | None = None


def at_each(invocation: Invocation, ask: Callable[[CommandClient], Any]) -> list[Answer]:
    """Return what each broker answers; raises the error of the first if none does."""
    access = invocation.access
    # Part of the time-out in which names that stand for several brokers are looked up
    endpoints = brokers_at(access, invocation.timeout * 0.5)

    def ask_one(endpoint: str) -> Answer:
        there = replace(access, endpoints=(endpoint,))
        try:
            with CommandClient(timeout=invocation.timeout, wait=False, endpoint=there) as client:
                return Answer(endpoint, ask(client))
        except SluiceError as error:
            return Answer(endpoint, error=error)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(ask_one, endpoints))
    errors = [answer.error for answer in answers if answer.error is not None]
    if len(errors) == len(answers):
        raise errors[0]
    return answers


def brokers_at(access: Access, within: float) -> list[str]:
    """Return an endpoint for each broker: names that stand for several are looked up now.

    A name without an address after these seconds stays: its client says so.
    """
    places = [place(endpoint) for endpoint in access.endpoints]
    names = _looked_up({where.host for where in places if where.all_of}, within, access.resolve)
    return [endpoint for where in places for endpoint in _addresses(where, names)]


def unanswered(invocation: Invocation, answers: Sequence[Answer]) -> list[dict[str, str]]:
    """Say which brokers have not answered, and return them for ``--json``."""
    missing = [(answer.endpoint, answer.error) for answer in answers if answer.error is not None]
    for endpoint, error in missing:
        invocation.note(f"no answer from {endpoint}: {error}")
    return [{"endpoint": where, "code": why.code, "message": str(why)} for where, why in missing]


def _looked_up(hosts: set[str], within: float, resolve: Resolve) -> Names:
    came, until = threading.Event(), monotonic() + within
    names = Names(came.set, resolve)
    for host in hosts:
        names.look_up(host)
    while any(map(names.sought, hosts)) and came.wait(max(0.0, until - monotonic())):
        came.clear()
        names.collect()
    return names


def _addresses(where: Place, names: Names) -> list[str]:
    known = names.known(where.host) if where.all_of else ()
    found = [f"tcp://{where.source}{ip.text}:{where.port}" for ip in known if ip.ipv6 in where.families]
    return found or [where.endpoint]
