"""A broker for a test: a process of its own, all doors on free ports, ended whatever happens.

::

    with BrokerProcess(mongo_uri, database) as broker:
        push.connect(broker.doors["push"])
"""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Self

import tomli_w

from sluicemq_broker.runtime import BALANCES
from support.forked_broker import ForkedBroker
from support.ports import tcp
from support.waiting import TIMEOUT, wait_until

#: What a device's ends are called in ``BrokerProcess.doors``.
_NAMES = {
    "streamer": {"frontend": "push", "backend": "pull", "commit": "commit"},
    "queue": {"frontend": "req", "backend": "rep"},
    "forwarder": {"frontend": "pub", "backend": "sub"},
}


class BrokerProcess:
    """``python -m sluicemq_broker`` as a subprocess, or :mod:`forked <support.forked_broker>`.

    It is started as users do where a test says something of its start: ``args``, ``env``, ``rlimits``, or
    the ``folder``.

    ``config`` is written as its TOML file; ``[[devices]]`` left out are the three default ones, on
    free ports. ``mongodb_uri=None`` gives it an embedded MongoDB in :attr:`folder`. ``rlimits`` maps
    ``resource.RLIMIT_*`` to a value (soft and hard). ``failpoints``: :mod:`support.failpoints`.
    """

    #: The arguments of Python.
    program: Sequence[str] = ("-m", "sluicemq_broker")

    def __init__(
        self,
        mongodb_uri: str | None = None,
        database: str | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        rlimits: Mapping[int, int] | None = None,
        folder: Path | None = None,
        start_timeout: float = 2 * TIMEOUT,
        failpoints: str = "",
    ) -> None:
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="sluicemq-test-"))
        self.config = _complete(config or {}, mongodb_uri, database, self.folder)
        self._args = list(args)
        self._env = {**_clean_environment(), **(env or {})}
        if failpoints:
            self._env["SLUICEMQ_FAILPOINTS"] = failpoints
        self._rlimits = dict(rlimits or {})
        self._start_timeout = start_timeout
        self._forked = not (args or env or rlimits or folder) and self.program == BrokerProcess.program
        self._process: subprocess.Popen[bytes] | ForkedBroker | None = None
        self._ready: dict[str, Any] = {}

    def start(self) -> Self:
        """Start it and wait until it is ready; AssertionError with its log if it ends first."""
        self.launch()
        self.wait_ready()
        return self

    def launch(self) -> None:
        """Start it without waiting."""
        (self.folder / "broker.toml").write_text(tomli_w.dumps(self.config))
        self._ready_file.unlink(missing_ok=True)
        words = ["--config", "broker.toml", "--ready-file", str(self._ready_file), *self._args]
        if self._forked:
            self._process = ForkedBroker(words, self.folder, self._log_file, self._env)
            return
        limits = self._rlimits
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self.program, *words],
                cwd=self.folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=(lambda: _limit(limits)) if limits else None,  # noqa: PLW1509
            )

    def wait_ready(self) -> None:
        """Wait for the ready file and read it."""
        wait_until(self._is_ready_or_ended, self._start_timeout, "the broker's start")
        if not self._ready_file.exists():
            message = f"the broker ended with code {self.process.returncode}:\n{self.log_text()[-5000:]}"
            raise AssertionError(message)
        self._ready = json.loads(self._ready_file.read_text())

    @property
    def process(self) -> subprocess.Popen[bytes] | ForkedBroker:
        """The broker's process."""
        assert self._process, "the broker was not started"
        return self._process

    @property
    def pid(self) -> int:
        """The broker's pid."""
        return self.process.pid

    @property
    def mongod_pid(self) -> int:
        """The pid of its embedded mongod at the time it was ready."""
        return int(self._ready["mongod_pid"])

    @property
    def embedded_uri(self) -> str:
        """The URI of its embedded MongoDB."""
        return (self.folder / "data" / "mongodb.uri").read_text().strip()

    @property
    def http(self) -> str:
        """Where its HTTP door is, ``host:port``; empty unless its configuration has one."""
        return str(self._ready["http"])

    @property
    def devices(self) -> list[dict[str, Any]]:
        """The devices as the ready file lists them: kind, queue and addresses of their ends."""
        return list(self._ready["devices"])

    @property
    def doors(self) -> dict[str, str]:
        """One address each for smq, push, pull, commit, req, rep, pub and sub: of the first such device."""
        doors = {"smq": self._ready["endpoint"]}
        for device in self.devices:
            for end, name in _NAMES[device["kind"]].items():
                addresses = _addresses(device.get(end))
                if addresses:
                    doors.setdefault(name, addresses[0])
        return doors

    def log_text(self) -> str:
        """Everything it wrote on stdout and stderr so far, over all its starts."""
        return self._log_file.read_text(errors="replace") if self._log_file.exists() else ""

    def wait_log(self, text: str, timeout: float = TIMEOUT) -> None:
        """Wait until ``text`` stands in its log."""
        wait_until(lambda: text in self.log_text(), timeout, f"{text!r} in the broker's log")

    def send_signal(self, number: int) -> None:
        """Send it a signal (SIGSTOP, SIGCONT, ...)."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """``kill -9``, and wait until it is gone."""
        self.process.kill()
        self.process.wait(TIMEOUT)

    def terminate(self, timeout: float = TIMEOUT) -> int:
        """SIGTERM; returns its exit code. TimeoutExpired after ``timeout`` seconds."""
        self.process.terminate()
        return self.process.wait(timeout)

    def restart(self) -> Self:
        """Start it again after :meth:`kill` or :meth:`terminate`: with its config and ports."""
        return self.start()

    def close(self) -> None:
        """End it and remove its folder; what it counted must add up, at each of its ends but ``kill -9``."""
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            _kill_after(self._process, TIMEOUT)
        log = self.log_text()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        for line in re.findall(r"counted: (.*)", log):
            check_balance({name: int(count) for name, count in re.findall(r"(\w+)=(-?\d+)", line)})

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            sys.stderr.write(f"--- the broker's log ---\n{self.log_text()[-20_000:]}\n")
        with nullcontext() if kind is None else suppress(AssertionError):  # the first failure tells more
            self.close()

    @property
    def _ready_file(self) -> Path:
        return self.folder / "ready.json"

    @property
    def _log_file(self) -> Path:
        return self.folder / "broker.log"

    def _is_ready_or_ended(self) -> bool:
        return self._ready_file.exists() or self.process.poll() is not None


def check_balance(figures: Mapping[str, int]) -> None:
    """AssertionError if these counters and gauges of one moment don't add up."""
    for balance in BALANCES:
        begun, became = (sum(figures.get(count, 0) for count in side) for side in balance)
        assert begun == became, f"{balance} does not hold: {begun} and {became}, {dict(figures)}"


def _complete(
    config: Mapping[str, Any], uri: str | None, database: str | None, folder: Path
) -> dict[str, Any]:
    broker = {"endpoint": tcp(), "http": "", "history": False, "data_dir": str(folder / "data")}
    if uri:
        broker["mongodb_uri"] = uri
    if database:
        broker["database"] = database
    return {**config, "broker": {**broker, **config.get("broker", {})}, "devices": _devices(config)}


def _devices(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "devices" in config:
        return list(config["devices"])
    return [
        {"kind": "streamer", "frontend": tcp(), "backend": tcp(), "commit": tcp()},
        {"kind": "queue", "frontend": tcp(), "backend": tcp()},
        {"kind": "forwarder", "frontend": tcp(), "backend": tcp()},
    ]


def _addresses(end: str | list[str] | None) -> list[str]:
    return [end] if isinstance(end, str) else list(end or [])


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SLUICEMQ_")}


def _limit(limits: Mapping[int, int]) -> None:
    for which, value in limits.items():
        resource.setrlimit(which, (value, value))


def _kill_after(process: subprocess.Popen[bytes] | ForkedBroker, seconds: float) -> None:
    killer = threading.Timer(seconds, process.kill)
    killer.start()
    process.wait()
    killer.cancel()
