"""Traces: a job's way from its producer through queues and workers, as a tracing system sees it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

import pytest
import zmq
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from sluicemq import (
    FanOut,
    Forward,
    Job,
    LeaseLostError,
    Producer,
    Reject,
    Requeue,
    Retry,
    TooLargeError,
    Worker,
)
from sluicemq.handlers import Handler
from support.broker_under_test import AT_ONCE, BrokerUnderTest, serving, spare
from support.own_queue import SECONDS, OwnQueue
from support.raw_sockets import receive
from support.traces import Traced, id_of, parent_of, traced
from support.waiting import wait_until

#: A context of somebody else's.
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CHOSEN = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=opaque"}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traced]:
    with traced(monkeypatch) as spans:
        yield spans


@contextmanager
def working(jobs: OwnQueue, handler: Handler, queue: str = "") -> Iterator[Worker]:
    with Worker(queue or jobs.queue, handler, endpoint=jobs.endpoint) as worker:
        yield worker


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


# ----------------------------------------------------------------- one trace


def test_a_pipeline_of_two_queues_is_one_trace(jobs: OwnQueue, spans: Traced) -> None:
    # Given: a handler that pushes what it made to the next queue
    first, second = jobs.queue, token_hex(6)
    jobs.broker.make(second)

    def resize(job: Job) -> None:
        jobs.producer.push(second, job.payload.upper()).wait(SECONDS)

    with working(jobs, resize), working(jobs, lambda _job: b"stored", second):
        with spans.tracer.start_as_current_span("request"):
            job_id = jobs.push(b"cat")
        last = spans.one(f"commit {second}")
    assert len({span.context.trace_id for span in spans.all()}) == 1
    tree = {
        span.name: next((parent.name for parent in spans.all() if id_of(parent) == parent_of(span)), None)
        for span in spans.all()
    }
    assert tree == {
        "request": None,
        f"send {first}": "request",
        f"wait {first}": f"send {first}",
        f"process {first}": f"send {first}",
        f"commit {first}": f"process {first}",
        f"send {second}": f"process {first}",
        f"wait {second}": f"send {second}",
        f"process {second}": f"send {second}",
        f"commit {second}": f"process {second}",
    }
    assert last.status.status_code == StatusCode.UNSET
    sent, handled = spans.one(f"send {first}"), spans.one(f"process {first}")
    assert linked(handled) == [id_of(sent)]
    assert_conventional(jobs, spans, job_id)


def assert_conventional(jobs: OwnQueue, spans: Traced, job_id: str) -> None:
    """The spans of this job, which was delivered once, are as the conventions have them."""
    server = jobs.endpoint.removeprefix("tcp://").split(":")
    common = {
        "messaging.system": "sluicemq",
        "messaging.destination.name": jobs.queue,
        "messaging.message.id": job_id,
        "server.address": server[0],
        "server.port": int(server[1]),
    }
    for name, kind, operation in [
        ("send", SpanKind.PRODUCER, "send"),
        ("wait", SpanKind.INTERNAL, None),
        ("process", SpanKind.CONSUMER, "process"),
        ("commit", SpanKind.CLIENT, "settle"),
    ]:
        span, told = spans.one(f"{name} {jobs.queue}"), dict(common, **{"messaging.operation.name": name})
        if operation:
            told["messaging.operation.type"] = operation
        if name != "send":
            told["messaging.sluicemq.message.delivery_attempt"] = 1
        assert (span.kind, attributes(span)) == (kind, told)


def test_a_job_that_is_forwarded_stays_in_its_trace(jobs: OwnQueue, spans: Traced) -> None:
    first, second = jobs.queue, token_hex(6)
    jobs.broker.make(second)
    with working(jobs, lambda _job: Forward(second)):
        with working(jobs, lambda job: json.dumps(job.headers).encode(), second):
            got = json.loads(jobs.producer.call(first, b"cat", SECONDS, headers={"own": 1}))
        spans.one(f"commit {second}")
    # Then: what forwards it is the parent of what comes next, and its own headers go with it
    assert len({span.context.trace_id for span in spans.all()}) == 1
    forward = spans.one(f"forward {first}")
    assert (parent_of(forward), forward.kind) == (id_of(spans.one(f"process {first}")), SpanKind.PRODUCER)
    assert parent_of(spans.one(f"process {second}")) == id_of(forward)
    assert parent_of(spans.one(f"wait {second}")) == id_of(forward)
    assert (got["own"], set(got)) == (1, {"own", "traceparent"})


def test_the_children_of_a_job_are_in_its_trace(jobs: OwnQueue, spans: Traced) -> None:
    # Given: one with headers of its own, and one without
    first, second = jobs.queue, token_hex(6)
    jobs.broker.make(second)
    got: dict[bytes, dict[str, Any]] = {}
    children = [Forward(second, b"a", headers={"own": 1}), Forward(second, b"b")]
    with (
        working(jobs, lambda _job: FanOut(*children, result=b"done")),
        working(jobs, lambda job: got.update({job.payload: job.headers}), second),
    ):
        assert jobs.producer.call(first, b"cat", SECONDS, headers={"of": "parent"}) == b"done"
        wait_until(lambda: len(spans.find(f"commit {second}")) == 2)
    assert len({span.context.trace_id for span in spans.all()}) == 1
    fan_out = spans.one(f"fanout {first}")
    assert {parent_of(span) for span in spans.find(f"process {second}")} == {id_of(fan_out)}
    assert set(got[b"a"]) == {"own", "traceparent"}
    assert set(got[b"b"]) == {"traceparent"}


def test_time_in_the_queue_is_seen(jobs: OwnQueue, spans: Traced) -> None:
    # Given: a job for which nobody works
    jobs.push(delay=0.3)
    with working(jobs, lambda _job: None):
        waited = spans.one(f"wait {jobs.queue}")
        handled = spans.one(f"process {jobs.queue}")
    assert (waited.end_time or 0) - (waited.start_time or 0) >= 0.3e9
    assert waited.end_time == handled.start_time


def test_a_call_is_in_the_trace_of_its_caller(jobs: OwnQueue, spans: Traced) -> None:
    with working(jobs, lambda job: job.payload.upper()):
        with spans.tracer.start_as_current_span("request") as request:
            assert jobs.producer.call(jobs.queue, b"cat", SECONDS) == b"CAT"
        handled = spans.one(f"process {jobs.queue}")
    assert handled.context.trace_id == request.get_span_context().trace_id
    assert parent_of(handled) == id_of(spans.one(f"send {jobs.queue}"))


def test_each_attempt_at_a_job_is_in_its_trace(jobs: OwnQueue, spans: Traced) -> None:
    def second_time_lucky(job: Job) -> None:
        if job.attempt == 1:
            raise ValueError("not today")

    with working(jobs, second_time_lucky):
        jobs.push()
        spans.one(f"commit {jobs.queue}")
    sent, tries = spans.one(f"send {jobs.queue}"), spans.find(f"process {jobs.queue}")
    assert [parent_of(span) for span in tries] == [id_of(sent)] * 2
    assert [
        attributes(span)["messaging.sluicemq.message.delivery_attempt"] for span in tries
    ] == [1, 2]  # fmt: skip
    assert len(spans.find(f"wait {jobs.queue}")) == 1, "since when it waits again nobody says"


# --------------------------------------------------------------------- many


def test_jobs_that_are_pushed_at_once_share_a_span(jobs: OwnQueue, spans: Traced) -> None:
    with working(jobs, lambda _job: None):
        for receipt in jobs.producer.push_many(jobs.queue, [b"a", {"payload": b"b", "priority": 7}, b"c"]):
            receipt.wait(SECONDS)
        wait_until(lambda: len(spans.find(f"commit {jobs.queue}")) == 3)
    sent = spans.one(f"send {jobs.queue}")
    assert attributes(sent)["messaging.batch.message_count"] == 3
    assert {parent_of(span) for span in spans.find(f"process {jobs.queue}")} == {id_of(sent)}


def test_a_claim_and_its_verdicts_link_to_the_jobs(jobs: OwnQueue, spans: Traced) -> None:
    for _ in range(3):
        jobs.push()
    sent = {id_of(span) for span in spans.some(f"send {jobs.queue}", 3)}
    with spans.tracer.start_as_current_span("round") as around, jobs.reserve(3) as claim:
        claim.jobs[0].reject("no")
        claim.commit()
    got = spans.one(f"receive {jobs.queue}")
    assert (got.kind, set(linked(got)), parent_of(got)) == (
        SpanKind.CLIENT, sent, around.get_span_context().span_id,
    )  # fmt: skip
    assert attributes(got)["messaging.batch.message_count"] == 3
    rejected, committed = spans.one(f"reject {jobs.queue}"), spans.one(f"commit {jobs.queue}")
    assert attributes(rejected)["messaging.message.id"] == claim.jobs[0].id
    assert attributes(committed)["messaging.batch.message_count"] == 2
    assert {*linked(rejected), *linked(committed)} == sent
    assert {attributes(span)["messaging.operation.type"] for span in (rejected, committed)} == {"settle"}


def test_pops_link_to_what_they_got_and_nothing_is_settled(jobs: OwnQueue, spans: Traced) -> None:
    jobs.push()
    assert len(jobs.client.jobs.pop(jobs.queue, 1, SECONDS)) == 1
    assert linked(spans.one(f"receive {jobs.queue}")) == [id_of(spans.one(f"send {jobs.queue}"))]
    with Worker(jobs.queue, lambda _job: None, pop=True, endpoint=jobs.endpoint):
        jobs.push()
        spans.one(f"process {jobs.queue}")
    assert not spans.find(f"commit {jobs.queue}")
    assert jobs.client.jobs.pop(jobs.queue) == []
    assert len(spans.find(f"receive {jobs.queue}")) == 1, "nothing came"


# ------------------------------------------------------------------- errors


def test_what_goes_wrong_in_a_handler_stands_in_its_span(jobs: OwnQueue, spans: Traced) -> None:
    failures: dict[bytes, Exception] = {
        b"bug": ValueError("oops"), b"no": Reject("not mine"),
        b"later": Retry("busy", delay=100), b"stop": Requeue(),
    }  # fmt: skip

    def fail(job: Job) -> None:
        if job.attempt == 1:
            raise failures.pop(job.payload, Reject("again"))

    with Worker(jobs.queue, fail, endpoint=jobs.endpoint):
        ids = {payload: jobs.push(payload) for payload in list(failures)}

        def handled(payload: bytes) -> ReadableSpan:
            return next(
                span
                for span in spans.find(f"process {jobs.queue}")
                if attributes(span)["messaging.message.id"] == ids[payload]
            )

        wait_until(lambda: not failures and spans.find(f"release {jobs.queue}"))
    told = {
        payload: (span.status.status_code, span.status.description, attributes(span).get("error.type"))
        for payload in ids
        for span in [handled(payload)]
    }
    assert told == {
        b"bug": (StatusCode.ERROR, "oops", "ValueError"),
        b"no": (StatusCode.ERROR, "not mine", "Reject"),
        b"later": (StatusCode.ERROR, "busy", "Retry"),
        b"stop": (StatusCode.UNSET, None, None),
    }
    assert [event.name for event in handled(b"bug").events] == ["exception"]
    assert [event.name for event in handled(b"no").events] == []


def test_a_result_that_is_none_is_the_handlers_error(jobs: OwnQueue, spans: Traced) -> None:
    handler: Any = lambda job: "text" if job.attempt == 1 else None  # noqa: E731
    with working(jobs, handler):
        jobs.push()
        spans.one(f"commit {jobs.queue}")
    assert [span.status.status_code for span in spans.find(f"process {jobs.queue}")] == [
        StatusCode.ERROR, StatusCode.UNSET,
    ]  # fmt: skip
    assert len(spans.find(f"rollback {jobs.queue}")) == 1


def test_a_refused_push_is_an_error(jobs: OwnQueue, spans: Traced) -> None:
    # When: refused by the broker, and before
    jobs.push(dedupe_id="one")
    refused = jobs.producer.push(jobs.queue, b"", dedupe_id="one")
    with pytest.raises(Exception, match="one"):
        refused.wait(SECONDS)
    with pytest.raises(TooLargeError):
        jobs.producer.push(jobs.queue, bytes(64 << 20))
    _, duplicate, large = sorted(spans.some(f"send {jobs.queue}", 3), key=lambda span: span.start_time or 0)
    assert attributes(duplicate)["error.type"] == "DUPLICATE"
    assert duplicate.status.status_code == large.status.status_code == StatusCode.ERROR
    assert attributes(large)["error.type"] == "TOO_LARGE"


def test_of_many_jobs_it_is_said_how_many_were_refused(jobs: OwnQueue, spans: Traced) -> None:
    jobs.producer.push_many(jobs.queue, [b"a", {"payload": b"b", "priority": 1000}, b"c"])
    sent = spans.one(f"send {jobs.queue}")
    assert attributes(sent)["messaging.batch.message_count"] == 3
    assert (sent.status.description or "").startswith("1 of 3 jobs refused, the first: ")
    with pytest.raises(Exception, match="priority"):
        jobs.producer.flush(SECONDS)


def test_a_verdict_that_comes_too_late_is_an_error(jobs: OwnQueue, spans: Traced) -> None:
    # Given a claim that has its job, whose time is over then
    jobs.push()
    claim = jobs.reserve()
    assert len(claim) == 1
    claim.extend(0.01)
    wait_until(lambda: jobs.ids("ready"), what="it is back")
    with pytest.raises(LeaseLostError):
        claim.commit()
    assert attributes(spans.one(f"commit {jobs.queue}"))["error.type"] == "LEASE_LOST"


# ------------------------------------------------------------------ contexts


def test_a_context_that_was_chosen_stays_and_the_push_links_to_it(jobs: OwnQueue, spans: Traced) -> None:
    with working(jobs, lambda job: json.dumps(job.headers).encode()):
        got = jobs.producer.call(jobs.queue, b"", SECONDS, headers={**CHOSEN, "own": 1})
        handled = spans.one(f"process {jobs.queue}")
    assert json.loads(got) == {**CHOSEN, "own": 1}
    sent = spans.one(f"send {jobs.queue}")
    assert (sent.kind, linked(sent)) == (SpanKind.CLIENT, [int(SPAN, 16)])
    assert parent_of(handled) == int(SPAN, 16)


def test_headers_that_a_handler_passes_on_carry_its_own_push(jobs: OwnQueue, spans: Traced) -> None:
    second = token_hex(6)
    jobs.broker.make(second)

    def pass_on(job: Job) -> None:
        jobs.producer.push(second, b"", headers=job.headers).wait(SECONDS)

    # When: the trace was begun elsewhere
    with working(jobs, pass_on), working(jobs, lambda _job: None, second):
        jobs.push(headers={**CHOSEN, "own": 1})
        handled = spans.one(f"process {second}")
    sent = spans.one(f"send {second}")
    assert (sent.kind, parent_of(handled)) == (SpanKind.PRODUCER, id_of(sent))
    assert handled.context.trace_state.get("vendor") == "opaque"


@pytest.mark.parametrize(
    "headers", [{"traceparent": 7}, {"traceparent": ["x"]}, {"traceparent": "x", "tracestate": {"a": 1}}]
)
def test_headers_that_are_no_context_do_no_harm(jobs: OwnQueue, spans: Traced, headers: Any) -> None:
    with working(jobs, lambda _job: None):
        jobs.push(headers=headers)
        spans.one(f"commit {jobs.queue}")
    assert parent_of(spans.one(f"process {jobs.queue}")) == id_of(spans.one(f"send {jobs.queue}"))


# ------------------------------------------------------------- plain sockets


@pytest.fixture(scope="module")
def plain(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, spare(ask_full=1, received_full=1, ask=1), queues=AT_ONCE) as broker:
        yield broker


FRAME = json.dumps({"headers": CHOSEN}).encode()


@pytest.mark.parametrize(("shape", "kind"), [("ask_full", zmq.REP), ("received_full", zmq.PULL)])
def test_plain_sockets_pass_the_context_in_the_headers(plain: BrokerUnderTest, shape: str, kind: int) -> None:
    doors = plain.take(shape)
    worker = plain.socket(kind, doors.back)
    if shape == "ask_full":
        plain.socket(zmq.REQ, doors.front).send_multipart([doors.queue.encode(), FRAME, b"cat"])
    else:
        plain.push(doors.front, doors.queue.encode(), FRAME, b"cat")
    _id, headers, payload = receive(worker)
    assert (json.loads(headers)["headers"], payload) == (CHOSEN, b"cat")


def test_a_plain_push_is_the_parent_of_a_library_workers_job(plain: BrokerUnderTest, spans: Traced) -> None:
    doors = plain.take("ask")
    asker = plain.socket(zmq.REQ, doors.front)
    with Worker(doors.queue, lambda _job: b"done", endpoint=plain.doors["smq"]):
        asker.send_multipart([doors.queue.encode(), FRAME, b"cat"])
        assert receive(asker) == [b"done"]
    for name in ("process", "wait"):
        span = spans.one(f"{name} {doors.queue}")
        assert (parent_of(span), span.context.trace_id) == (int(SPAN, 16), int(TRACE, 16))


# ----------------------------------------------------------------- no tracing


def test_without_a_tracer_provider_headers_stay_as_they_are(jobs: OwnQueue) -> None:
    """The interface of OpenTelemetry is imported here, and nothing more."""
    jobs.push(headers={"own": 1})
    assert jobs.take().headers == {"own": 1}


def test_the_library_imports_nothing_of_opentelemetry(jobs: OwnQueue) -> None:
    program = f"""
import sys
from sluicemq import Producer, Worker
with Producer({jobs.endpoint!r}) as producer:
    producer.push({jobs.queue!r}, b"cat")
worker = Worker({jobs.endpoint!r}, {jobs.queue!r}, lambda job: worker.stop() and None)
worker.run()
print([name for name in sys.modules if "opentelemetry" in name or name == "sluicemq.spans"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n", done.stderr


def test_a_program_sets_a_provider_as_usual(jobs: OwnQueue) -> None:
    program = f"""
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from sluicemq import Producer
with Producer({jobs.endpoint!r}) as producer:
    producer.push({jobs.queue!r}, b"before").wait(60)
    trace.set_tracer_provider(TracerProvider())
    producer.push({jobs.queue!r}, b"after").wait(60)
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
    with jobs.reserve(2) as claim:
        assert [sorted(job.headers) for job in claim] == [[], ["traceparent"]]


def test_who_only_pushes_needs_no_sampling(jobs: OwnQueue, spans: Traced) -> None:
    """The decision not to sample travels, too."""
    with spans.tracer.start_as_current_span("request"):
        pass
    not_sampled = f"00-{TRACE}-{SPAN}-00"
    with Producer(endpoint=jobs.endpoint) as producer:
        producer.push(jobs.queue, b"", headers={"traceparent": not_sampled}).wait(SECONDS)
    assert jobs.take().headers == {"traceparent": not_sampled}
