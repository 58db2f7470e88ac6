"""``sluicemq work``: run a command for each job of a queue, or print them."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections import Counter
from typing import Any

import click

from sluicemq.cli_output import Session
from sluicemq.errors import Reject, Rollback
from sluicemq.job import Job
from sluicemq.worker import Worker

REJECT_STATUS = 100


@click.command()
@click.argument("queue")
@click.option("--exec", "command", metavar="CMD", help="Run CMD in a shell for each job.")
@click.option("--print", "show", is_flag=True, help="Print each payload on a line, and commit it.")
@click.option("--prefetch", type=click.IntRange(1), default=1, show_default=True, help="Jobs held at a time.")
@click.option("--concurrency", type=click.IntRange(1), default=1, show_default=True, help="Jobs run at a time.")  # noqa: E501 # fmt: skip
@click.pass_obj
def work(
    session: Session, queue: str, command: str | None, prefetch: int, concurrency: int, *, show: bool
) -> None:
    """Work on the jobs of a QUEUE until SIGTERM or Ctrl-C.

    CMD gets the payload on stdin and SLUICEMQ_JOB_ID, SLUICEMQ_QUEUE and SLUICEMQ_ATTEMPT in its
    environment. Exit status 0 commits, with stdout as the result; 100 rejects; any other gives the
    job back. The reason is the last line of its stderr, which is also passed through.
    """
    if (command is None) == (not show):
        raise click.UsageError("give one of --exec and --print")
    with session.client() as client:
        client.ping()
    _log_to_stderr()
    handler = _Print(session) if command is None else _Exec(session, command)
    try:
        Worker(session.endpoint, queue, handler, prefetch=prefetch, concurrency=concurrency).run()
    finally:
        handler.end()


class _Print:
    """Prints payloads; with ``--json`` an object per job."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._one_at_a_time = threading.Lock()

    def __call__(self, job: Job) -> None:
        with self._one_at_a_time:
            if self._session.as_json:
                self._session.json(_described(job))
            else:
                click.echo(job.payload)

    def end(self) -> None:
        """Nothing is left."""


class _Exec:
    """Runs the command, and says at the end how it went."""

    def __init__(self, session: Session, command: str) -> None:
        self._session = session
        self._command = command
        self._running: set[subprocess.Popen[bytes]] = set()
        self._counts: Counter[str] = Counter()

    def __call__(self, job: Job) -> bytes:
        status, output, errors = self._run(job)
        click.echo(errors, nl=False, err=True)
        lines = errors.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit status {status}"
        if status == REJECT_STATUS:
            self._counts["rejected"] += 1
            raise Reject(reason)
        if status:
            self._counts["rolled_back"] += 1
            raise Rollback(reason)
        self._counts["committed"] += 1
        return output

    def end(self) -> None:
        """End commands that outlived the deadline: their jobs are somebody else's by now."""
        for process in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        counts = {verdict: self._counts[verdict] for verdict in ("committed", "rejected", "rolled_back")}
        self._session.note(", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items()))
        self._session.result("", **counts)

    def _run(self, job: Job) -> tuple[int, bytes, bytes]:
        # A session of its own, so that the terminal's Ctrl-C lets it finish its job.
        process = subprocess.Popen(  # noqa: S602 - a shell is what --exec promises
            self._command, shell=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=os.environ | _environment(job), start_new_session=True,
        )  # fmt: skip
        self._running.add(process)
        try:
            output, errors = process.communicate(job.payload)
        finally:
            self._running.discard(process)
        return process.returncode, output, errors


def _log_to_stderr() -> None:
    """Tell of lost connections and late verdicts, for this command runs for long."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("sluicemq: %(message)s"))
    logging.getLogger("sluicemq").addHandler(handler)


def _environment(job: Job) -> dict[str, str]:
    return {
        "SLUICEMQ_JOB_ID": job.id,
        "SLUICEMQ_QUEUE": job.queue,
        "SLUICEMQ_ATTEMPT": str(job.attempt),
    }


def _described(job: Job) -> dict[str, Any]:
    return {"id": job.id, "attempt": job.attempt, "headers": job.headers, "payload": job.payload}
