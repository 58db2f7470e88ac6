"""The scenario relay: a device alone, ``sluicemq device``, between plain sockets.

Then the proxy in C that comes with libzmq repeats the work, to show what this machine can do.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import zmq

from sluicemq.installed import DEVICE, module_command, to_install
from sluicemq.protocol.keys import encode
from sluicemq_bench.access import new_key
from sluicemq_bench.measure import Programs, Watch, measure
from sluicemq_bench.outcome import Outcome
from sluicemq_bench.plan import Plan
from sluicemq_bench.processes import BenchFailed
from sluicemq_bench.task import Site

# Programs at its frontend and at its backend.
_PROGRAMS = {"streamer": ("flood", "sink"), "forwarder": ("broadcast", "listen"), "queue": ("call", "echo")}
_ANY_PORT = "tcp://127.0.0.1:0"


def run_relay(plan: Plan, watch: Watch) -> Outcome:
    """Measure a relay of the plan's kind; for a queue, round trips."""
    device = module_command(DEVICE)
    if device is None:
        raise BenchFailed(f"the devices are not installed here: {to_install('broker')}")
    proxy = [sys.executable, "-P", "-m", "sluicemq_bench.proxy", plan.device]
    with _keys(plan) as (keys, options, key_file):
        outcome = _measured(plan, [*device, plan.device, _ANY_PORT, _ANY_PORT, *options], keys, watch)
        beside = _measured(plan, [*proxy, *key_file], keys, watch)
    return replace(outcome, proxy_per_s=beside.jobs_per_s)


@contextmanager
def _keys(plan: Plan) -> Iterator[tuple[dict[str, str], list[str], list[str]]]:
    """Make keys, if the plan says so; give those of the clients, and options of the device and the proxy."""
    if not plan.curve:
        yield {}, [], []
        return
    public, secret = (text.decode() for text in zmq.curve_keypair())
    with TemporaryDirectory() as folder:
        key_file, allow = f"{folder}/device.key", f"{folder}/allow"
        server = encode(new_key(Path(key_file)).public)
        Path(allow).write_text(public)
        keys = {"server_key": server, "public_key": public, "secret_key": secret}
        yield keys, ["--curve-secret-key-file", key_file, "--allow", allow], [key_file]


def _measured(plan: Plan, command: list[str], keys: dict[str, str], watch: Watch) -> Outcome:
    producing, working = _PROGRAMS[plan.device]
    with _relay(command) as (pid, ends):
        site = replace(ends, **keys)
        return measure(
            Programs(plan, site, {"relay": pid}, producing, working, plan.device == "queue"), watch
        )


@contextmanager
def _relay(command: list[str]) -> Iterator[tuple[int, Site]]:
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: S603 - our own module
    try:
        yield process.pid, _announced(process)
    finally:
        process.terminate()
        process.communicate()


def _announced(process: subprocess.Popen[str]) -> Site:
    """Return its addresses. Its first line is ``streamer: frontend ADDRESS, backend ADDRESS``."""
    line = process.stderr.readline() if process.stderr else ""
    words = line.replace(",", " ").split()
    if "frontend" not in words:
        raise BenchFailed(f"the relay did not start: {line.strip()}")
    return Site(frontend=words[words.index("frontend") + 1], backend=words[words.index("backend") + 1])
