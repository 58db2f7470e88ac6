"""``sluicemq work``: a command's exit status is the verdict."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from clients.cli_runs import Run
from clients.scripted_broker import SECONDS, ScriptedBroker
from sluicemq import BadQueueError
from sluicemq.protocol import wire
from support.waiting import wait_until

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)


def start_work(
    broker: ScriptedBroker, *arguments: str, files: Sequence[int] = ()
) -> tuple[subprocess.Popen[str], bytes]:
    """Start the command; ``files`` are open in it, too."""
    command = [sys.executable, "-m", "sluicemq.cli", "--endpoint", broker.endpoint, *arguments]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, pass_fds=files)
    return process, broker.wait_for(wire.READY)[0].peer


def end_work(process: subprocess.Popen[str]) -> tuple[str, str]:
    process.send_signal(signal.SIGTERM)
    try:
        return process.communicate(timeout=SECONDS)
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        ("cat; printf $JOB_ID-$JOB_QUEUE-$JOB_ATTEMPT", ["COMMIT", b"xid-x-q-4", None]),
        ("echo first >&2; echo no such user >&2; exit 100", ["REJECT", "no such user", None]),
        ("exit 100", ["REJECT", "exit status 100", None]),
        ("echo disk full >&2; exit 1", ["ROLLBACK", "disk full", None]),
        ("kill -9 $$", ["ROLLBACK", "exit status -9", None]),
    ],
)
def test_the_commands_exit_status_decides(broker: ScriptedBroker, command: str, verdict: list[Any]) -> None:
    process, peer = start_work(broker, "work", "q", "--exec", command)
    try:
        broker.deliver(peer, "q", [b"x"], attempt=4)
        broker.wait_for(wire.SETTLE)
    finally:
        end_work(process)
    assert broker.settled() == {b"r-x": verdict}
    assert process.returncode == 0


def test_a_command_is_told_of_the_trace_of_its_job(broker: ScriptedBroker) -> None:
    # Given: what is no context is told to nobody
    process, peer = start_work(broker, "work", "q", "--exec", 'printf "$TRACEPARENT/$TRACESTATE"')
    headers = {"traceparent": "00-ab-cd-01", "tracestate": "a\nb"}
    row = [b"r-x", "id-x", b"x", headers, 1]
    try:
        broker.send(peer, wire.encode(wire.DELIVER, 0, "q", [row]))
        broker.wait_for(wire.SETTLE)
    finally:
        end_work(process)
    assert broker.settled() == {b"r-x": ["COMMIT", b"00-ab-cd-01/", None]}


def test_a_command_lets_its_jobs_go_on_to_another_queue(broker: ScriptedBroker) -> None:
    process, peer = start_work(
        broker, "--json", "work", "q", "--exec", "printf on-; cat", "--forward", "next"
    )
    try:
        broker.deliver(peer, "q", [b"x"])
        broker.wait_for(wire.SETTLE)
    finally:
        said, _ = end_work(process)
    assert broker.settled() == {b"r-x": ["FORWARD", None, None, ["next", b"on-x", None]]}
    assert json.loads(said)["forwarded"] == 1


def test_work_tells_at_its_end_what_it_has_done(broker: ScriptedBroker) -> None:
    process, peer = start_work(broker, "--json", "work", "q", "--exec", "grep -q good", "--prefetch", "3")
    broker.deliver(peer, "q", [b"good", b"bad", b"good too"])
    broker.wait_until(lambda: len(broker.settled()) == 3)
    output, errors = end_work(process)
    assert json.loads(output) == {"queue": "q", "committed": 2, "rejected": 0, "rolled_back": 1}
    assert errors.endswith("2 committed, 0 rejected, 1 rolled back\n")


def test_work_prints_payloads_and_commits_them(broker: ScriptedBroker) -> None:
    process, peer = start_work(broker, "work", "q", "--print", "--prefetch", "2")
    broker.deliver(peer, "q", [b"one", b"two"])
    broker.wait_until(lambda: len(broker.settled()) == 2)
    assert end_work(process)[0] == "one\ntwo\n"
    assert process.returncode == 0


def test_work_whose_reader_has_gone_gives_its_jobs_back_and_ends_with_1(broker: ScriptedBroker) -> None:
    process, peer = start_work(broker, "work", "q", "--print", "--prefetch", "5")
    assert process.stdout
    process.stdout.close()
    broker.deliver(peer, "q", [b"1", b"2", b"3", b"4", b"5"])
    assert process.wait(SECONDS) == 1
    assert process.stderr
    assert process.stderr.read() == ""
    process.stderr.close()
    assert {row[0] for row in broker.settled().values()} == {"RELEASE"}
    assert len(broker.settled()) == 5


def test_work_on_a_full_disk_gives_the_job_back_and_says_why(broker: ScriptedBroker) -> None:
    command = [sys.executable, "-m", "sluicemq.cli", "--endpoint", broker.endpoint, "work", "q", "--print"]
    with Path("/dev/full").open("w") as full, subprocess.Popen(
        command, stdout=full, stderr=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"1"])
        assert process.communicate(timeout=SECONDS)[1] == (
            "sluicemq: can't write to stdout: No space left on device\n"
        )
    assert process.returncode == 1
    assert broker.settled() == {b"r-1": ["RELEASE", None, 0.0]}


@pytest.mark.parametrize("arguments", [["jobs", "list", "q"], ["--json", "queues"], ["ping"]])
def test_a_result_that_can_not_be_written_is_one_line(broker: ScriptedBroker, arguments: list[str]) -> None:
    broker.on[wire.PEEK] = broker.on[wire.QUEUES] = lambda _message: [{"id": "one", "name": "q"}]
    command = [sys.executable, "-m", "sluicemq.cli", "--endpoint", broker.endpoint, *arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "sluicemq: can't write to stdout: No space left on device\n"


@pytest.mark.parametrize(("command", "status"), [("nosuchprogram", "127"), ("/dev/null", "126")])
def test_a_command_that_can_not_run_harms_no_job(broker: ScriptedBroker, command: str, status: str) -> None:
    process, peer = start_work(broker, "work", "q", "--exec", command)
    broker.deliver(peer, "q", [b"x"])
    errors = process.communicate(timeout=SECONDS)[1]
    assert process.returncode == 1
    assert f"(exit status {status} of the shell)" in errors.splitlines()[-1]
    assert f"Error: '{command}' " in errors
    assert broker.settled() == {b"r-x": ["RELEASE", None, 0.0]}


def test_work_whose_errors_nobody_reads_still_does_its_jobs(broker: ScriptedBroker) -> None:
    process, peer = start_work(broker, "work", "q", "--exec", "echo trouble >&2")
    assert process.stderr
    process.stderr.close()
    broker.deliver(peer, "q", [b"x"])
    broker.wait_for(wire.SETTLE)
    process.kill()
    process.wait()
    process.stdout.close()  # type: ignore[union-attr]
    assert broker.settled() == {b"r-x": ["COMMIT", b"", None]}


def test_work_does_not_count_what_came_too_late(broker: ScriptedBroker) -> None:
    late = [0, "LEASE_LOST", "given to another"]
    broker.on[wire.SETTLE] = lambda message: [late] if message.fields[0][0][0] == b"r-1" else []
    process, peer = start_work(broker, "work", "q", "--exec", "true", "--json")
    for payload in (b"1", b"2", b"3"):
        broker.deliver(peer, "q", [payload])
    broker.wait_until(lambda: len(broker.settled()) == 3)
    output, errors = end_work(process)
    assert json.loads(output) == {
        "queue": "q", "committed": 2, "rejected": 0, "rolled_back": 0, "too_late": 1
    }  # fmt: skip
    assert errors.endswith("2 committed, 0 rejected, 0 rolled back, 1 too late\n")


def test_work_stops_after_a_count_of_jobs_and_gives_back_the_rest(broker: ScriptedBroker) -> None:
    process, peer = start_work(broker, "work", "q", "--print", "--prefetch", "3", "--count", "2")
    broker.deliver(peer, "q", [b"1", b"2", b"3"])
    assert process.communicate(timeout=SECONDS)[0] == "1\n2\n"
    assert process.returncode == 0
    assert [row[0] for row in broker.settled().values()].count("COMMIT") == 2
    assert broker.settled()[b"r-3"] == ["RELEASE", None, 0.0]


def test_work_stops_when_the_queue_is_empty(broker: ScriptedBroker) -> None:
    # Given: a queue that is said to hold one more until that was delivered
    holds = iter([1, 0])
    broker.on[wire.QUEUE] = lambda _message: {"name": "q", "ready": next(holds)}
    process, peer = start_work(broker, "work", "q", "--print", "--drain")
    broker.deliver(peer, "q", [b"1"])
    broker.wait_for(wire.QUEUE)
    broker.deliver(peer, "q", [b"2"])
    assert process.communicate(timeout=SECONDS)[0] == "1\n2\n"
    assert process.returncode == 0
    assert len(broker.of(wire.QUEUE)) == 2


def test_work_that_is_refused_ends_with_1(broker: ScriptedBroker) -> None:
    broker.on[wire.READY] = lambda message: BadQueueError("no such queue") if message.fields[1] else None
    process, _peer = start_work(broker, "work", "q", "--exec", "cat")
    assert process.wait(SECONDS) == 1
    assert "sluicemq: no such queue" in end_work(process)[1]


@pytest.mark.parametrize("others", [0, 20], ids=["few files", "many files"])
def test_a_command_ends_with_a_killed_work(broker: ScriptedBroker, tmp_path: Path, others: int) -> None:
    # Given: a shell with a child in the background and one that it waits for
    command = f"{_told(tmp_path, 'child')} & {_told(tmp_path, 'other')}; exit 0"
    with ExitStack() as stack:
        files = [stack.enter_context(tmp_path.joinpath(f"f{n}").open("w")).fileno() for n in range(others)]
        process, peer = start_work(broker, "work", "q", "--exec", command, files=files)
        try:
            broker.deliver(peer, "q", [b"x"])
            pids = [_pid(tmp_path / name) for name in ("child", "other")]
            pids.append(psutil.Process(pids[1]).ppid())
            process.kill()
            wait_until(lambda: not any(map(_runs, pids)), what="the end of the command")
        finally:
            process.kill()
            process.communicate()
            _end(*map(_pid, tmp_path.glob("[a-z]*[a-z]")))
    assert broker.settled() == {}


def test_what_a_command_leaves_on_purpose_outlives_its_work(broker: ScriptedBroker, tmp_path: Path) -> None:
    command = f"{_told(tmp_path, 'daemon')} >/dev/null 2>&1 </dev/null &"
    process, peer = start_work(broker, "work", "q", "--exec", command)
    try:
        broker.deliver(peer, "q", [b"x"])
        broker.wait_for(wire.SETTLE)
        daemon = _pid(tmp_path / "daemon")
        watcher = next(child for child in psutil.Process(process.pid).children() if child.name() == "sh")
        process.kill()
        wait_until(lambda: not _runs(watcher.pid), what="the watcher's end")
        assert _runs(daemon)
        os.kill(daemon, signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()


def test_a_command_that_is_just_being_started_ends_too() -> None:
    """It tells the watcher after the end of the process that forked it: the pipe is its own by then."""
    code = """
import subprocess, sys
from sluicemq.cli.watcher import Watcher
watcher = Watcher()
watcher._first_words = lambda told=watcher._first_words: "read go; " + told()
print(watcher.start("exec sleep 1000", stdin=0, stdout=subprocess.DEVNULL).pid)
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        command = int(parent.stdout.readline())
        try:
            parent.wait(SECONDS)
            assert _runs(command)
            parent.stdin.write(b"go\n")
            parent.stdin.flush()
            wait_until(lambda: not _runs(command), what="the end of the command")
        finally:
            _end(command)


def test_a_watcher_that_is_gone_is_no_reason_for_a_job_to_fail(broker: ScriptedBroker) -> None:
    process, peer = start_work(broker, "work", "q", "--exec", "cat")
    try:
        watcher = next(child for child in psutil.Process(process.pid).children() if child.name() == "sh")
        watcher.kill()
        wait_until(lambda: not _runs(watcher.pid), what="the watcher's end")
        broker.deliver(peer, "q", [b"x"])
        broker.wait_for(wire.SETTLE)
    finally:
        end_work(process)
    assert broker.settled() == {b"r-x": ["COMMIT", b"x", None]}


def _told(folder: Path, name: str) -> str:
    """A command that writes its number into a file, and goes on for long."""
    return f"sh -c 'echo $$ > {folder}/{name}.new; mv {folder}/{name}.new {folder}/{name}; exec sleep 1000'"


def _end(*pids: int) -> None:
    """What goes on where a test has failed."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _pid(file: Path) -> int:
    return int(wait_until(lambda: file.exists() and file.read_text().strip(), what="the command"))


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_job_is_extended_for_as_long_as_its_command_runs(broker: ScriptedBroker, tmp_path: Path) -> None:
    # Given: a command that needs longer than the job's time
    go_on = tmp_path / "go on"
    os.mkfifo(go_on)
    process, peer = start_work(broker, "work", "q", "--exec", f"cat '{go_on}'")
    try:
        broker.deliver(peer, "q", [b"x"], within=0.3)
        extended = broker.wait_for(wire.EXTEND, 3)
        go_on.write_bytes(b"done")
        broker.wait_for(wire.SETTLE)
    finally:
        end_work(process)
    assert [message.fields for message in extended[:3]] == [[[b"r-x"], 0.3]] * 3
    assert broker.settled() == {b"r-x": ["COMMIT", b"done", None]}


def test_a_command_that_runs_too_long_ends_with_its_children(broker: ScriptedBroker, tmp_path: Path) -> None:
    # Given: a command that never ends, and neither does its child
    never = tmp_path / "never"
    os.mkfifo(never)
    process, peer = start_work(broker, "work", "q", "--kill-after", "1.5", "--exec", f"cat '{never}'; true")
    try:
        broker.deliver(peer, "q", [b"x"])
        broker.wait_for(wire.SETTLE)
    finally:
        end_work(process)
    assert broker.settled() == {b"r-x": ["ROLLBACK", "the command ran for 1.5 s, and was ended", None]}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["tasks:app", "--exec", "cat"], "--exec does not go with an APP"),
        (["tasks:app", "--drain"], "--drain does not go with an APP"),
        (["q", "--processes", "2"], "--processes does not go with a QUEUE"),
        (["q", "--queues", "a=x"], "'a=x' is no queue, or queue=weight"),
        (["q", "--max-memory", "much"], "'much' is not a number of bytes"),
    ],
)
def test_options_of_an_app_and_of_a_queue_are_not_mixed(run: Run, arguments: list[str], why: str) -> None:
    done = run("work", *arguments)
    assert (done.exit_code, why in done.stderr) == (2, True)
