"""Hosts of a chaos run: three brokers and a replica set of three nodes, with a wire between any two places.

::

    with Rig(7, folder, configuration) as rig:
        producer = Producer(rig.endpoints)  # leads through the wires
        rig.link("broker 1", "node 2").block()
        ...
        rig.heal()
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any, Final, Self

from chaos.disk import SmallDisk
from chaos.wires import Link, Network
from faults.replica_set import ReplicaSet
from support.broker_process import BrokerProcess, check_balance
from support.ports import free_port, tcp
from support.waiting import wait_until

BROKERS: Final = ("broker 1", "broker 2", "broker 3")
NODES: Final = ("node 1", "node 2", "node 3")
DATABASE: Final = "chaos"
LEASE: Final = 5.0
#: Seconds in which a broker stops by itself, with what it takes to end all that is under way.
STOPPED: Final = 60.0
#: Seconds for which everything has time to be there again after the last fault: a machine may be busy.
HEALED: Final = 240.0
#: The disk that gets full is a small one.
_SETTINGS: Final = {
    "lease": LEASE, "poll": 0.5, "stop_timeout": 5.0, "heartbeat": 1.0, "silence": 5.0, "disk_reserve": 1,
}  # fmt: skip
_ENDS: Final = {
    "streamer": ("frontend", "backend", "commit"),
    "queue": ("frontend", "backend"),
    "forwarder": ("frontend", "backend"),
}
_FAKETIME: Final = "faketime/libfaketimeMT.so.1"


def faketime() -> Path | None:
    """Return the library that gives a process another time, if it is installed."""
    folders = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib", "/usr/local/lib")
    return next((path for folder in folders if (path := Path(folder, _FAKETIME)).exists()), None)


def clock(seconds: float) -> dict[str, str]:
    """Return the environment of a process whose time is wrong by so much; monotonic time stays."""
    if not seconds:
        return {}
    library = str(faketime())
    return {"LD_PRELOAD": library, "FAKETIME": f"{seconds:+.0f}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


class Broker(BrokerProcess):
    """A broker that can begin again with a wrong clock."""

    def __init__(self, place: str, uri: str, config: Mapping[str, Any], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(uri, DATABASE, config=config, folder=folder)
        self.place = place
        self.expected = False
        self._right = dict(self._env)

    @property
    def alive(self) -> bool:
        """Return whether it runs, or is stopped."""
        return self._process is not None and self._process.poll() is None

    @property
    def was_ready(self) -> bool:
        """Return whether it has been ready since it began: without a primary it gives up after a while."""
        return (self.folder / "ready.json").exists()

    @property
    def current_pid(self) -> int | None:
        """The pid of its process, if there is one."""
        return self._process.pid if self._process and self.alive else None

    def begin(self, wrong: float = 0.0) -> None:
        """Start it without waiting; ``wrong``: seconds by which its clock is wrong."""
        self._env = {**self._right, **clock(wrong)}
        self._forked = not wrong
        self.launch()
        self.expected = True

    def end(self) -> None:
        """``kill -9``, if it runs."""
        self.expected = False
        if self.alive:
            self.kill()

    def problems(self) -> list[str]:
        """Wait until it has stopped; returns what was wrong with that, and with what it has counted."""
        found = []
        try:
            if code := self.process.wait(STOPPED):
                found.append(f"{self.place} has stopped with code {code}")
        except subprocess.TimeoutExpired:
            found.append(f"{self.place} has not stopped within {STOPPED:.0f} s")
        for line in re.findall(r"counted: (.*)", self.log_text()):
            try:
                check_balance({name: int(count) for name, count in re.findall(r"(\w+)=(-?\d+)", line)})
            except AssertionError as error:
                found.append(f"{self.place}: {error}")
        return found


class Nodes(ReplicaSet):
    """A replica set whose nodes, and all clients, reach a node through its wire."""

    def __init__(self, network: Network, folder: Path) -> None:
        super().__init__(len(NODES))
        shutil.rmtree(self._folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._folder = folder
        self.named = dict(zip(NODES, self.ports, strict=True))
        self.expected: set[str] = set()
        self._wires = {port: network.wire(name, port) for name, port in self.named.items()}
        self._wrong: dict[int, float] = {}
        for name in NODES:
            network.knows(name, lambda name=name: self.pid(name))  # type: ignore[misc]

    def host(self, port: int) -> str:
        """Return the wire of a node."""
        return f"127.0.0.1:{self._wires[port]}"

    def prefix(self, port: int) -> list[str]:
        """Return what gives a node its clock."""
        return [
            "/usr/bin/env",
            *(f"{name}={value}" for name, value in clock(self._wrong.get(port, 0)).items()),
        ]

    def pid(self, name: str) -> int | None:
        """Return the pid of a node that runs."""
        process = self.process(self.named[name])
        return process.pid if process and process.poll() is None else None

    def folder_of(self, name: str) -> Path:
        """Return where a node has its log and its data."""
        return self.folder(self.named[name])

    def begin(self, name: str, wrong: float = 0.0) -> None:
        """Start a node, unless it runs; ``wrong``: seconds by which its clock is wrong."""
        port = self.named[name]
        if self.pid(name) is None:
            self._wrong[port] = wrong
            self.launch(port)
        self.expected.add(name)

    def end(self, name: str) -> None:
        """``kill -9``, if it runs."""
        self.expected.discard(name)
        if self.process(self.named[name]):
            self.kill(self.named[name])

    def signal(self, name: str, number: int) -> None:
        """Send a node a signal, if it runs."""
        if self.pid(name):
            self.send_signal(self.named[name], number)

    def primary_now(self) -> str | None:
        """Return the name of the node that takes writes, if one says so at once."""
        return next((name for name in NODES if self.pid(name) and self._takes_writes(name)), None)

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()  # also what is stopped
            process.wait(60)

    def _takes_writes(self, name: str) -> bool:
        with suppress(Exception), self.direct(self.named[name], 1000) as client:
            return bool(client.admin.command("hello")["isWritablePrimary"])
        return False


class Rig:
    """Everything that runs, but the programs of the load; and what is between it."""

    def __init__(self, seed: int, folder: Path, configuration: Mapping[str, Any]) -> None:
        self.seed = seed
        self.folder = folder.resolve()
        self.database = DATABASE
        self.network = Network(Random(seed))
        self.programs: Mapping[str, Any] = {}
        self.brokers: list[Broker] = []
        self._configuration = configuration
        self._doors: list[dict[str, str]] = []
        self._open = ExitStack()

    # ------------------------------------------------------------ of the load

    @property
    def endpoints(self) -> list[str]:
        """The doors for the library of all brokers."""
        return [doors["smq"] for doors in self._doors]

    def doors(self, broker: int) -> dict[str, str]:
        """Return the addresses of a broker: ``smq``, ``http``, and ``NAME.END`` of each end of a device."""
        return self._doors[broker]

    @property
    def mongo_uri(self) -> str:
        """The replica set, for one whose connections no fault touches."""
        return self.nodes.uri

    def own(self, programs: Mapping[str, Any]) -> None:
        """Let faults happen to programs, and between them and brokers; each has a ``pid``, or None."""
        self.programs = programs
        for name in programs:
            self.network.knows(name, lambda name=name: programs[name].pid)  # type: ignore[misc]

    # ------------------------------------------------------------ of the faults

    def link(self, one: str, other: str) -> Link:
        """Return what is between two places."""
        return self.network.between(one, other)

    def broker(self, name: str) -> Broker:
        """Return a broker by its name."""
        return self.brokers[BROKERS.index(name)]

    def note(self, what: str, **more: Any) -> None:
        """Write down what happens now."""
        line = json.dumps({"at": time.monotonic(), "what": what, **more})
        with (self.folder / "events.jsonl").open("a") as events:
            events.write(line + "\n")

    def watch(self) -> None:
        """Start brokers and nodes again that have ended though nobody ended them, and write that down."""
        for name in sorted(self.nodes.expected):
            if self.nodes.pid(name) is None:
                self.note("ended", victim=name)
                self.nodes.begin(name)
        for broker in self.brokers:
            if broker.expected and not broker.alive:
                what = "ended" if broker.was_ready else "not started"
                self.note(what, victim=broker.place, code=broker.process.returncode)
                broker.begin()

    def heal(self) -> None:
        """Let everything run again, and wait until it is ready."""
        self.network.restore()
        for name in NODES:
            self.nodes.signal(name, signal.SIGCONT)
            self.nodes.begin(name)
        for broker in self.brokers:
            if broker.alive:
                broker.send_signal(signal.SIGCONT)
            else:
                broker.begin()
        for port in self.nodes.ports:
            self.nodes.wait_member(port)
        wait_until(self._all_ready, HEALED, "brokers that are ready")

    def stop(self) -> list[str]:
        """Stop all brokers; returns what was wrong: an exit code, a hang, counters that don't add up."""
        for broker in self.brokers:
            broker.expected = False
            broker.process.terminate()
        return [problem for broker in self.brokers for problem in broker.problems()]

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._open.enter_context(self.network)
            self.nodes = Nodes(self.network, self.folder / "nodes")
            self.disk = SmallDisk(self.nodes.folder_of(NODES[0]) / "data")
            self._open.callback(self.disk.close)
            self._open.enter_context(self.nodes)
            for place in BROKERS:
                self._add_broker(place)
            for broker in self.brokers:
                broker.begin()
            wait_until(self._all_ready, HEALED, "brokers that are ready")
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers:
            broker.expected = False
        self._open.close()

    # ------------------------------------------------------------ helpers

    def _add_broker(self, place: str) -> None:
        config, doors = _addressed(self._configuration)
        broker = Broker(place, self.nodes.uri, config, self.folder / place.replace(" ", "-"))
        self._open.callback(broker.end)
        self.network.knows(place, lambda: broker.current_pid)
        self.brokers.append(broker)
        self._doors.append(
            {
                name: address if name == "http" else self._wired(place, address)
                for name, address in doors.items()
            }
        )

    def _wired(self, place: str, address: str) -> str:
        return tcp(self.network.wire(place, int(address.rpartition(":")[2])))

    def _all_ready(self) -> bool:
        self.watch()
        return all(broker.was_ready for broker in self.brokers)


def _addressed(configuration: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a broker's configuration with addresses of its own, and these addresses by name."""
    http, smq = f"127.0.0.1:{free_port()}", tcp()
    broker = {**_SETTINGS, **configuration.get("broker", {}), "http": http, "endpoint": smq}
    doors, devices = {"smq": smq, "http": http}, []
    for device in configuration["devices"]:
        ends = {end: tcp() for end in _ends(device)}
        doors.update({f"{device['name']}.{end}": address for end, address in ends.items()})
        devices.append({**{key: value for key, value in device.items() if key != "name"}, **ends})
    return {**configuration, "broker": broker, "devices": devices}, doors


def _ends(device: Mapping[str, Any]) -> Iterable[str]:
    commits = device.get("ack") == "explicit"
    return (end for end in _ENDS[device["kind"]] if end != "commit" or commits)
