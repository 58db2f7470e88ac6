"""The library in a process that gevent has patched: nothing blocks the other greenlets."""

import subprocess
import sys

import pytest

from clients.scripted_broker import SECONDS, SILENCE, Received, ScriptedBroker
from sluicemq.protocol import wire

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full

PATCHED = """
from gevent import monkey
monkey.patch_all()
import sys
import threading
import gevent
from sluicemq import Client, Producer, Timeout, Worker

ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        gevent.sleep(0.001)
gevent.spawn(tick)
"""


def run_patched(program: str, endpoint: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PATCHED + program, endpoint],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> list[str]:
    try:
        output, _errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        return output.splitlines()
    finally:
        process.kill()


def test_other_greenlets_go_on_while_one_waits_for_a_confirmation(broker: ScriptedBroker) -> None:
    # Given: a broker that answers only when it has heard three heartbeats
    broker.on[wire.PUSH] = lambda _message: SILENCE
    process = run_patched(
        """
with Producer(sys.argv[1]) as producer:
    receipt = producer.push("q", b"x")
    before = ticks
    receipt.wait(60)
    print(ticks - before)
""",
        broker.endpoint,
    )
    message = broker.wait_for(wire.PUSH)[0]
    broker.wait_for(wire.PING, 3)
    broker.answer(message, [])
    assert int(finish(process)[0]) > 5


def test_spans_end_where_greenlets_run_and_not_in_a_thread_unknown_to_gevent(broker: ScriptedBroker) -> None:
    # Given: an exporter that waits on what gevent has patched
    process = run_patched(
        """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

class Slow(InMemorySpanExporter):
    def export(self, spans):
        gevent.sleep(0.001)
        return super().export(spans)

exporter = Slow()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
with Producer(sys.argv[1]) as producer:
    producer.push("q", b"x").wait(60)
worker = Worker(sys.argv[1], "q", lambda job: worker.stop() and None or b"done")
worker.run()
print(*sorted(span.name for span in exporter.get_finished_spans()), sep=",")
""",
        broker.endpoint,
    )
    broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"x"])
    assert finish(process) == ["commit q,process q,send q"]


def test_heartbeats_go_on_while_the_whole_hub_is_blocked(broker: ScriptedBroker) -> None:
    # Given: code that blocks the hub until it is told to go on, without any greenlet running
    process = run_patched(
        """
client = Client(sys.argv[1])
client.ping(60)
read = monkey.get_original("os", "read")
print("blocked", flush=True)
read(0, 1)
client.ping(60)
client.close()
""",
        broker.endpoint,
    )
    assert process.stdout
    assert process.stdin
    assert process.stdout.readline() == "blocked\n"
    beats = len(broker.of(wire.PING))
    broker.wait_for(wire.PING, beats + 6)
    finish(process)
    assert len(broker.of(wire.HELLO)) == 1


def test_many_greenlets_push_and_wait_each_for_its_own(broker: ScriptedBroker) -> None:
    process = run_patched(
        """
with Producer(sys.argv[1], window=50) as producer:
    def push(number):
        producer.push("q", b"%d" % number).wait(60)
    gevent.joinall([gevent.spawn(push, number) for number in range(500)], raise_error=True)
print("all", ticks > 0)
""",
        broker.endpoint,
    )
    assert finish(process) == ["all True"]
    assert sorted(int(payload) for _id, payload in broker.pushed()) == list(range(500))


def test_a_wait_without_an_answer_times_out_in_its_greenlet(broker: ScriptedBroker) -> None:
    broker.on[wire.STATS] = lambda _message: SILENCE
    process = run_patched(
        """
with Client(sys.argv[1], timeout=1.0) as client:
    client.ping(60)
    before = ticks
    try:
        client.stats()
    except Timeout:
        print("timeout", ticks - before > 5)
""",
        broker.endpoint,
    )
    assert finish(process) == ["timeout True"]


def test_names_are_looked_up_and_brokers_passed_over_as_greenlets_go_on(broker: ScriptedBroker) -> None:
    program = """
here = sys.argv[1].replace("127.0.0.1", "localhost")
for number in range(5):
    with Client(["tcp://127.0.0.1:1", here, "dns+tcp://no-such-host.invalid:1"], timeout=60) as client:
        before = ticks
        client.ping()
        assert client.connected_to == here
        assert ticks > before
        print(number)
"""
    assert finish(run_patched(program, broker.endpoint)) == ["0", "1", "2", "3", "4"]


def test_handlers_are_greenlets_and_run_at_once(broker: ScriptedBroker) -> None:
    process = run_patched(
        """
together = threading.Barrier(4, timeout=60)
def handler(job):
    together.wait()
    return b"done"
with Worker(sys.argv[1], "q", handler, concurrency=4):
    gevent.os.tp_read(0, 1)
""",
        broker.endpoint,
    )
    broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"1", b"2", b"3", b"4"])
    broker.wait_until(lambda: len(broker.settled()) == 4)
    finish(process)
    assert {row[0] for row in broker.settled().values()} == {"COMMIT"}


def test_jobs_go_back_while_a_handler_blocks_the_whole_hub(broker: ScriptedBroker) -> None:
    # Given: a handler that lets no greenlet run until it is told to go on
    process = run_patched(
        """
read = monkey.get_original("os", "read")
def handler(job):
    read(0, 1)
    worker.stop()
worker = Worker(sys.argv[1], "q", handler, prefetch=3)
worker.run()
""",
        broker.endpoint,
    )
    assert process.stdin
    broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"runs", b"b", b"c"], within=0.4)
    broker.wait_until(lambda: len(broker.settled()) == 2)
    assert {receipt: row[0] for receipt, row in broker.settled().items()} == {
        b"r-b": "RELEASE",
        b"r-c": "RELEASE",
    }
    process.stdin.write("g")
    process.stdin.flush()
    finish(process)
    assert broker.settled()[b"r-runs"][0] == "COMMIT"


def test_a_lost_broker_is_found_again(broker: ScriptedBroker) -> None:
    process = run_patched(
        """
with Producer(sys.argv[1]) as producer:
    producer.push("q", b"one").wait(60)
    print("one", flush=True)
    sys.stdin.readline()
    producer.push("q", b"two").wait(60)
print("two")
""",
        broker.endpoint,
    )
    assert process.stdout
    assert process.stdout.readline() == "one\n"
    broker.stop()
    broker.start()
    assert finish(process) == ["two"]


@pytest.mark.parametrize("module", ["gevent", "pymongo", "sluicemq_broker", "sluicemq_devices"])
def test_the_command_line_imports_none_of_the_broker(module: str) -> None:
    assert not imports("sluicemq.cli.app", module)


@pytest.mark.parametrize("module", ["rich", "asyncio", "importlib.metadata", "sluicemq.cli.queues"])
def test_a_command_that_pushes_one_job_starts_with_what_it_needs(module: str) -> None:
    assert not imports("sluicemq.cli.app, sluicemq.cli.push", module)


@pytest.mark.parametrize(
    "module",
    ["click", "rich", "gevent", "pymongo", "asyncio", "importlib.metadata", "sluicemq.cli", "sluicemq_bench"],
)
def test_the_library_imports_no_more_than_it_needs(module: str) -> None:
    assert not imports("sluicemq", module)


def imports(name: str, other: str) -> bool:
    """Whether to import the first module imports the other one too."""
    program = f"import sys, {name}; print({other!r} in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=SECONDS, capture_output=True, text=True
    )
    return done.stdout == "True\n"


def test_many_greenlets_call_and_claim_while_the_others_go_on(broker: ScriptedBroker) -> None:
    broker.on[wire.RESULT] = lambda message: message.fields[1].encode()

    def ready(message: Received) -> None:
        if message.fields[1]:
            broker.deliver(message.peer, message.fields[0], [b"a", b"b"])

    broker.on[wire.READY] = ready
    process = run_patched(
        """
with Producer(sys.argv[1]) as producer:
    def call(number):
        assert producer.call("q", b"x", 60, id="%d" % number) == b"%d" % number
    gevent.joinall([gevent.spawn(call, number) for number in range(200)], raise_error=True)
    futures = [producer.submit("q", b"x") for _ in range(200)]
    print(all(future.result(60) == future.receipt.id.encode() for future in futures), ticks > 0)
with Client(sys.argv[1]) as client:
    with client.reserve("q", 2, wait=60) as claim:
        claim.commit()
        print(len(claim), [job.payload for job in client.pop("q", 2, wait=60)])
""",
        broker.endpoint,
    )
    assert finish(process) == ["True True", "2 [b'a', b'b']"]
