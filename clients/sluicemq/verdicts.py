"""Verdicts on jobs: what the end of a handler means."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sluicemq import handlers, tracing
from sluicemq.codec import Codec, encoded
from sluicemq.complaints import complain
from sluicemq.forward import FanOut, Forward, as_sent
from sluicemq.handlers import Handler
from sluicemq.job import Job
from sluicemq.protocol import wire
from sluicemq.protocol.durations import delay_of
from sluicemq.protocol.errors import Reject, Requeue, Retry
from sluicemq.protocol.readable import said
from sluicemq.transport.assignment import JobVerdict, not_begun


class Verdicts:
    """Calls the handler of a worker for each job, in spans if the program traces.

    ``on_unusable`` is called with the error of a handler that does nothing, such as an ``async def``: its job
    is given back, as other jobs would fare no better. ``codec``: makes bytes of other results; None: refuses
    them.
    """

    def __init__(
        self,
        handler: Handler,
        endpoint: str,
        *,
        pop: bool,
        on_unusable: Callable[[TypeError], None],
        codec: Codec | None = None,
    ) -> None:
        self._handler = handler
        self._endpoint = endpoint
        self._pop = pop
        self._on_unusable = on_unusable
        self._codec = codec

    def on(self, job: Job) -> JobVerdict:
        """Have a job handled, and return the verdict on it."""
        spans = tracing.current()
        if spans is None:
            return self._caught(job, self._handled)
        verdict = self._caught(job, lambda job: spans.process(self._handled, job, self._endpoint))
        if self._pop:
            return verdict
        span, onward = spans.settling(job, verdict.verb, verdict.onward, self._endpoint)
        return verdict._replace(span=span, onward=onward)

    def _caught(self, job: Job, work: Callable[[Job], JobVerdict]) -> JobVerdict:
        try:
            return work(job)
        except Reject as error:
            return JobVerdict(job, wire.REJECT, said(error))
        except Retry as error:
            return JobVerdict(job, wire.ROLLBACK, said(error), delay_of("delay", error.delay))
        except Requeue as error:
            return JobVerdict(job, wire.RELEASE, delay=error.delay)
        except _OnlyBegun as error:
            return self._given_back(job, error.result)
        except BaseException as error:  # noqa: BLE001 - also SystemExit: the job must be given back
            complain("job %s of queue %s failed", job.id, job.queue)
            return JobVerdict(job, wire.ROLLBACK, said(error, named=True))

    def _handled(self, job: Job) -> JobVerdict:
        result = self._handler(job)
        if result is None or type(result) is bytes:
            return JobVerdict(job, wire.COMMIT, result)
        if isinstance(result, Forward) and not self._pop:
            return JobVerdict(job, wire.FORWARD, onward=as_sent(result.onward))
        if isinstance(result, FanOut) and not self._pop:
            onward = [as_sent(each) for each in result.onward]
            return JobVerdict(job, wire.FAN_OUT, handlers.as_result(result.result), onward=onward)
        if handlers.only_begun(result):
            raise _OnlyBegun(result)
        if self._codec is not None and not isinstance(result, bytearray | memoryview | bytes):
            return JobVerdict(job, wire.COMMIT, encoded(self._codec, result))
        return JobVerdict(job, wire.COMMIT, handlers.as_result(result))

    def _given_back(self, job: Job, unfinished: Any) -> JobVerdict:
        with suppress(Exception):
            unfinished.close()  # or Python says that it was never awaited
        self._on_unusable(handlers.not_plain(f"returned a {type(unfinished).__name__}"))
        return not_begun(job)


class _OnlyBegun(Exception):
    """A handler has returned a coroutine or generator, which nobody runs."""

    def __init__(self, result: Any) -> None:
        super().__init__(f"the handler returned a {type(result).__name__}")
        self.result = result
