"""``sluicemq jobs result`` and ``sluicemq call``: what a worker returned."""

from __future__ import annotations

import sys
from typing import Any

import click

from sluicemq.cli.options import job_flags, timespan
from sluicemq.cli.output import Invocation, printable
from sluicemq.cli.reached import leave, store_problem
from sluicemq.producer import Producer
from sluicemq.protocol.errors import TimeoutError as SluiceTimeoutError
from sluicemq.protocol.options import OPTIONS

_seconds = timespan()


@click.command()
@click.argument("queue")
@click.argument("id")
@click.option("--wait", type=_seconds, metavar="S", default=0.0, help="Wait up to S seconds for it.")
@click.pass_obj
def result(invocation: Invocation, queue: str, id: str, wait: float) -> None:  # noqa: A002 - the argument's name
    """Print the result of a job of a QUEUE, as bytes.

    It is remembered for a while if the job was pushed by `call`, or by REQ with an id. Exits with 1 if there
    is no result: the job has not ended yet, is dead, or is not known.
    """
    try:
        outcome = invocation.broker.jobs.result(queue, id, wait)
    except SluiceTimeoutError as error:
        if store_problem(invocation.broker.health().store):  # the broker answers it in any case
            raise
        _refuse(invocation, error)
    _print(invocation, queue, id, outcome)


@click.command()
@click.argument("queue")
@click.argument("payload")
@job_flags([OPTIONS["id"]], id="the job's id; a second call with it gets the stored result")
@click.pass_obj
def call(invocation: Invocation, /, queue: str, payload: str, **options: Any) -> None:
    """Push PAYLOAD to a QUEUE, or stdin if it is -, and print the result, as bytes.

    --timeout is for the result. Exits with 1 if there is none by then, or the job is dead.
    """
    job = sys.stdin.buffer.read() if payload == "-" else payload.encode(errors="surrogateescape")
    invocation.broker.ping()
    with Producer(close_timeout=invocation.timeout, endpoint=invocation.access) as producer:
        reply = producer.submit(queue, job, **options)
        try:
            outcome = reply.result(invocation.timeout)
        except TimeoutError:
            reply.give_up()
            leave(producer)
            job_id = reply.receipt.id
            late = SluiceTimeoutError(f"job {job_id} has no result after {invocation.timeout:g} s", job_id)
            if store_problem(invocation.broker.health().store):
                raise late from None
            _refuse(invocation, late, f"`sluicemq jobs result {queue} {job_id}` asks again")
    _print(invocation, queue, reply.receipt.id, outcome)


def _refuse(invocation: Invocation, error: SluiceTimeoutError, advice: str = "") -> None:
    invocation.error(error, advice)
    click.get_current_context().exit(1)


def _print(invocation: Invocation, queue: str, job_id: str, outcome: bytes) -> None:
    if invocation.as_json:
        invocation.json({"queue": queue, "id": job_id, "result": outcome})
    elif sys.stdout.isatty():
        invocation.line(printable(outcome.decode(errors="backslashreplace")))
    else:
        invocation.write(outcome)
