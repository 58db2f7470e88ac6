"""``sluicemq work`` and ``sluicemq pop``: run a command for each job of a queue, or print them."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection
from functools import partial
from time import monotonic
from typing import Any, Protocol

import click
from click.core import ParameterSource

from sluicemq.cli.options import Memory, Weights, timespan
from sluicemq.cli.output import Invocation, printable, span
from sluicemq.cli.shift import Impossible, Shift
from sluicemq.cli.watcher import Watcher
from sluicemq.forward import Forward
from sluicemq.job import Job
from sluicemq.protocol.errors import Reject, Retry
from sluicemq.standard_streams import Unwritable, require_writable
from sluicemq.time_limits import SoftTimeLimitError
from sluicemq.transport.job_fetch import MOST_FETCHED
from sluicemq.worker import STOP_TIMEOUT

REJECT_STATUS = 100
_NOT_RUN = {126: "can't be run", 127: "is not found"}
_TRACE = ("traceparent", "tracestate")
_END_WITHIN = 5.0  # seconds that a command has to end after SIGTERM
_NAMED = 5  # jobs that a message names
#: Options of ``work`` that do not go with an app, and with a queue.
_OF_QUEUES = ("command", "show", "onward", "count", "drain", "pops", "longest", "waits")
_OF_APPS = ("processes", "queues", "reload", "max_jobs", "max_memory", "health")


@click.command()
@click.argument("queue", metavar="QUEUE|APP")
@click.option("--exec", "command", metavar="CMD", help="Run CMD in a shell for each job.")
@click.option("--print", "show", is_flag=True, help="Print each payload on a line, and commit it.")
@click.option("--forward", "onward", metavar="QUEUE", help="With --exec: move each job on to QUEUE, with stdout as its payload.")  # noqa: E501 # fmt: skip
@click.option("--prefetch", type=click.IntRange(1), default=1, show_default=True, help="Jobs held at a time.")
@click.option("--concurrency", type=click.IntRange(1), default=1, show_default=True, help="Jobs run at a time.")  # noqa: E501 # fmt: skip
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N jobs, one at a time.")
@click.option("--drain", is_flag=True, help="Stop when no job is ready for a second.")
@click.option("--pop", "pops", is_flag=True, help="At most once: a job that fails is gone.")
@click.option("--kill-after", "longest", type=timespan(), metavar="S", help="With --exec: end a CMD that runs for longer than S seconds, and give its job back.")  # noqa: E501 # fmt: skip
@click.option("--wait", "waits", is_flag=True, help="Wait for a queue that does not exist yet.")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="APP: processes.")
@click.option("--queues", type=Weights(), metavar="A,B=3", default=None, help="APP: its queues, with weights.  [all of its tasks]")  # noqa: E501 # fmt: skip
@click.option("--reload", is_flag=True, help="APP: begin with new processes when a Python file below this folder changes.")  # noqa: E501 # fmt: skip
@click.option("--max-jobs", type=click.IntRange(1), metavar="N", default=None, help="APP: a process ends after N jobs, and another begins.")  # noqa: E501 # fmt: skip
@click.option("--max-memory", type=Memory(), metavar="512M", default=None, help="APP: a process that has more ends, and another begins.")  # noqa: E501 # fmt: skip
@click.option("--health", type=click.IntRange(1, 65535), metavar="PORT", help="APP: answer GET: 200 while all processes are connected, else 503.")  # noqa: E501 # fmt: skip
@click.pass_context
def work(
    ctx: click.Context, /, *, queue: str, command: str | None, onward: str | None, prefetch: int,
    concurrency: int, count: int | None, longest: float | None, processes: int,
    queues: dict[str, int] | None,
    max_jobs: int | None, max_memory: int | None, health: int | None,
    show: bool, drain: bool, pops: bool, waits: bool, reload: bool,
) -> None:  # fmt: skip
    """Work on the jobs of a QUEUE, or on the tasks of an APP, until SIGTERM or Ctrl-C.

    APP is a module and the name of an App in it, as in `sluicemq work shop.tasks:app`. Its processes end what
    they have begun within 30 seconds. Of the options, those that say APP go with it, --prefetch and
    --concurrency, which is for each process. The others go with a QUEUE.

    CMD gets the payload on stdin and JOB_ID, JOB_QUEUE and JOB_ATTEMPT in its environment, and TRACEPARENT
    and TRACESTATE if the job's headers have them. Exit status 0 commits, with stdout as the result (with
    --forward: the job goes on, with stdout as its payload); 100 rejects; any other gives the job back. The
    reason is the last line of its stderr, which is also passed through. If CMD can't be run at all (126,
    127), the job is given back uncounted and the work ends. The job's time (visibility_timeout) is extended
    for as long as CMD runs.
    """
    invocation: Invocation = ctx.obj
    is_app = ":" in queue
    _check_options(ctx, _OF_QUEUES if is_app else _OF_APPS, "an APP" if is_app else "a QUEUE")
    if is_app:
        from sluicemq.app.process import Orders  # noqa: PLC0415 - asyncio takes long to load
        from sluicemq.cli.tasks import run_tasks  # noqa: PLC0415

        orders = Orders(queue, queues or {}, concurrency, prefetch, max_jobs or 0, max_memory or 0)
        ctx.exit(run_tasks(invocation, orders, processes, reload=reload, health=health))
    if (command is None) == (not show):
        raise click.UsageError("give one of --exec and --print")
    if onward and (command is None or pops):
        raise click.UsageError("--forward goes with --exec, and not with --pop")
    if longest is not None and (command is None or not longest):
        raise click.UsageError("--kill-after goes with --exec, and is more than 0 seconds")
    if count and concurrency > 1:
        raise click.UsageError("--count takes one job at a time: leave --concurrency out")
    if count and pops:
        raise click.UsageError("--pop may take jobs beyond --count: use `sluicemq pop QUEUE --count N`")
    # first: it needs one of the first file numbers of the process
    task: _Task = _Print(invocation) if command is None else _Exec(invocation, command, onward, longest)
    with invocation.client() as client:
        client.ping()
    _log_to_stderr()
    shift = Shift(
        invocation, queue, task, prefetch=prefetch, concurrency=concurrency, count=count, pop=pops,
        wait_for_queue=waits, on_stop=task.stopping,
    )  # fmt: skip
    try:
        shift.run(until_drained=drain)
    finally:
        task.end()
        if command is not None:
            invocation.note(
                ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in shift.counts.items())
            )
    invocation.result("", queue=queue, **shift.counts)


@click.command()
@click.argument("queue")
@click.option("--count", type=click.IntRange(1, MOST_FETCHED), default=1, show_default=True, metavar="N", help="Jobs at most.")  # noqa: E501 # fmt: skip
@click.option("--wait", type=timespan(), default=0.0, metavar="S", help="Wait up to S seconds for them.")
@click.pass_obj
def pop(invocation: Invocation, queue: str, count: int, wait: float) -> None:
    """Take jobs of a QUEUE at most once and print each payload on a line.

    The broker removes them before they are printed.
    """
    require_writable()
    with invocation.client() as client:
        client.ping()
        jobs = client.jobs.pop(queue, count, wait)
    if invocation.as_json:
        invocation.json({"queue": queue, "jobs": [_described(job) for job in jobs]})
        return
    for place, job in enumerate(jobs):
        try:
            _show(invocation, job)
        except Unwritable:
            ids = ", ".join(job.id for job in jobs[place:])
            invocation.note(f"taken from {queue} for good, and not printed: {ids}")
            raise
    if not jobs:
        invocation.note(f"no job is ready in {queue}")


def _check_options(ctx: click.Context, wrong: Collection[str], what: str) -> None:
    """Raise a usage error for options that do not go with a queue, or an app."""
    for parameter in ctx.command.params:
        if (
            parameter.name in wrong
            and ctx.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
        ):
            raise click.UsageError(f"{parameter.opts[0]} does not go with {what}")


class _Task(Protocol):
    """The task of each job."""

    def __call__(self, job: Job) -> bytes | Forward | None: ...

    def stopping(self) -> None: ...

    def end(self) -> None: ...


class _Print:
    """Prints payloads; with ``--json`` an object per job, a line each."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._one_at_a_time = threading.Lock()

    def __call__(self, job: Job) -> None:
        with self._one_at_a_time:
            try:
                _show(self._invocation, job)
            except Unwritable as error:
                raise Impossible from error

    def stopping(self) -> None:
        """Do nothing: printing is quick."""

    def end(self) -> None:
        """Do nothing."""


class _Exec:
    """Runs the command for each job."""

    def __init__(
        self, invocation: Invocation, command: str, onward: str | None, longest: float | None
    ) -> None:
        self._invocation = invocation
        self._command = command
        self._onward = onward
        self._longest = longest
        self._running: list[tuple[Job, float]] = []  # and since when
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._watcher = Watcher()

    def __call__(self, job: Job) -> bytes | Forward:
        status, output, errors = self._run(job)
        with contextlib.suppress(OSError):  # an unread stderr is not the job's fault
            click.echo(errors, nl=False, err=True)
        if status in _NOT_RUN:
            why = f"{self._command!r} {_NOT_RUN[status]} (exit status {status} of the shell)"
            raise Impossible from click.ClickException(why)
        lines = errors.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit status {status}"
        if status == REJECT_STATUS:
            raise Reject(reason)
        if status:
            raise Retry(reason)
        return Forward(self._onward, output) if self._onward else output

    def stopping(self) -> None:
        """Say what the stop waits for: a command finishes its job, however long that takes."""
        running = list(self._running)
        if running:
            now = monotonic()
            jobs = ", ".join(f"job {job.id} for {span(now - began)}" for job, began in running[:_NAMED])
            more = f" and {len(running) - _NAMED} more" if len(running) > _NAMED else ""
            self._invocation.note(
                f"stopping: waiting up to {STOP_TIMEOUT:g} s for {len(running)} of {self._command!r} to end: "
                f"{jobs}{more}; Ctrl-C ends them now, and their jobs go back"
            )

    def end(self) -> None:
        """End commands that outlived the deadline: other workers have their jobs by now."""
        for process in list(self._processes):
            _kill(process)

    def _run(self, job: Job) -> tuple[int, bytes, bytes]:
        # Noted before it begins: the worker may be stopped as soon as the command runs.
        self._running.append(begun := (job, monotonic()))
        try:
            return self._in_a_shell(job)
        finally:
            self._running.remove(begun)

    def _in_a_shell(self, job: Job) -> tuple[int, bytes, bytes]:
        job.interrupt = limit = _Limit()
        # A session of its own, so that the terminal's Ctrl-C lets it finish its job.
        pipe = subprocess.PIPE
        process = self._watcher.start(
            self._command, stdin=pipe, stdout=pipe, stderr=pipe, env=os.environ | _environment(job)
        )
        self._processes.add(process)
        limit.process = process
        for error in limit.reached:  # it began late
            limit.end(error)
        job.keep_extending()  # this process sees the command alive
        if job.source is not None:
            job.source.when_cancelled(job, partial(_ask_to_end, process))
        try:
            output, errors = process.communicate(job.payload, self._longest)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.communicate()
            raise Retry(f"the command ran for {self._longest:g} s, and was ended") from None
        finally:
            self._processes.discard(process)
            self._watcher.ended(process)
        job.check()
        if process.returncode and limit.reached:
            raise limit.reached[-1]
        return process.returncode, output, errors


class _Limit:
    """Ends a command at the limits of its job: by SIGTERM at the soft one, by SIGKILL at the hard one."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.reached: list[type[Exception]] = []

    def __call__(self, error: type[Exception]) -> None:
        self.reached.append(error)
        self.end(error)

    def end(self, error: type[Exception]) -> None:
        number = signal.SIGTERM if error is SoftTimeLimitError else signal.SIGKILL
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


def _ask_to_end(process: subprocess.Popen[bytes]) -> None:
    """End a command whose job was cancelled: by SIGTERM, and after a while by SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    later = threading.Timer(_END_WITHIN, _kill_if_alive, [process])
    later.daemon = True
    later.start()


def _kill_if_alive(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _show(invocation: Invocation, job: Job) -> None:
    if invocation.as_json:
        invocation.json(_described(job))
    elif sys.stdout.isatty():
        invocation.line(printable(job.payload.decode(errors="backslashreplace")))
    else:
        invocation.line(job.payload)


class _Escaping(logging.Formatter):
    """Escapes ids and reasons, which may come from anybody."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(super().formatMessage(record))


def _log_to_stderr() -> None:
    """Log lost connections and late verdicts to stderr, since this command runs for long."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Escaping("%(asctime)s %(levelname)s sluicemq: %(message)s"))
    logging.getLogger("sluicemq").addHandler(handler)


def _environment(job: Job) -> dict[str, str]:
    environment = {"JOB_ID": job.id, "JOB_QUEUE": job.queue, "JOB_ATTEMPT": str(job.attempt)}
    for name in _TRACE:
        value = job.headers.get(name)
        if isinstance(value, str) and value.isascii() and value.isprintable():
            environment[name.upper()] = value
    return environment


def _described(job: Job) -> dict[str, Any]:
    return {"id": job.id, "attempt": job.attempt, "headers": job.headers, "payload": job.payload}
