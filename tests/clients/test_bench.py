"""The bench: every scenario, its subscribers, and times that can't be flattered."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from click.testing import CliRunner, Result

from clients.cli_runs import run_without
from sluicemq import Client, Producer
from sluicemq.cli.app import app
from sluicemq_bench.due_times import SECOND, Payloads, Times, merged, stamp_of, stamps
from sluicemq_bench.plan import ENDLESS, planned
from sluicemq_bench.subscribers import listen
from support.broker_process import BrokerProcess
from support.long_forms import first_of
from support.ports import tcp
from support.waiting import TIMEOUT, wait_until

Measured = Callable[..., dict[str, Any]]

MOMENT = 7_000 * SECOND

full = pytest.mark.full


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    ends = {"frontend": tcp(), "backend": tcp()}
    devices = [
        {
            "kind": "streamer",
            "queue": "committed",
            "frontend": tcp(),
            "backend": tcp(),
            "commit": tcp(),
            "ack": "explicit",
            "prefetch": 50,
        },
        {"kind": "streamer", **ends},
        {"kind": "queue", "queue": "asked", "frontend": tcp(), "backend": tcp()},
    ]
    with BrokerProcess(mongo_uri, f"bench_{os.getpid()}", config={"devices": devices}) as broker:
        yield broker


def named_ends(device: dict[str, Any]) -> list[str]:
    """The options that name the doors of a device."""
    ends = [(end, address) for end in ("frontend", "backend", "commit") for address in device[end]]
    return [word for end, address in ends for word in (f"--{end}", address)]


@pytest.fixture
def measured(broker: BrokerProcess) -> Measured:
    """The JSON of a run against the broker, through one of its doors."""
    doors = broker.doors
    ends = {
        "library": [],
        "rep": ["--queue", "asked", "--backend", doors["rep"]],
        "req": ["--queue", "asked", "--frontend", doors["req"], "--backend", doors["rep"]],
        "pull": named_ends(broker.devices[1]),
        "explicit": ["--ack", "explicit", "--queue", "committed", *named_ends(broker.devices[0])],
    }

    def measured(scenario: str, *options: object, door: str = "library") -> dict[str, Any]:
        name = "pull" if door == "explicit" else door
        where = ["--endpoint", doors["smq"], "--door", name, *ends[door]]
        result = bench(scenario, "--json", *where, *options)
        assert result.exit_code == 0, result.output
        return dict(json.loads(result.stdout))

    return measured


# ---------------------------------------------------------------------- scenarios


@pytest.mark.full
@pytest.mark.parametrize("keys", [(), ("--curve",)])
def test_a_broker_of_its_own_is_started_measured_and_ended(keys: tuple[str, ...]) -> None:
    before = mongods()  # that of the other tests, if it runs already
    result = bench("both", "--jobs", 3_000, "--json", *keys)
    assert result.exit_code == 0, result.output
    assert not [name for name in os.environ if name.startswith("SLUICEMQ_SERVER_KEY")]
    found = json.loads(result.stdout)
    assert (found["scenario"], found["door"], found["jobs"]) == ("both", "library", 3_000)
    assert found["jobs_per_s"] == pytest.approx(3_000 / found["seconds"], rel=0.01)
    for name in ("broker", "mongod"):
        assert found["processes"][name]["peak_rss_mb"] > 10
        assert found["processes"][name]["cpu_s_per_1000_jobs"] > 0
    assert mongods() == before


def mongods() -> set[psutil.Process]:
    return {child for child in psutil.Process().children(recursive=True) if child.name() == "mongod"}


@pytest.mark.full
def test_sigterm_ends_all_that_was_started() -> None:
    command = [sys.executable, "-m", "sluicemq.cli", "bench", "both", "--duration", "600"]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        started = wait_until(lambda: _started(run.pid), what="the run's start")
        run.terminate()
        assert run.wait(60) == 128 + signal.SIGTERM
    finally:
        run.kill()
        run.wait()
    wait_until(lambda: not any(process.is_running() for process in started), what="the end of all processes")


def _started(pid: int) -> list[psutil.Process]:
    """The broker, its mongod, a producer and a worker; nothing before all of them are there."""
    children = psutil.Process(pid).children(recursive=True)
    return children if len(children) >= 4 else []


@pytest.mark.full
@pytest.mark.parametrize("door", first_of("req", "library"))
def test_push_counts_what_is_confirmed(measured: Measured, door: str) -> None:
    found = measured("push", "--jobs", 300, door=door)
    assert found["jobs"] == 300
    assert found["jobs_per_s"] > 0


@pytest.mark.full
def test_push_one_by_one_times_each_confirmation(measured: Measured) -> None:
    found = measured("push", "--jobs", 50, "--window", 1, "--producers", 2)
    least = 50 / 2 * found["operations_ms"]["confirmed"]["min"] / 1000
    assert found["seconds"] > least
    assert found["latency_ms"]["p50"] > 0.1


@pytest.mark.full
@pytest.mark.parametrize("door", first_of("library", "rep", "pull", "explicit"))
def test_drain_works_off_a_backlog(measured: Measured, door: str) -> None:
    found = measured("drain", "--jobs", 200, "--workers", 2, door=door)
    assert found["jobs"] == 200
    assert found["latency_ms"] is None


@pytest.mark.full
def test_drain_takes_no_more_of_a_backlog_than_it_is_told(measured: Measured) -> None:
    found = measured("drain", "--jobs", 200, "--backlog", 1_000, "--workers", 2, "--prefetch", 10)
    assert 200 <= found["jobs"] <= 202  # each worker may have taken one when the last was done


@pytest.mark.full
@pytest.mark.parametrize("door", first_of("library", "rep", "pull", "explicit", "req"))
def test_both_brings_every_job_from_its_producer_to_a_worker(measured: Measured, door: str) -> None:
    found = measured("both", "--jobs", 200, "--producers", 2, "--workers", 2, door=door)
    assert found["jobs"] == 200
    longest = found["seconds"] * 1000 * 1.001  # the histogram keeps three digits
    assert found["latency_ms"]["p50"] <= found["latency_ms"]["max"] < longest
    assert found["timeline"][-1] == [found["seconds"], 200]


@pytest.mark.full
@pytest.mark.parametrize("door", first_of("library", "rep", "pull", "explicit"))
def test_many_workers_share_a_few_processes(measured: Measured, door: str) -> None:
    found = measured("both", "--jobs", 400, "--workers", 20, "--processes", 3, door=door)
    assert found["jobs"] == 400
    assert (found["workers"], found["worker_processes"]) == (20, 3)


@pytest.mark.full
def test_jobs_and_workers_are_dealt_over_several_queues(measured: Measured, broker: BrokerProcess) -> None:
    found = measured("drain", "--jobs", 300, "--queues", 3, "--queue", "dealt")
    assert (found["jobs"], found["workers"]) == (300, 3)
    with Client(endpoint=broker.doors["smq"]) as client:
        assert not [queue for queue in client.queues() if queue["name"].startswith("dealt")]


@pytest.mark.full
def test_more_than_16_workers_share_as_many_processes() -> None:
    assert planned("both", workers=500).worker_processes == 16
    assert planned("both", workers=16).worker_processes == 16
    assert planned("simulate", workers=20).worker_processes == 20


@pytest.mark.full
def test_both_ends_by_itself_after_a_duration(measured: Measured) -> None:
    found = measured("both", "--duration", 1.0, "--rate", 2_000)
    assert found["jobs"] > 0
    assert found["seconds"] > 0.9


@pytest.mark.full
def test_latency_sends_on_its_schedule(measured: Measured) -> None:
    found = measured("latency", "--jobs", 40, "--rate", 200)
    assert found["jobs"] == 40
    assert found["seconds"] > 39 / 200
    assert list(found["latency_ms"]) == ["p50", "p75", "p95", "p99", "p99.9", "max"]


@pytest.mark.full
def test_simulate_tells_of_publishes_and_fetches(measured: Measured) -> None:
    found = measured("simulate", "--jobs", 100, "--iterations", 2)
    assert found["jobs"] == 200
    assert set(found["operations_ms"]) == {"publish", "fetch"}
    for operation in found["operations_ms"].values():
        assert list(operation) == ["mean", "deviation", "p75", "p95", "p99", "min", "max"]
        assert (
            operation["min"] <= operation["p75"] <= operation["p95"] <= operation["p99"] <= operation["max"]
        )


@pytest.mark.full
@full
def test_stream_tells_every_figure_of_streams_beside_queues() -> None:
    result = bench("stream", "--jobs", 2_000, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    rates = ("publish", "push", "replay", "drain", "to_1_sub", "to_10_subs")
    assert all(found[f"{rate}_per_s"] > 0 for rate in rates)
    assert found["publish_of_push"] == pytest.approx(found["publish_per_s"] / found["push_per_s"], rel=0.01)
    assert found["pub_to_sub_ms"] > 0
    assert found["insert_ms"] > 0
    assert found["jobs"] == 2_000


@pytest.mark.full
def test_stream_runs_a_broker_of_its_own() -> None:
    result = bench("stream", "--endpoint", "tcp://127.0.0.1:1")
    assert result.exit_code == 2
    assert "of its own" in result.output


@pytest.mark.full
@pytest.mark.parametrize("device", first_of("forwarder", "streamer --curve", "streamer", "queue --curve"))
def test_relay_measures_a_device_alone_and_nothing_is_lost(device: str) -> None:
    result = bench("relay", "--jobs", 5_000, "--json", "--device", *device.split())
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["jobs"] == 5_000
    assert found["processes"]["relay"]["peak_rss_mb"] > 10
    assert found["of_proxy"] == pytest.approx(found["jobs_per_s"] / found["proxy_jobs_per_s"], rel=0.01)


# ---------------------------------------------------------------------- what it shows, leaves and refuses


@pytest.mark.full
def test_plot_draws_both_pictures(measured: Measured, tmp_path: Path) -> None:
    measured("both", "--jobs", 200, "--plot", tmp_path / "run.svg")
    measured("push", "--jobs", 200, "--plot", tmp_path / "run.png")
    assert "</svg>" in (tmp_path / "run.svg").read_text()
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
@pytest.mark.parametrize("arguments", [["--help"], ["push", "--jobs", 5]])
def test_without_the_bench_the_command_says_what_to_install(tmp_path: Path, arguments: list[object]) -> None:
    done = run_without("sluicemq_bench", tmp_path, "bench", *arguments)
    assert done.returncode == 1
    assert "the bench is not installed here: pip install ./bench in a checkout of SluiceMQ" in done.stderr


@pytest.mark.full
def test_a_table_is_shown_without_json(broker: BrokerProcess) -> None:
    result = bench("push", "--endpoint", broker.doors["smq"], "--jobs", 100)
    assert result.exit_code == 0
    assert "jobs/s" in result.stdout


@pytest.mark.full
def test_nothing_is_left_in_a_broker_that_was_there(broker: BrokerProcess, measured: Measured) -> None:
    measured("drain", "--jobs", 10, "--backlog", 50)
    with Client(endpoint=broker.doors["smq"]) as client:
        assert {queue.name for queue in client.queues.list()} == {"asked", "committed", "default"}


@pytest.mark.full
def test_a_door_that_hands_out_no_receipts_is_said(mongo_uri: str, capfd: pytest.CaptureFixture[str]) -> None:
    popping = {"kind": "streamer", "frontend": tcp(), "backend": tcp(), "commit": tcp()}
    with BrokerProcess(mongo_uri, f"pops_{os.getpid()}", config={"devices": [popping]}) as broker:
        doors = broker.doors
        pull = ["--door", "pull", "--ack", "explicit", *named_ends(broker.devices[0])]
        result = bench("both", *pull, "--jobs", 20, "--endpoint", doors["smq"])
    assert result.exit_code == 1
    assert f"{doors['pull']} hands out jobs without receipts" in capfd.readouterr().err


@pytest.mark.full
def test_a_queue_that_holds_jobs_is_not_touched(broker: BrokerProcess) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        producer.push("precious", b"job")
    result = bench("drain", "--endpoint", broker.doors["smq"], "--queue", "precious")
    assert result.exit_code == 1
    assert "holds 1 jobs" in result.stderr
    with Client(endpoint=broker.doors["smq"]) as client:
        assert client.queues.delete("precious").result() == 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("push", "--door", "rep"), "can't be run through the door rep"),
        (("drain", "--jobs", 100, "--backlog", 10), "does not hold"),
        (("both", "--size", 7), "at least 8 bytes"),
        (("relay", "--duration", 1), "not after a --duration"),
        (("stream", "--curve"), "has no keys"),
        (("both", "--curve", "--endpoint", "tcp://127.0.0.1:1"), "--key-file"),
        (("both", "--processes", 2), "1 workers of both can't share 2 processes"),
        (("simulate", "--workers", 4, "--processes", 2), "can't share 2 processes"),
        (("both", "--door", "rep", "--queues", 2), "several queues"),
        (("both", "--queues", 3, "--workers", 2), "too few for 3 queues"),
        (("push", "--plot", "run.pdf"), ".svg or .png"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_start(arguments: tuple[object, ...], words: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.full
def test_a_run_for_a_time_has_no_number_of_jobs() -> None:
    assert planned("both", duration=1.0).jobs == ENDLESS
    assert "jobs" not in planned("both", duration=1.0).described()


# ---------------------------------------------------------------------- the schedule


class SlowSystem:
    """A clock, and a system that stalls once for a second while the producer waits for it."""

    def __init__(self, stalls_at: int) -> None:
        self.now = MOMENT
        self._stalls_at = stalls_at

    def clock(self) -> int:
        return self.now

    def wait_until(self, due: int) -> None:
        self.now = max(self.now, due)

    def handle(self, number: int) -> None:
        self.now += SECOND if number == self._stalls_at else SECOND // 1000


@pytest.mark.full
def test_jobs_that_were_due_while_the_system_stalled_count_from_when_they_were_due() -> None:
    system = SlowSystem(stalls_at=100)
    latencies = []
    due = stamps(MOMENT, 1_000, rate=100, clock=system.clock, wait_until=system.wait_until)
    for number, stamp in enumerate(due):
        system.handle(number)
        latencies.append((system.now - stamp) / SECOND)
    # A producer that waits would see one slow job; these are the 111 that a second's stall made late.
    assert max(latencies) == pytest.approx(1.0)
    assert 105 <= sum(latency > 0.002 for latency in latencies) <= 115
    assert latencies[150] == pytest.approx(0.55, abs=0.01)


@pytest.mark.full
def test_stamps_of_a_schedule_do_not_depend_on_what_the_system_does() -> None:
    system = SlowSystem(stalls_at=3)
    due = []
    for number, stamp in enumerate(
        stamps(MOMENT, 10, rate=50, clock=system.clock, wait_until=system.wait_until)
    ):
        due.append(stamp)
        system.handle(number)
    assert due == [MOMENT + number * SECOND // 50 for number in range(10)]


@pytest.mark.full
def test_a_late_producer_still_sends_all_that_was_due_within_the_duration() -> None:
    system = SlowSystem(stalls_at=0)
    sent = 0
    for number, _stamp in enumerate(
        stamps(MOMENT, ENDLESS, rate=10, duration=0.5, clock=system.clock, wait_until=system.wait_until)
    ):
        system.handle(number)
        sent += 1
    assert sent == 5


@pytest.mark.full
def test_without_a_rate_a_job_is_due_when_it_is_asked_for() -> None:
    system = SlowSystem(stalls_at=1)
    due = []
    for number, stamp in enumerate(stamps(MOMENT, 3, clock=system.clock)):
        due.append(stamp - MOMENT)
        system.handle(number)
    assert due == [0, SECOND // 1000, SECOND // 1000 + SECOND]


@pytest.mark.full
def test_payloads_carry_their_stamp() -> None:
    payload = Payloads(64).of(MOMENT)
    assert len(payload) == 64
    assert stamp_of(payload) == MOMENT


@pytest.mark.full
def test_times_of_several_processes_become_one_histogram() -> None:
    first, second = Times(), Times()
    for value in range(1, 51):
        first.add(value * 1_000_000)
        second.add((value + 50) * 1_000_000)
    both = merged([first.encoded(), second.encoded()])
    assert both.total_count == 100
    assert both.get_value_at_percentile(50) == pytest.approx(50e6, rel=0.002)
    assert both.get_max_value() == pytest.approx(100e6, rel=0.002)


@pytest.mark.full
def test_every_job_of_a_library_producer_says_what_the_bench_is_told(measured: Measured) -> None:
    found = measured("both", "--jobs", 10, "--header", "delay=0.7", "--header", "priority=7")
    assert found["seconds"] >= 0.7
    assert found["headers"] == {"delay": 0.7, "priority": 7}


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["--header", "priority"], "KEY=NUMBER"), (["--door", "pull", "--header", "ttl=1"], "send headers")],
)
def test_headers_that_can_not_be_sent_are_refused(arguments: list[str], complaint: str) -> None:
    refused = bench("both", *arguments)
    assert refused.exit_code == 2
    assert complaint in refused.stderr


@pytest.mark.full
@full
def test_a_plan_is_made_with_what_a_job_costs_here() -> None:
    result = bench("plan", "--rate", 1000, "--measure", "--json")
    assert result.exit_code == 0, result.output
    costs = json.loads(result.stdout)["costs"]
    assert costs["source"] == "this machine"
    assert 0 < costs["reserved"] <= costs["claimed"]
    assert costs["broker"] > 0


#: Seconds in which a test that has sent a probe sends what is counted, on a machine that is busy.
_SILENCE = 3.0


def test_all_messages_behind_the_probes_are_counted_for_each_subscriber() -> None:
    ours, theirs = Pipe()
    with zmq.Context() as context, context.socket(zmq.PUB) as pub:
        pub.sndhwm = 0
        port = pub.bind_to_random_port("tcp://127.0.0.1")
        count = threading.Thread(
            target=listen, args=(f"tcp://127.0.0.1:{port}", 3, 500, b"probe", TIMEOUT, theirs)
        )
        count.start()
        wait_until(
            lambda: (pub.send_multipart([b"probe", b""]), ours.poll(0.02))[1], what="three subscribers"
        )
        assert ours.recv() == 0

        for number in range(500):
            pub.send_multipart([b"t", b"%0300d" % number])

        got, ended = ours.recv()
        count.join(TIMEOUT)
    assert got == 1500
    assert ended > 0


def test_what_does_not_come_is_not_counted() -> None:
    ours, theirs = Pipe()
    with zmq.Context() as context, context.socket(zmq.PUB) as pub:
        port = pub.bind_to_random_port("tcp://127.0.0.1")
        count = threading.Thread(
            target=listen, args=(f"tcp://127.0.0.1:{port}", 1, 500, b"probe", _SILENCE, theirs)
        )
        count.start()
        wait_until(lambda: (pub.send_multipart([b"probe", b""]), ours.poll(0.02))[1], what="a subscriber")
        ours.recv()
        pub.send_multipart([b"t", b"one"])
        assert ours.recv()[0] == 1
        count.join(TIMEOUT)
