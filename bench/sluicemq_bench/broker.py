"""The broker that is measured: one of the bench's own, in a temporary folder, or a running one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

from sluicemq.installed import ABSENT, module_command
from sluicemq.protocol.keys import encode
from sluicemq_bench.access import new_key, use_only
from sluicemq_bench.plan import Plan
from sluicemq_bench.processes import BenchFailed
from sluicemq_bench.task import Site

_START_TIMEOUT = 120.0
_STOP_TIMEOUT = 60.0
_LOG_SHOWN = 20

# Port 0: the ready file has the ports that were assigned. The device limits PULL workers.
_CONFIG = """\
[broker]
endpoint = "tcp://127.0.0.1:0"
http = "127.0.0.1:0"
[[devices]]
kind = "streamer"
queue = "bench-pull"
frontend = "tcp://127.0.0.1:0"
backend = "tcp://127.0.0.1:0"
commit = "tcp://127.0.0.1:0"
ack = "{ack}"
prefetch = {prefetch}
[[devices]]
kind = "queue"
queue = "bench-ask"
frontend = "tcp://127.0.0.1:0"
backend = "tcp://127.0.0.1:0"
"""
_FORWARDER = """\
[[devices]]
kind = "forwarder"
stream = "bench-live"
frontend = "tcp://127.0.0.1:0"
backend = "tcp://127.0.0.1:0"
hwm = 1000000
hwm_bytes = 1000000000
"""


_SECURITY = """\
[security]
mechanism = ["curve"]
secret_key_file = "broker.key"
[security.principals.bench]
keys = ["{key}"]
permissions = "all"
"""


@contextmanager
def own_broker(plan: Plan) -> Iterator[Site]:
    """Run a broker with an embedded MongoDB for the time of the ``with`` block; raises BenchFailed.

    If the plan says so, it wants keys, and this process and those that it starts have one.
    """
    folder = Path(tempfile.mkdtemp(prefix="sluicemq-bench-"))
    try:
        process = _start(plan, folder, _keys(folder) if plan.curve else "")
        try:
            yield _site(plan, _ready(process, folder))
        finally:
            _stop(process)
            if plan.curve:
                use_only({})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def site_of(plan: Plan, endpoint: str, queue: str | None, ends: dict[str, str | None]) -> Site:
    """Return a running broker: with its default doors unless named, and a new queue where possible."""
    defaults = {
        "library": {},
        "rep": {"backend": "tcp://127.0.0.1:5554"},
        "pull": {
            "frontend": "tcp://127.0.0.1:5551",
            "backend": "tcp://127.0.0.1:5552",
            "commit": "tcp://127.0.0.1:5557",
        },
        "req": {"frontend": "tcp://127.0.0.1:5553", "backend": "tcp://127.0.0.1:5554"},
    }[plan.door]
    named = {name: address for name, address in ends.items() if address is not None}
    queue = queue or (f"bench-{token_hex(4)}" if plan.door == "library" else "default")
    return Site(endpoint, queue, **{**defaults, **named})


def _keys(folder: Path) -> str:
    """Make keys of the broker and of its clients, which use theirs; return the settings."""
    server = new_key(folder / "broker.key")
    client = new_key(folder / "client.key")
    use_only({"key_file": str(folder / "client.key"), "server_key": encode(server.public)})
    return _SECURITY.format(key=encode(client.public))


def _start(plan: Plan, folder: Path, security: str) -> subprocess.Popen[bytes]:
    command = module_command()
    if command is None:
        raise BenchFailed(f"{ABSENT}; or name a broker that runs with --endpoint")
    forwarder = _FORWARDER if plan.scenario == "stream" else ""
    config = _CONFIG.format(ack=plan.ack, prefetch=plan.prefetch) + forwarder + security
    (folder / "broker.toml").write_text(config)
    arguments = ["--config", "broker.toml", "--data-dir", str(folder / "data"), "--ready-file", "ready.json"]
    with (folder / "broker.log").open("wb") as log:
        return subprocess.Popen(  # noqa: S603 - our own module
            [*command, *arguments], cwd=folder, env=_environment(),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def _environment() -> dict[str, str]:
    """Return the environment without settings of the user's own broker."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SLUICEMQ_")}


def _ready(process: subprocess.Popen[bytes], folder: Path) -> dict[str, Any]:
    deadline = time.monotonic() + _START_TIMEOUT
    while not (folder / "ready.json").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            lines = (folder / "broker.log").read_text(errors="replace").splitlines()[-_LOG_SHOWN:]
            raise BenchFailed("\n  ".join(["the broker did not start; it wrote:", *lines]))
        time.sleep(0.02)
    ready: dict[str, Any] = json.loads((folder / "ready.json").read_text())
    return ready


def _site(plan: Plan, ready: dict[str, Any]) -> Site:
    if plan.door == "library" and plan.scenario != "stream":
        return Site(ready["endpoint"], "bench")
    kind = "forwarder" if plan.scenario == "stream" else "streamer" if plan.door == "pull" else "queue"
    device = next(found for found in ready["devices"] if found["kind"] == kind)
    ends = {end: (device.get(end) or [""])[0] for end in ("frontend", "backend", "commit")}
    return Site(ready["endpoint"], device["queue"], **ends, http=ready["http"])


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
