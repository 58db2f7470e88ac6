"""Tracing, if the program traces; without a tracer provider it costs nothing.

The library never imports OpenTelemetry by itself: a program that has set a tracer provider has. Only then
:mod:`sluicemq.spans` is loaded, which makes the spans.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from sluicemq.job import Job
from sluicemq.protocol.errors import SluiceError

if TYPE_CHECKING:
    from sluicemq.spans import Sending, Spans

_J = TypeVar("_J", bound=Job)

_modules = sys.modules
#: The last tracer provider and its spans: one value, so that no thread sees half of it.
_latest: list[tuple[Any, Spans | None]] = [(None, None)]


def current() -> Spans | None:
    """Return the maker of spans; None without a tracer provider, which takes 0.1 us to find out."""
    api = _modules.get("opentelemetry.trace")
    return None if api is None else _of(api)


@contextmanager
def sending_many(queue: str, endpoint: str) -> Iterator[Sending | None]:
    """Make one span for all jobs that are pushed in the block; it ends with the last answer."""
    spans = current()
    if spans is None:
        yield None
        return
    sending = spans.sending(queue, endpoint)
    with sending.begun():
        yield sending


def receive(take: Callable[[], list[_J]], queue: str, endpoint: str) -> list[_J]:
    """Return the jobs that ``take`` returns, in a span."""
    spans = current()
    return take() if spans is None else spans.receive(take, queue, endpoint)


def settle(
    ask: Callable[[], dict[int, SluiceError]], jobs: Sequence[Job], verb: str, endpoint: str
) -> dict[int, SluiceError]:
    """Return the refusals that ``ask`` returns, by position, in a span for each job."""
    spans = current()
    return ask() if spans is None else spans.settle(ask, jobs, verb, endpoint)


def settled(ended: Iterable[tuple[Any, SluiceError | None]], at: int) -> None:
    """End the spans of verdicts that were answered: durable, or with an error.

    ``at``: nanoseconds since 1970.
    """
    spans = current()
    if spans is not None:
        for span, error in ended:
            spans.end(span, error, at)


def _of(api: Any) -> Spans | None:
    known, spans = _latest[0]
    if known is not None and getattr(api, "_TRACER_PROVIDER", api) is None:
        return None  # still not set: asking for it would take 1 us
    ask = getattr(api, "get_tracer_provider", None)  # None while another thread imports it
    if ask is None:
        return None
    provider = ask()
    if provider is not known:
        from sluicemq.spans import of  # noqa: PLC0415 - OpenTelemetry is optional

        spans = of(provider)
        _latest[0] = provider, spans
    return spans
