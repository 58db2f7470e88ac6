"""The servers of the peers: installed where that is wished, started on free ports, ended whatever happens."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.ports import free_port

_START_PATIENCE = 60.0
_STOP_PATIENCE = 20.0
_PIP = ["pika", "nats-py", "redis", "kombu[mongodb]", "pymongo"]
_NPM = ["keuss@2.0.6", "mongodb@4", "bullmq@5"]
_RABBIT = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # not the one in sbin, which becomes another user
_APT = {
    _RABBIT: "rabbitmq-server",
    "nats-server": "nats-server",
    "beanstalkd": "beanstalkd",
    "redis-server": "redis-server",
    "node": "nodejs",
    "npm": "npm",
}


@dataclass(frozen=True)
class Peer:
    """One system: its driver in this folder, and its server, unless it uses our MongoDB."""

    driver: str
    durable: str
    """What its confirmation means."""
    program: str = ""
    command: Callable[[Path, int], list[str]] | None = None
    share: float = 1.0
    """Of the jobs; slow ones get fewer, for their rate does not depend on it."""
    package: str = ""
    """Debian's or npm's, that its version is told of."""
    beside: str = ""
    """The peer whose server it uses."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """For its driver's environment."""
    crowd: bool = False
    """Whether its driver also pushes from 32 threads."""
    streams: str = ""
    """Its driver for kept messages, if it has such."""


def _nats(folder: Path, port: int) -> list[str]:
    return ["nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder)]


def _beanstalkd(folder: Path, port: int) -> list[str]:
    return ["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(folder), "-f", "0"]


def _redis(folder: Path, port: int) -> list[str]:
    files = ["--dir", str(folder), "--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    return ["redis-server", "--bind", "127.0.0.1", "--port", str(port), *files]


def _rabbitmq(_folder: Path, _port: int) -> list[str]:
    return [_RABBIT]  # all else stands in its environment


PEERS = {
    "pymongo": Peer("floor.py", "majority, journal", crowd=True),
    "rabbitmq": Peer("rabbitmq.py", "written", _RABBIT, _rabbitmq, package="rabbitmq-server"),
    "rabbitmq-quorum": Peer(
        "rabbitmq.py",
        "fsync",
        _RABBIT,
        package="rabbitmq-server",
        beside="rabbitmq",
        settings={"QUEUE_KIND": "quorum"},
    ),
    "nats": Peer(
        "nats_jetstream.py",
        "in the page cache",
        "nats-server",
        _nats,
        package="nats-server",
        streams="nats_streams.py",
    ),
    "beanstalkd": Peer("beanstalkd.py", "fsync", "beanstalkd", _beanstalkd, share=0.25, package="beanstalkd"),
    "redis": Peer(
        "redis_streams.py", "fsync", "redis-server", _redis, package="redis-server", streams="redis_log.py"
    ),
    "bullmq": Peer("bullmq.js", "fsync", "node", share=0.5, package="bullmq", beside="redis"),
    "keuss": Peer("keuss.js", "majority, journal", "node", share=0.1, package="keuss"),
    "kombu": Peer("kombu_mongodb.py", "majority, journal", share=0.1),
}


class Tools:
    """What the drivers run with, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        self.node_modules = folder / "node_modules"

    def install(self) -> None:
        """Debian's servers (as root), clients of PyPI, keuss and BullMQ of npm; what fails is told later."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for program, package in _APT.items():
            if not shutil.which(program):
                _try("apt-get", "install", "-y", "--no-install-recommends", package)
        _try(sys.executable, "-m", "venv", self.python.parents[1])
        for package in _PIP:
            _try(self.python, "-m", "pip", "install", "--quiet", package)
        for package in _NPM:
            _try("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", self.folder, package)

    def missing(self, peer: Peer) -> str:
        """Why this peer can't be run here; nothing if it can."""
        for program in (peer.program, PEERS[peer.beside].program if peer.beside else ""):
            if program and not shutil.which(program):
                return f"{Path(program).name} is not installed"
        if peer.driver.endswith(".js"):
            there = (self.node_modules / peer.package).exists()
            return "" if there else f"{peer.package} is not in {self.node_modules}"
        return "" if self.python.exists() else f"{self.python} is not there"

    def command(self, peer: Peer) -> list[str]:
        """How its driver is run."""
        driver = Path(__file__).with_name(peer.driver)
        return ["node", str(driver)] if driver.suffix == ".js" else [str(self.python), str(driver)]

    def version_of(self, peer: Peer) -> str:
        """What its package says; nothing of a library in Python, which :meth:`versions` tells."""
        if peer.driver.endswith(".js"):
            return str(json.loads((self.node_modules / peer.package / "package.json").read_text())["version"])
        command = ["dpkg-query", "-W", "-f", "${Version}", peer.package or "-"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    def versions(self) -> dict[str, str]:
        """Of the clients."""
        if not self.python.exists():
            return {}
        listed = subprocess.run(
            [self.python, "-m", "pip", "list", "--format", "freeze"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        pairs = [line.partition("==")[::2] for line in listed.splitlines()]
        return {
            name: version
            for name, version in pairs
            if name in {requirement.partition("[")[0] for requirement in _PIP}
        }


@contextmanager
def served(peer: Peer, folder: Path) -> Iterator[dict[str, str]]:
    """Run the peer's server, if it has one of its own; the environment that its driver needs."""
    if peer.command is None:
        yield {}
        return
    port = free_port()
    folder.mkdir()
    with ExitStack() as stack:
        environment = dict(os.environ)
        if peer.program == _RABBIT:
            environment |= _rabbit_environment(folder, port, stack)
        stack.enter_context(_running(peer.command(folder, port), environment, folder.with_suffix(".log")))
        _await_port(port)
        yield {"PORT": str(port)}


def _rabbit_environment(folder: Path, port: int, stack: ExitStack) -> dict[str, str]:
    """A node of its own, with a port mapper of its own that ends with it."""
    mapper, distribution = str(free_port()), str(free_port())
    stack.enter_context(_running(["epmd", "-address", "127.0.0.1", "-port", mapper], dict(os.environ), None))
    _await_port(int(mapper))
    return {
        "HOME": str(folder),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": mapper,
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": distribution,
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }


@contextmanager
def _running(command: list[str], environment: dict[str, str], log: Path | None) -> Iterator[None]:
    with (log or Path(os.devnull)).open("wb") as written:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )
    try:
        yield
    finally:
        _end_session(process)


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """The process leads a session of its own: its children go with it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.wait(_STOP_PATIENCE)
            except subprocess.TimeoutExpired:
                continue


def _await_port(port: int) -> None:
    patience = time.monotonic() + _START_PATIENCE
    while time.monotonic() < patience:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"nobody listens on port {port} after {_START_PATIENCE:g} s")


def _try(*command: object) -> None:
    words = [str(word) for word in command]
    try:
        failed = subprocess.run(words, check=False, stdout=subprocess.DEVNULL).returncode
    except FileNotFoundError:
        failed = 127
    if failed:
        print(f"peers: this did not work: {' '.join(words)}", file=sys.stderr)
