"""Tracing, if the program traces; without a tracer provider it costs nothing.

The library never imports OpenTelemetry by itself: a program that has set a tracer provider has. Only then
:mod:`sluicemq.spans` is loaded, which makes the spans.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from sluicemq.job import Job
from sluicemq.protocol.errors import SluiceError

if TYPE_CHECKING:
    from sluicemq.spans import Sending, Spans

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


def receiving(jobs: Sequence[Job], queue: str, endpoint: str) -> AbstractContextManager[None]:
    """Make a span for the block that takes ``jobs``, which is empty before."""
    spans = current()
    return nullcontext() if spans is None else spans.receiving(jobs, queue, endpoint)


def settling(
    jobs: Sequence[Job], refused: Mapping[int, SluiceError], verb: str, endpoint: str
) -> AbstractContextManager[None]:
    """Make a span for the block that settles jobs of a claim, and adds the refusals to ``refused``."""
    spans = current()
    return nullcontext() if spans is None else spans.settling_claimed(jobs, refused, verb, endpoint)


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
