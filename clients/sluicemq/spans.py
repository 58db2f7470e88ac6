"""Spans of a job, after OpenTelemetry's semantic conventions for messaging.

::

    send mail  (PRODUCER)  from a push until it is confirmed; its context travels in the job's headers
    ├── wait mail  (INTERNAL)  from the broker's acceptance to the handler: no convention has this one
    └── process mail  (CONSUMER)  the handler
        ├── ...  spans of the handler: also the `send next` of a pipeline
        └── commit mail  (CLIENT)  or rollback, reject, release: until the broker has confirmed it

``receive mail`` (CLIENT) is a claim or a pop, and links to its jobs. Only this module imports OpenTelemetry;
:mod:`sluicemq.tracing` imports it when a tracer provider is set.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from time import time_ns
from typing import Any, Final
from urllib.parse import urlsplit

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from sluicemq.job import Job
from sluicemq.protocol import wire
from sluicemq.protocol.errors import Reject, Requeue, Retry, SluiceError
from sluicemq.protocol.options import JobOptions
from sluicemq.protocol.readable import said
from sluicemq.receipt import PushReceipt
from sluicemq.version import VERSION


class Spans:
    """Makes the spans of one tracer provider."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def sending(self, queue: str, endpoint: str, headers: Any = None) -> Sending:
        """Begin a push; ``headers``: those of its one job, if that is known."""
        given = None if headers is None else _context_of(headers)
        links = () if given is None else (Link(given),)
        kind = SpanKind.CLIENT if _is_foreign(given) else SpanKind.PRODUCER
        return Sending(self._begin("send", "send", queue, endpoint, kind, links=links))

    @contextmanager
    def processing(self, job: Job, endpoint: str) -> Iterator[None]:
        """Make a span current for the handler of a job; also make a span for the job's time in the queue.

        The span's parent is the context in the job's headers. It also links to that context, and to a span
        around it.
        """
        creation = propagate.extract(job.headers, Context(), _TEXT)
        around = trace.get_current_span().get_span_context()
        sent = trace.get_current_span(creation).get_span_context()
        links = [Link(context) for context in (sent, around) if context.is_valid]
        began = time_ns()
        if sent.is_valid and job.attempt == 1:
            self._waited(job, endpoint, creation, began)
        span = self._begin(
            "process", "process", job.queue, endpoint, SpanKind.CONSUMER,
            links=links, parent=creation, start_time=began, attributes=_of_job(job),
        )  # fmt: skip
        within = trace.set_span_in_context(span, creation)
        job.trace = within
        token = contexts.attach(within)
        try:
            yield
        except Requeue:
            raise
        except BaseException as error:
            if not isinstance(error, Reject | Retry):
                _record(span, error)
            _fail(span, error)
            raise
        finally:
            contexts.detach(token)
            span.end()

    def settling(
        self, job: Job, verb: str, onward: list[Any] | None, endpoint: str
    ) -> tuple[Span, list[Any] | None]:
        """Begin the settlement of a job that :meth:`process` has handled.

        Returns the span, and the ``onward`` of the job or its children with this span's context.
        """
        kind = SpanKind.CLIENT if onward is None else SpanKind.PRODUCER
        span = self._begin(
            verb.lower(), "settle", job.queue, endpoint, kind, parent=job.trace, attributes=_of_job(job)
        )
        if onward is None:
            return span, None
        if verb == wire.FAN_OUT:
            return span, [_carried_on(span, {}, child) for child in onward]
        return span, _carried_on(span, job.headers, onward)

    @contextmanager
    def receiving(self, jobs: Sequence[Job], queue: str, endpoint: str) -> Iterator[None]:
        """Make a span that links to each of the jobs which the block takes; no span if there are none."""
        began = time_ns()
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            if jobs or error:
                span = self._begin(
                    "receive", "receive", queue, endpoint, SpanKind.CLIENT,
                    links=_links(jobs), start_time=began, attributes=_of_jobs(jobs),
                )  # fmt: skip
                self.end(span, error)

    @contextmanager
    def settling_claimed(
        self, jobs: Sequence[Job], refused: Mapping[int, SluiceError], verb: str, endpoint: str
    ) -> Iterator[None]:
        """Make a span for the block that settles jobs of a claim; it fails with the first refusal."""
        span = self._begin(
            verb.lower(), "settle", jobs[0].queue, endpoint, SpanKind.CLIENT,
            links=_links(jobs), attributes=_of_jobs(jobs),
        )  # fmt: skip
        error: BaseException | None = None
        try:
            yield
            error = next(iter(refused.values()), None)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.end(span, error)

    def end(self, span: Span, error: BaseException | None = None, at: int | None = None) -> None:
        """End a span, with its error if there is one, ``at`` nanoseconds since 1970 (None: now)."""
        if error is not None:
            _fail(span, error)
        span.end(at)

    def _waited(self, job: Job, endpoint: str, parent: Context, until: int) -> None:
        span = self._begin(
            "wait", None, job.queue, endpoint, SpanKind.INTERNAL,
            parent=parent, start_time=until - int(job.age * 1e9), attributes=_of_job(job),
        )  # fmt: skip
        span.end(until)

    def _begin(
        self,
        name: str,
        kind_of_operation: str | None,
        queue: str,
        endpoint: str,
        kind: SpanKind,
        *,
        links: Sequence[Link] = (),
        parent: Context | None = None,
        start_time: int | None = None,
        attributes: dict[str, Any] | None = None,
    ) -> Span:
        known = {
            "messaging.system": "sluicemq",
            "messaging.operation.name": name,
            "messaging.destination.name": queue,
            **_server(endpoint),
            **(attributes or {}),
        }
        if kind_of_operation is not None:
            known["messaging.operation.type"] = kind_of_operation
        return self._tracer.start_span(
            f"{name} {queue}", parent, kind, known, links, start_time, record_exception=False
        )


class Sending:
    """The span of a push, of one job or many; it ends when each job is stored or refused."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._lock = threading.Lock()
        self._unanswered = 0
        self._jobs = 0
        self._last = ""
        self._refused = 0
        self._error: BaseException | None = None

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Keep the span open while jobs are added; it fails with an exception of the block."""
        self._unanswered += 1
        try:
            yield
        except BaseException as error:
            self._error = error
            raise
        finally:
            self.answered()

    def carried(self, options: JobOptions) -> JobOptions:
        """Return the options of a job with this push's context in its headers.

        A context of another trace stays: somebody chose it. A context of this trace is that of a job whose
        headers a handler passes on, and is replaced.
        """
        own = options.get("headers")
        if own is not None and not isinstance(own, dict):
            return options  # and may be refused in a moment
        given = None if own is None else _context_of(own)
        if given is not None and given.trace_id != self._span.get_span_context().trace_id:
            return options
        return {**options, "headers": _with_context_of(self._span, own or {})}

    def add(self, receipt: PushReceipt) -> None:
        """Add one job, before it is sent."""
        receipt._sending = self
        with self._lock:
            self._unanswered += 1
            self._jobs += 1
        self._last = receipt.id

    def answered(self, error: BaseException | None = None, at: int | None = None) -> None:
        """Note the answer to one job, that came ``at`` nanoseconds since 1970 (None: now)."""
        with self._lock:
            self._unanswered -= 1
            over = not self._unanswered
            if error is not None:
                self._refused += 1
                self._error = self._error or error
        if over:
            self._end(at)

    def _end(self, at: int | None) -> None:
        if self._jobs == 1:
            self._span.set_attribute("messaging.message.id", self._last)
        elif self._jobs:
            self._span.set_attribute("messaging.batch.message_count", self._jobs)
        if self._error is not None:
            many = f"{self._refused} of {self._jobs} jobs refused, the first: " if self._jobs > 1 else ""
            _fail(self._span, self._error, many)
        self._span.end(at)


def of(provider: Any) -> Spans | None:
    """Return the spans of this tracer provider; None for a placeholder of a provider to come."""
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    return Spans(trace.get_tracer("sluicemq", VERSION, provider, "https://opentelemetry.io/schemas/1.44.0"))


class _Text(Getter[dict[str, Any]]):
    """Reads headers, which a stranger may have written."""

    def get(self, carrier: dict[str, Any], key: str) -> list[str] | None:
        value = carrier.get(key)
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: dict[str, Any]) -> list[str]:
        return [key for key in carrier if isinstance(key, str)]


_TEXT: Final = _Text()


def _context_of(headers: Any) -> trace.SpanContext | None:
    """Return the context in these headers."""
    if not isinstance(headers, dict):
        return None
    found = trace.get_current_span(propagate.extract(headers, Context(), _TEXT)).get_span_context()
    return found if found.is_valid else None


def _is_foreign(given: trace.SpanContext | None) -> bool:
    return given is not None and given.trace_id != trace.get_current_span().get_span_context().trace_id


def _with_context_of(span: Span, own: dict[str, Any]) -> dict[str, Any]:
    fields = propagate.get_global_textmap().fields
    carrier = {name: value for name, value in own.items() if name not in fields}
    propagate.inject(carrier, trace.set_span_in_context(span))
    return carrier


def _carried_on(span: Span, without: dict[str, Any], onward: list[Any]) -> list[Any]:
    """Return an ``onward`` with a span's context; ``without``: its headers if it has none."""
    queue, payload, said = onward
    own = (said or {}).get("headers", without)
    return [queue, payload, {**(said or {}), "headers": _with_context_of(span, own)}]


def _links(jobs: Sequence[Job]) -> list[Link]:
    return [Link(sent) for job in jobs if (sent := _context_of(job.headers)) is not None]


def _of_job(job: Job) -> dict[str, Any]:
    return {"messaging.message.id": job.id, "messaging.sluicemq.message.delivery_attempt": job.attempt}


def _of_jobs(jobs: Sequence[Job]) -> dict[str, Any]:
    return _of_job(jobs[0]) if len(jobs) == 1 else {"messaging.batch.message_count": len(jobs)}


@lru_cache(maxsize=64)
def _server(endpoint: str) -> dict[str, Any]:
    """Return the attributes that name the broker."""
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname or parts.path, parts.port
    except ValueError:
        return {}
    return {"server.address": host, **({"server.port": port} if port else {})}


def _record(span: Span, error: BaseException) -> None:
    with suppress(Exception):  # an error whose __str__ raises: a span must not change the handler's outcome
        span.record_exception(error)


def _fail(span: Span, error: BaseException, before: str = "") -> None:
    kind = error.code if isinstance(error, SluiceError) else type(error).__qualname__
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, f"{before}{said(error)}"))
