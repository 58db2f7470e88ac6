"""OpenTelemetry's SDK for a test: what is traced meanwhile, in memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from support.waiting import wait_until


class Traced:
    """The spans that have ended so far."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def all(self) -> tuple[ReadableSpan, ...]:
        """All of them, in the order of their ends."""
        return self._exporter.get_finished_spans()

    def find(self, name: str) -> list[ReadableSpan]:
        """Return the spans of this name."""
        return [span for span in self.all() if span.name == name]

    def some(self, name: str, count: int) -> list[ReadableSpan]:
        """As many of this name, once they have ended."""
        wait_until(lambda: len(self.find(name)) == count, what=f"the end of {count} spans {name}")
        return self.find(name)

    def one(self, name: str, that: Callable[[ReadableSpan], bool] = lambda _span: True) -> ReadableSpan:
        """The only one of this name, once it has ended."""
        wait_until(lambda: any(map(that, self.find(name))), what=f"the end of {name}")
        (span,) = filter(that, self.find(name))
        return span


@contextmanager
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traced]:
    """A tracer provider is set; in its own words that can be done once in a process."""
    spans = Traced()
    with monkeypatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", spans.provider)
        yield spans


def parent_of(span: ReadableSpan) -> int | None:
    """The id of the span that it is a child of."""
    return span.parent.span_id if span.parent else None


def id_of(span: ReadableSpan) -> int:
    """Return the id of a span."""
    return int(span.context.span_id)
