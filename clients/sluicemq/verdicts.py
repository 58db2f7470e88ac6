"""Verdicts on jobs: what the end of a handler means."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from sluicemq import handlers, tracing
from sluicemq.codec import Codec, encoded
from sluicemq.complaints import log
from sluicemq.failures import FailureLog, failure_of
from sluicemq.forward import FanOut, Forward, as_sent
from sluicemq.handlers import Handler
from sluicemq.job import Job
from sluicemq.protocol import wire
from sluicemq.protocol.durations import delay_of
from sluicemq.protocol.errors import Reject, Requeue, Retry
from sluicemq.protocol.readable import said
from sluicemq.time_limits import Interruptible, limited, log_hung
from sluicemq.transport.assignment import JobVerdict, not_begun

if TYPE_CHECKING:
    from sluicemq.spans import Spans


#: Of all workers of this process.
_failures: Final = FailureLog()


class Verdicts:
    """Calls the handler of a worker for each job, in spans if the program traces.

    ``on_unusable`` is called with the error of a handler that does nothing, such as an ``async def``: its job
    is given back, as other jobs would fare no better. ``codec``: makes bytes of other results; None: refuses
    them. ``on_hung`` is called with a job whose handler has not ended after its hard time limit.
    """

    _unusable = staticmethod(handlers.not_plain)

    def __init__(
        self,
        handler: Handler,
        endpoint: str,
        *,
        pop: bool,
        on_unusable: Callable[[TypeError], None],
        codec: Codec | None = None,
        on_hung: Callable[[Job], object] = log_hung,
    ) -> None:
        self._handler = handler
        self._endpoint = endpoint
        self._pop = pop
        self._on_unusable = on_unusable
        self._codec = codec
        self._on_hung = on_hung

    def on(self, job: Job) -> JobVerdict:
        """Have a job handled, and return the verdict on it."""
        spans = tracing.current()
        job.began = monotonic()
        if spans is None:
            try:
                return self.of_result(job, self._handled(job))
            except BaseException as error:  # noqa: BLE001 - also SystemExit: the job must be given back
                return self.of_error(job, error)
        try:
            with spans.processing(job, self._endpoint):
                verdict = self.of_result(job, self._handled(job))
        except BaseException as error:  # noqa: BLE001 - as above
            verdict = self.of_error(job, error)
        return self.traced(spans, job, verdict)

    def _handled(self, job: Job) -> Any:
        """Call the handler, within the time limits of the job."""
        if job.time_limits is None:
            return self._handler(job)
        run = Interruptible()
        with limited(job, run.interrupt, self._on_hung):
            return run.call(self._handler, job)

    def of_error(self, job: Job, error: BaseException) -> JobVerdict:
        """Return what an exception of the handler, which is being handled, means for its job."""
        if job.is_cancelled:
            log.info("job %s of queue %s ended: %s", job.id, job.queue, job.source.why_cancelled(job))
            return not_begun(job)
        match error:
            case Reject():
                return JobVerdict(job, wire.REJECT, said(error), options=failure_of(error, job.began).sent())
            case Retry():
                delay, about = delay_of("delay", error.delay), failure_of(error, job.began)
                return JobVerdict(job, wire.ROLLBACK, said(error), delay, options=about.sent())
            case Requeue():
                return JobVerdict(job, wire.RELEASE, delay=error.delay)
            case _OnlyBegun():
                return self._given_back(job, error.result)
        failure = failure_of(error, job.began)
        _failures.note(job, error, failure, monotonic())
        return JobVerdict(job, wire.ROLLBACK, said(error, named=True), options=failure.sent())

    def traced(self, spans: Spans, job: Job, verdict: JobVerdict) -> JobVerdict:
        """Return the verdict with the span of its settlement."""
        if self._pop:
            return verdict
        span, onward = spans.settling(job, verdict.verb, verdict.onward, self._endpoint)
        return verdict._replace(span=span, onward=onward)

    def of_result(self, job: Job, result: Any) -> JobVerdict:
        """Return what a result of the handler means for its job; raises for one that can't be sent."""
        if job.committed is not None:
            return JobVerdict(job, wire.COMMIT, job.committed)
        if result is None or type(result) is bytes:
            return JobVerdict(job, wire.COMMIT, result)
        if isinstance(result, Forward) and not self._pop:
            return JobVerdict(job, wire.FORWARD, onward=as_sent(result.onward))
        if isinstance(result, FanOut) and not self._pop:
            onward = [as_sent(forward) for forward in result.onward]
            data = handlers.as_result(result.result)
            return JobVerdict(job, wire.FAN_OUT, data, onward=onward, options=result.options)
        if handlers.only_begun(result):
            raise _OnlyBegun(result)
        if self._codec is not None and not isinstance(result, bytearray | memoryview | bytes):
            return JobVerdict(job, wire.COMMIT, encoded(self._codec, result))
        return JobVerdict(job, wire.COMMIT, handlers.as_result(result))

    def _given_back(self, job: Job, unfinished: Any) -> JobVerdict:
        with suppress(Exception):
            unfinished.close()  # or Python says that it was never awaited
        self._on_unusable(self._unusable(f"returned a {type(unfinished).__name__}"))
        return not_begun(job)


class _OnlyBegun(Exception):
    """A handler has returned a coroutine or generator, which nobody runs."""

    def __init__(self, result: Any) -> None:
        super().__init__(f"the handler returned a {type(result).__name__}")
        self.result = result
