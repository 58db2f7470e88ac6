"""A door for other machines, opened as the refusal says: each of its commands is carried out."""

import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from support.broker_process import BrokerProcess
from support.ports import tcp
from support.waiting import wait_until

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full

#: All addresses of this machine.
EVERYWHERE = "*"


def test_who_does_what_the_refusal_says_has_a_broker_with_keys_and_gets_in(tmp_path: Path) -> None:
    broker = BrokerProcess(
        folder=tmp_path, config={"broker": {"endpoint": tcp().replace("127.0.0.1", EVERYWHERE)}}
    )
    broker.launch()
    assert broker.process.wait(60) == 2
    said = broker.log_text()

    make_key, add = re.findall("`(sluicemq .*?)`", said)
    server_key = run(shlex.split(make_key), tmp_path)
    lines = textwrap.dedent("\n".join(re.findall(r"^    .*$", said, re.MULTILINE)))
    broker.config |= tomllib.loads(lines)
    with broker:
        endpoint = f"tcp://127.0.0.1:{broker.doors['smq'].rpartition(':')[2]}"
        key = run(["sluicemq", "key", "new", "--out", "me.key"], tmp_path)
        run(shlex.split(add.replace("NAME", "me").replace("KEY", shlex.quote(key))), tmp_path)

        words = ["ping", "--endpoint", endpoint, "--key-file", "me.key", "--server-key", server_key]
        # a principal that is added in MongoDB is known to a broker from its next poll on
        wait_until(lambda: ran(["sluicemq", *words], tmp_path).returncode == 0, what="getting in")
        assert "answers in" in run(["sluicemq", *words], tmp_path)
        assert "has had no fixes since" in broker.log_text()


def run(words: list[str], folder: Path) -> str:
    """Run a command of ours; returns what it prints, without the line end."""
    done = ran(words, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def ran(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
