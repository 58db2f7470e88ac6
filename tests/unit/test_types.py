"""A user's program under ``mypy --strict``: what is right passes, what is mistyped does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import sluicemq

RIGHT = """
from datetime import UTC, datetime, timedelta
from sluicemq import PREVIOUS, App, Client, Job, NewJob, Producer, Retry, Worker, chain

def handler(job: Job) -> bytes:
    if job.age > 60 and job.priority < 9 and job.attempt < job.max_attempts:
        raise Retry("later", delay=timedelta(minutes=1))
    job.extend(timedelta(minutes=1))
    return job.payload

def test_handler() -> None:
    assert handler(Job(payload=b"x", headers={"a": 1})) == b"x"

with Producer() as producer, Client() as client:
    producer.push("q", b"x", priority=9, not_before=datetime.now(UTC), ttl=timedelta(days=1))
    producer.call("q", b"x", 30, delay=1.5, id="mine").decode()
    producer.submit("q", b"x", headers={"a": [1]}).result(1).decode()
    jobs: list[bytes | NewJob] = [b"x", {"payload": b"x", "priority": 9, "id": "mine"}]
    producer.push_many("q", jobs, ttl=60)[0].wait()
    producer.push_many("q", [b"x", b"y"])
    producer.push_many("q", [{"payload": b"x", "delay": timedelta(hours=1)}])
    client.jobs.change("q", "mine", delay=timedelta(0))
    Worker("q", handler).run()

app = App("shop")

@app.schedule(every="1h", arguments={"to": "a"})
@app.task(queue="mail", retries=5, timeout=timedelta(minutes=1), priority=9)
def send(to: str, copies: int = 1) -> int:
    return copies

@app.task(bind=True)
async def count(job: Job, to: str) -> int:
    return job.attempt

send.options(delay="5m", id="mine").push("a", copies=2).wait()
count.push("a")
send("a").bit_length()
chain(send.s("a"), count.s(PREVIOUS)).call(5)
"""

WRONG = """
from sluicemq import App, Job, Producer, Worker

async def handler(job: Job) -> bytes:
    return job.payload

@App().task(queue="mail")
def send(to: str, copies: int = 1) -> None: ...

producer = Producer()
producer.push("q", b"x", prioritty=9)
producer.call("q", b"x", prioritty=9)
producer.submit("q", b"x", prioritty=9)
producer.push_many("q", [b"x"], prioritty=9)
producer.push_many("q", [{"payload": b"x", "prioritty": 9}])
producer.push("q", b"x", priority="9")
producer.push("q", "text")
Worker("q", handler)
send.push("a", copies="2")
send.push()
send.options(prioritty=9).push("a")
"""


def test_mypy_finds_each_mistake_in_a_users_program_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "right.py", "wrong.py"]
    found = subprocess.run(
        command, cwd=tmp_path, env=os.environ | source(), capture_output=True, text=True, check=False
    ).stdout
    # Then: one each from line 11 to the end
    errors = [int(line) for line in re.findall(r"^wrong.py:(\d+): error", found, re.MULTILINE)]
    assert sorted(set(errors)) == list(range(11, 22)), found
    assert "right.py" not in found


def source() -> dict[str, str]:
    """Where mypy finds the library, if it is installed so that changes of its source are seen."""
    folder = Path(sluicemq.__file__).parents[1]
    return {} if folder.name == "site-packages" else {"MYPYPATH": str(folder)}
