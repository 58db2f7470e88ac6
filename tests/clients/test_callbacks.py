"""User code holds up no I/O thread: callbacks, handlers of log lines and exporters of spans may wait."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import pytest

from clients.scripted_broker import SECONDS, SILENCE, Received, ScriptedBroker
from clients.test_under_gevent import finish, run_patched
from sluicemq import Producer, Publisher, Worker
from sluicemq.aside import MOST_WAITING, no_user_code, runs_no_user_code
from sluicemq.complaints import log
from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError, TooLargeError
from sluicemq.receipt import PublishReceipt, PushReceipt
from support.waiting import wait_until

LOGGER = logging.getLogger("sluicemq")
REFUSED = [[0, "TOO_LARGE", "no"]]


@contextmanager
def handling(handler: logging.Handler) -> Iterator[None]:
    """Give the library's log lines to a handler."""
    LOGGER.addHandler(handler)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)


class Pushing(logging.Handler):
    """Pushes each log line, as programs do that collect them."""

    def __init__(self, producer: Producer) -> None:
        super().__init__()
        self.producer = producer
        self.begun = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.begun.set()
        self.producer.push("log", record.getMessage().encode())


class Threads(logging.Handler):
    """Notes the threads of log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.seen[record.getMessage()] = threading.current_thread().name


def refuse_first(message: Received) -> object:
    return REFUSED if message.fields[0] == "bad" else []


# ------------------------------------------------------------------ callbacks


def test_a_callback_may_wait_for_its_own_producer(broker: ScriptedBroker) -> None:
    # Given: a callback that pushes, waits for that, and for the result of another job
    broker.on[wire.RESULT] = lambda _message: b"42"
    heard: SimpleQueue[bytes] = SimpleQueue()
    with Producer(endpoint=broker.endpoint) as producer:

        def wait_in_it(_reply: object) -> None:
            producer.push("q", b"second").wait(SECONDS)
            producer.flush(SECONDS)
            heard.put(producer.call("q", b"third", SECONDS))

        producer.submit("q", b"first").add_done_callback(wait_in_it)
        assert heard.get(timeout=SECONDS) == b"42"


def test_a_refusal_may_be_pushed_elsewhere_though_the_window_is_full(broker: ScriptedBroker) -> None:
    # Given: a window that is full of refused jobs, and a callback that pushes each to another queue
    broker.on[wire.PUSH] = lambda message: (
        [[at, "TOO_LARGE", "no"] for at in range(len(message.fields[1]))]
        if message.fields[0] == "bad"
        else []
    )
    moved: list[str] = []

    def move(receipt: PushReceipt, _error: SluiceError) -> None:
        producer.push("good", b"again", id=receipt.id).wait(SECONDS)
        producer.flush(SECONDS)
        moved.append(receipt.id)

    with Producer(window=2, on_refused=move, endpoint=broker.endpoint) as producer:
        receipts = producer.push_many("bad", [b"a", b"b", b"c", b"d"])
    # Then: leaving the block has waited for all four
    assert moved == [job.id for job in receipts]


def test_a_slow_callback_slows_the_pushes_down(broker: ScriptedBroker) -> None:
    # Given: a callback that does not return yet
    broker.on[wire.PUSH] = lambda _message: REFUSED
    go_on = threading.Event()

    def wait_in_it(_receipt: PushReceipt, _error: SluiceError) -> None:
        go_on.wait(SECONDS)

    producer = Producer(window=1, push_timeout=0.01, on_refused=wait_in_it, endpoint=broker.endpoint)
    with pytest.raises(TooLargeError):
        producer.push("q", b"x").wait(SECONDS)
    with pytest.raises(SluiceError, match="no room"):
        producer.push("q", b"y")
    go_on.set()
    producer.close()


def test_a_refused_message_may_be_published_elsewhere(broker: ScriptedBroker) -> None:
    broker.on[wire.PUBLISH] = lambda message: TooLargeError("no") if message.fields[0] == "bad" else 1
    moved: list[int] = []

    def move(message: PublishReceipt, _error: SluiceError) -> None:
        moved.append(publisher.publish("good", "t", b"x").wait(SECONDS))

    with Publisher(on_refused=move, endpoint=broker.endpoint) as publisher:
        publisher.publish("bad", "t", b"x")
    assert moved == [1]


def test_under_gevent_a_callback_may_wait_for_its_own_producer(broker: ScriptedBroker) -> None:
    broker.on[wire.RESULT] = lambda _message: b"42"
    broker.on[wire.PUSH] = refuse_first
    process = run_patched(
        """
import logging
class Pushing(logging.Handler):
    def emit(self, record):
        producer.push("log", b"line").wait(60)
        print("logged", flush=True)
        logged.set()

def moved(receipt, error):
    producer.push("good", b"x").wait(60)
    print("moved", flush=True)

with Producer(sys.argv[1], on_refused=moved) as producer:
    done = gevent.event.Event()
    def waits(reply):
        print(producer.call("good", b"x", 60), flush=True)
        done.set()
    producer.submit("good", b"x").add_done_callback(waits)
    done.wait(60)
    logging.getLogger("sluicemq").addHandler(Pushing())
    logged = gevent.event.Event()
    producer.push("bad", b"x")
    logged.wait(60)
""",
        broker.endpoint,
    )
    assert sorted(finish(process)) == ["b'42'", "logged", "moved"]


def test_a_wait_in_a_thread_that_carries_answers_says_so_at_once(broker: ScriptedBroker) -> None:
    # Given: a finalizer, which Python runs in any thread
    go_on = threading.Event()
    broker.on[wire.PUSH] = lambda _message: [] if go_on.wait(SECONDS) else SILENCE
    with Producer(endpoint=broker.endpoint) as producer:
        receipt = producer.push("q", b"x")
        reply = producer.submit("q", b"x")
        with no_user_code():
            for wait in (receipt.wait, reply.result, producer.flush):
                with pytest.raises(RuntimeError, match="would wait for ever in this thread of the library"):
                    wait()
        go_on.set()
        receipt.wait(SECONDS)
        reply.cancel()


def test_the_child_of_a_fork_may_wait_in_threads_with_the_numbers_of_the_parents() -> None:
    # Given: the forking thread itself, whose number the child's first thread has
    with no_user_code():
        pid = os.fork()
        if not pid:
            os._exit(runs_no_user_code())
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert runs_no_user_code()


# ------------------------------------------------------------------ log lines


def test_a_handler_of_log_lines_that_pushes_holds_up_no_connection(broker: ScriptedBroker) -> None:
    # Given: a window that is full while the broker is away, and a program that logs: it holds the lock of
    # its handler and waits for room
    broker.on[wire.PUSH] = lambda _message: SILENCE
    producer = Producer(window=1, endpoint=broker.endpoint)
    first = producer.push("q", b"x")
    broker.wait_for(wire.PUSH)
    handler = Pushing(producer)
    logger = logging.getLogger("a program")
    logger.addHandler(handler)
    broker.stop()
    program = threading.Thread(target=logger.error, args=("it logs",), daemon=True)
    program.start()
    assert handler.begun.wait(SECONDS)
    # When: the library wants to log that it is connected again
    with handling(handler):
        del broker.on[wire.PUSH]
        broker.start()
        first.wait(SECONDS)
        program.join(SECONDS)
        assert not program.is_alive()
        broker.wait_until(lambda: any(b"connected to" in payload for _, payload in broker.pushed()))
        producer.close()
    logger.removeHandler(handler)


def test_no_user_code_runs_in_an_io_thread(broker: ScriptedBroker) -> None:
    # Given: threads of the library's own for user code have names, I/O threads have none
    threads = Threads()
    seen: dict[str, str] = {}
    broker.on[wire.RESULT] = lambda _message: b"42"
    broker.on[wire.PUSH] = refuse_first
    broker.on[wire.SETTLE] = lambda _message: [[0, "LEASE_LOST", "late"]]
    broker.on[wire.READY] = lambda message: "no queue q yet" if message.fields[1] else None

    def note(what: str) -> None:
        seen[what] = threading.current_thread().name

    # When: all kinds of lines and callbacks
    with handling(threads):
        with Producer(on_refused=lambda *_: note("on_refused"), endpoint=broker.endpoint) as producer:
            producer.push("bad", b"x")
            reply = producer.submit("q", b"x")
            reply.add_done_callback(lambda _reply: note("done"))
            reply.result(SECONDS)
        with Worker("q", lambda _job: b"done", endpoint=broker.endpoint):
            peer = broker.wait_for(wire.READY)[0].peer
            broker.deliver(peer, "q", [b"x"])
            broker.wait_for(wire.SETTLE)
            wait_until(lambda: any("LEASE_LOST" in line for line in threads.seen))
            broker.stop()
            broker.start()
            wait_until(lambda: any("again" in line for line in threads.seen))
    assert seen == {"on_refused": "sluicemq-callbacks", "done": "sluicemq-callbacks"}
    lines = [line for line in threads.seen if not line.startswith("job ")]
    assert len(lines) >= 5, lines
    assert {threads.seen[line] for line in lines} == {"sluicemq-log"}


def test_lines_that_nobody_takes_are_left_out_and_counted() -> None:
    # Given: a handler that does not return yet
    go_on, begun, lines = threading.Event(), threading.Event(), []

    class Stuck(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            begun.set()
            assert go_on.wait(SECONDS)
            lines.append(record.getMessage())

    with handling(Stuck()):
        with no_user_code():
            log.warning("first")
            assert begun.wait(SECONDS)
            for number in range(MOST_WAITING + 7):
                log.warning("line %d", number)
        go_on.set()
        log.wait(SECONDS)
    assert len(lines) == 1 + MOST_WAITING + 1
    assert "7 lines are left out" in lines[1]


def test_spans_end_where_their_exporter_may_wait(broker: ScriptedBroker) -> None:
    # Given: an exporter that itself asks the broker for something, each time
    process = run_patched(
        """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

client = Client(sys.argv[1])
trace.set_tracer_provider(TracerProvider())
producer = Producer(sys.argv[1])
with producer:
    class Waiting(SpanExporter):
        def export(self, spans):
            print(*[span.name for span in spans], flush=True)
            client.ping(60)
            if not waited:
                waited.append(True)
                producer.flush(60)
            return SpanExportResult.SUCCESS
    waited = []
    trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(Waiting()))
    producer.push("q", b"x")
""",
        broker.endpoint,
    )
    assert finish(process) == ["send q"]
