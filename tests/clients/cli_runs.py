"""Runs of the command: beside a broker that is played, or as a process where something is not installed."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess

from click.testing import Result

from clients.scripted_broker import SECONDS, ScriptedBroker

Run = Callable[..., Result]


def nobody() -> str:
    gone = ScriptedBroker().start()
    gone.stop()
    return gone.endpoint


def run_process(folder: Path, *arguments: object, options: Sequence[str] = ()) -> CompletedProcess[str]:
    """Run the command as a process, which finds what lies in a folder before what is installed.

    ``options``: those of Python.
    """
    command = [sys.executable, "-P", *options, "-m", "sluicemq", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)


def run_without(package: str, folder: Path, *arguments: object) -> CompletedProcess[str]:
    """Run the command as a process where all is installed but one package; ``folder``: an empty one."""
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        if installed.name.partition("-")[0] != package:  # gevent, and gevent-25.9.1.dist-info
            (folder / installed.name).symlink_to(installed)
    for own in ("sluicemq", "sluicemq_broker", "sluicemq_devices", "sluicemq_bench"):  # or in a tree
        found = find_spec(own)
        if own != package and found and found.origin and not (folder / own).exists():
            (folder / own).symlink_to(Path(found.origin).parent)
    return run_process(folder, *arguments, options=["-S"])
