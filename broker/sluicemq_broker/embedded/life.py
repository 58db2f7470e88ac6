"""A private MongoDB for one broker: started, owned, restarted and stopped with it.

It listens on a Unix socket in a folder that only its owner can enter, and on no port: it needs no password,
and other users of the machine can't reach it. :mod:`~sluicemq_broker.embedded.data_folder` has the layout.

For trying, tests and one small host; production names a replica set with ``mongodb_uri``.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.embedded import mongod
from sluicemq_broker.embedded.data_folder import DataFolder
from sluicemq_broker.embedded.shortage import refused, shortages
from sluicemq_broker.runtime import host_memory

if TYPE_CHECKING:
    from pathlib import Path

_REPLICA_SET: Final = "sluicemq"
_MIB: Final = 2**20
#: Bytes of a cache that still holds the indexes of some thousands of jobs.
_LEAST_CACHE: Final = 64 * _MIB

_START_DEADLINE: Final = 120.0  # a long journal to replay; a healthy start takes about 1 s

_PARAMETERS: Final = (
    "diagnosticDataCollectionEnabled=false",  # 0.5 % of a core at rest becomes 0.3 %
    "shutdownTimeoutMillisForSignaledShutdown=100",  # no other member waits for a hand-over (default 15 s)
    "minSnapshotHistoryWindowInSeconds=0",  # nobody reads the past; 300 s of deleted jobs would be kept
    "transactionLifetimeLimitSeconds=10",  # for as long a killed broker's open transaction keeps its jobs
)


class EmbeddedMongo:
    """One mongod, a single-node replica set on a Unix socket, in a folder of its own.

    ``cache_bytes`` bounds WiredTiger's cache; 0: a quarter of the memory, at most 1 GiB. Its log is checked
    every ``log_check`` seconds, and rotated if it has more than ``log_limit`` bytes. A mongod that has not
    ended after ``stop_timeout`` seconds is killed, a former broker's after ``former_timeout``. The thread
    that calls :meth:`start` must live as long as the mongod: the kernel ties them.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        log: logging.Logger | None = None,
        cache_bytes: int = 0,
        log_limit: int = 8 * 2**20,
        log_check: float = 5.0,
        stop_timeout: float = 20.0,  # a clean stop takes 1 s
        former_timeout: float = 10.0,  # the kernel kills its mongod at once, as a rule
    ) -> None:
        self._folder = DataFolder(data_dir.absolute())
        self._log = log or logging.getLogger("broker.embedded")
        self._cache = max(_LEAST_CACHE, cache_bytes or _usual_cache())
        self._log_limit, self._log_check = log_limit, log_check
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: threading.Thread | None = None
        self._stopping = threading.Event()
        self._timeout = stop_timeout
        self._former_timeout = former_timeout
        self.version = ""
        """Version of the mongod that runs, or ran last."""
        self.trouble = ""
        """Reason why mongod has ended by itself, until it is back; else empty."""

    @property
    def uri(self) -> str:
        """URI to connect to, for this user of the machine."""
        return f"mongodb://{quote(str(self._folder.socket), safe='')}/?directConnection=true"

    @property
    def pid(self) -> int | None:
        """The running mongod's pid; None while there is none."""
        process = self._process
        return process.pid if process and process.poll() is None else None

    def start(self) -> str:
        """Start mongod, return :attr:`uri` when it takes writes.

        Raises :class:`Unavailable` with what to do: another broker owns the folder, there is no
        mongod, it lacks a library, it does not come up.
        """
        try:
            self._folder.take()
            for warning in (*shortages(self._folder.path), *self._folder.dangers()):
                self._log.warning("%s", warning)
            self._stopping.clear()
            self._start_owned()
        except OSError as error:
            self.stop()
            raise UnavailableError(refused(self._folder.path, error)) from error
        except BaseException:
            self.stop()
            raise
        self._watcher = threading.Thread(target=self._watch, name="mongod-watcher", daemon=True)
        self._watcher.start()
        return self.uri

    def stop(self) -> None:
        """Stop mongod cleanly, or kill it if it does not end; return when it has. Can be called again."""
        self._stopping.set()
        self._end_process()
        while self._watcher and self._watcher.is_alive():
            self._end_process()  # the watcher may have been bringing another one up
            self._watcher.join(0.05)
        self._end_process()
        self._watcher = self._process = None
        self._folder.release()

    def hurry(self) -> None:
        """Cut short the waits of a start or stop that is under way, and of a later stop."""
        self._timeout = 1.0
        if self._process and (self._stopping.is_set() or not self._watcher):
            self._process.kill()

    def _end_process(self) -> None:
        if self._process:
            mongod.end(self._process, self._timeout)

    def _start_owned(self) -> None:
        folder = self._folder
        killed = mongod.await_former(folder.pid_file, folder.data, self._former_timeout)
        if killed:
            self._log.warning("killed a former broker's mongod that did not end (pid %d)", killed)
        began = time.monotonic()
        self._log.info("starting MongoDB in %s", folder.path)
        self._bring_up(self._launch())
        folder.write(folder.uri_file, f"{self.uri}\n")
        self._log.info("MongoDB ready in %.1f s: %s", time.monotonic() - began, self.uri)

    def _launch(self) -> subprocess.Popen[bytes]:
        log = self._folder.log
        mongod.rotate(log)
        self._process = mongod.launch(self._command(log), log)
        self._folder.write(self._folder.pid_file, str(self._process.pid))
        return self._process

    def _command(self, log: Path) -> list[str]:
        options = {
            "dbpath": str(self._folder.data),
            "bind_ip": str(self._folder.socket),  # and no address
            "unixSocketPrefix": str(self._folder.socket.parent),  # else it makes another one in /tmp
            "filePermissions": "0600",
            "replSet": _REPLICA_SET,
            "oplogSize": "512",  # MB; the default is 5 % of the disk, and nobody replicates from here
            "wiredTigerCacheSizeGB": "0.25",  # its least; what stands in the next line wins
            "wiredTigerEngineConfigString": f"cache_size={self._cache // _MIB}M",
            "logpath": str(log),
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        words += [word for parameter in _PARAMETERS for word in ("--setParameter", parameter)]
        return [str(mongod.find_mongod()), *words, "--logappend", "--logRotate", "reopen", "--quiet"]

    def _bring_up(self, process: subprocess.Popen[bytes]) -> None:
        """Return when mongod takes writes; raises Unavailable if it does not."""
        deadline = time.monotonic() + _START_DEADLINE
        try:
            if mongod.wait_for_socket(self._folder.socket, process, deadline):
                self.version = _make_primary(self.uri, str(self._folder.socket), process, deadline)
                return
        except UnavailableError:
            if process.poll() is None:
                raise
        code = process.poll()
        if code is None:
            raise UnavailableError(f"mongod did not come up in {_START_DEADLINE:.0f} s")
        raise UnavailableError(mongod.why_it_ended(code, self._folder.log))

    def _watch(self) -> None:
        while (process := self._process) and not self._stopping.is_set():
            try:
                code = process.wait(self._log_check)
            except subprocess.TimeoutExpired:
                self._bound_log(process)
                continue
            if not self._stopping.is_set():
                self.trouble = mongod.why_it_ended(code, self._folder.log)
                self._log.error("%s; restarting it", self.trouble)
                self._restart()

    def _restart(self) -> None:
        """Start mongod again; try until it works."""
        began, pause = time.monotonic(), 0.1
        while not self._stopping.is_set():
            try:
                self._bring_up(self._launch())
            except (UnavailableError, OSError) as error:
                why = refused(self._folder.path, error) if isinstance(error, OSError) else str(error)
                self.trouble = why
                self._log.error("MongoDB does not come back: %s", why)
            else:
                self.trouble = ""
                self._log.warning("MongoDB is back after %.1f s", time.monotonic() - began)
                return
            self._stopping.wait(pause)
            pause = min(pause * 2, 5.0)

    def _bound_log(self, process: subprocess.Popen[bytes]) -> None:
        """Rotate a log that has grown.

        The signal to reopen the log is sent to a mongod that has come up: before that it would end it. mongod
        ignores it within a second of the last rotation, so it is sent again while the log is missing. If this
        process is killed between rename and signal, the kernel ends mongod, too.
        """
        log = self._folder.log
        try:
            if log.exists() and log.stat().st_size <= self._log_limit:
                return
            mongod.rotate(log)
            process.send_signal(signal.SIGUSR1)
        except OSError as error:  # a full disk; the next check tries again
            self._log.warning("mongod.log can't be rotated: %s", error)


def _usual_cache() -> int:
    """Return a quarter of the memory that this process may have, at most 1 GiB."""
    return min(2**30, host_memory().total // 4)


def _make_primary(uri: str, host: str, process: subprocess.Popen[bytes], deadline: float) -> str:
    """Initiate the replica set, or give it its new address; return its version when it takes writes.

    Tried until it works: a change of state closes connections.
    """
    with MongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=2000) as client:
        while True:
            try:
                if _is_writable(client, host):
                    return str(client.server_info()["version"])
                trouble: object = "not primary yet"
            except PyMongoError as error:
                trouble = error
            if process.poll() is not None or time.monotonic() > deadline:
                raise UnavailableError(f"mongod came up but does not take writes: {trouble}")
            time.sleep(0.01)


def _is_writable(client: MongoClient[dict[str, Any]], host: str) -> bool:
    hello = client.admin.command("hello")
    if not hello.get("isWritablePrimary"):
        _configure(client, host)
    return bool(hello.get("isWritablePrimary"))


def _configure(client: MongoClient[dict[str, Any]], host: str) -> None:
    try:
        config = client.admin.command("replSetGetConfig")["config"]
    except OperationFailure as error:
        if error.code != 94:  # NotYetInitialized
            raise
        members = [{"_id": 0, "host": host}]
        client.admin.command("replSetInitiate", {"_id": _REPLICA_SET, "members": members})
        return
    if config["members"][0]["host"] != host:
        config["members"] = [{**config["members"][0], "host": host}]
        config["version"] += 1
        client.admin.command("replSetReconfig", config, force=True)
