"""Too little of what an embedded MongoDB needs: said at the start, and as the cause where it ends for it."""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sluicemq import Client, Producer
from sluicemq_broker.embedded import shortage
from sluicemq_broker.embedded.mongod import why_it_ended
from support.broker_process import BrokerProcess
from support.waiting import TIMEOUT, wait_until

#: Takes many connections and seconds each: by default test_bounds and the unit tests of rates see the rule.
pytestmark = pytest.mark.full

#: What mongod 6 wrote as it ended on a full disk, and when its limit of open files was reached.
FULL = ("E", "WiredTiger error message", {"error": 28, "message": {"msg": "handle-write: pwrite: failed"}})
FEW_FILES = ("E", "WiredTiger error message", {"error": 24, "message": {"msg": "directory-list: opendir"}})
PANIC = ("E", "WiredTiger error message", {"error": -31804, "message": {"msg": "the process must exit"}})
CONSEQUENCES = [
    PANIC,
    ("F", "Fatal assertion", {"msgid": 50853}),
    ("F", "Writing fatal message", {"message": "Got signal: 6 (Aborted).\n"}),
    ("E", "Error collecting stack trace", {"error": "unw_get_proc_name: unspecified"}),
    ("I", "Frame", {"frame": {"a": "55A2B16ECF25"}}),
]


def logged(folder: Path, *entries: tuple[str, str, object], ago: float = 0.0) -> Path:
    """Append entries to a log of mongod."""
    at = (datetime.now(UTC) - timedelta(seconds=ago)).isoformat()
    log = folder / "mongod.log"
    with log.open("a") as file:
        for severity, message, attributes in entries:
            entry = {"t": {"$date": at}, "s": severity, "msg": message, "attr": attributes}
            file.write(json.dumps(entry) + "\n")
    return log


@pytest.mark.parametrize(
    ("cause", "words"),
    [(FULL, "is full: make room there"), (FEW_FILES, "files: raise that, with `ulimit -n")],
)
def test_the_first_error_is_the_cause_not_what_follows_it(
    tmp_path: Path, cause: tuple[str, str, object], words: str
) -> None:
    log = logged(tmp_path, cause, *CONSEQUENCES)
    assert words in why_it_ended(-6, log)
    assert "signal" not in why_it_ended(-6, log)


def test_an_error_that_was_over_is_not_the_cause(tmp_path: Path) -> None:
    logged(tmp_path, FEW_FILES, ago=60)
    log = logged(tmp_path, *CONSEQUENCES)
    assert "the process must exit" in why_it_ended(-6, log)


def test_a_mongod_that_was_killed_blames_nothing_that_was_before(tmp_path: Path) -> None:
    assert "killed (signal 9)" in why_it_ended(-9, logged(tmp_path, FULL))


@pytest.mark.parametrize(
    ("free", "files", "told"),
    [(1 << 35, 64_000, 0), (1 << 22, 64_000, 1), (1 << 35, 1024, 1), (1 << 22, 1024, 2)],
)
def test_little_room_and_few_files_are_told_early(tmp_path: Path, free: int, files: int, told: int) -> None:
    assert len(list(shortage.shortages(tmp_path, free=free, files=files))) == told


def test_a_broker_with_too_few_files_for_its_mongodb_names_them(tmp_path: Path) -> None:
    broker = BrokerProcess(folder=tmp_path, rlimits={resource.RLIMIT_NOFILE: 40})
    try:
        broker.launch()
        assert broker.process.wait(TIMEOUT) == 1
        assert "may open 40 files each: that is little" in broker.log_text()
        assert "ERROR   broker: mongod ended with code " in broker.log_text()
        assert "it may open no more than 40 files: raise that, with `ulimit -n 64000`" in broker.log_text()
    finally:
        broker.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """One of 40 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounting.returncode:
        pytest.skip(f"no disk can be mounted here: {mounting.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_disk_that_becomes_full_is_named_and_what_was_confirmed_is_there_when_there_is_room(
    small_disk: Path, tmp_path: Path
) -> None:
    # Given a broker whose MongoDB lies on a small disk
    filler = small_disk / "filler"
    with BrokerProcess(config={"broker": {"data_dir": str(small_disk / "data")}}) as broker:
        assert "MiB are free on the disk of" in broker.log_text()
        # When something else fills it
        with Producer(close_timeout=0.0, endpoint=broker.doors["smq"]) as producer:
            producer.push("q", b"confirmed", id="first").wait(TIMEOUT)
            subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=1M"], capture_output=True, check=False)
            receipt = producer.push("q", bytes(4_000_000))
            # Then it says so
            broker.wait_log(f"the disk of {small_disk}/data is full: make room there")
            assert "Got signal" not in broker.log_text()
            # To those who ask, too
            with Client(endpoint=broker.doors["smq"]) as client:
                wait_until(lambda: "is full: make room there" in client.health().store)
            # And goes on when there is room again
            filler.unlink()
            receipt.wait(TIMEOUT)


def test_a_folder_that_can_not_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    broker = BrokerProcess(folder=tmp_path)
    try:
        broker.launch()
        assert broker.process.wait(TIMEOUT) == 1
        assert f"the data folder {tmp_path}/data can't be used: " in broker.log_text()
    finally:
        broker.close()
