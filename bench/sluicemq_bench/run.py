"""Carry out a plan against a broker: the programs of each scenario, and its queues before and after."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sluicemq.client import Client
from sluicemq.producer import Producer
from sluicemq.protocol.errors import NotFoundError, QueueFullError, SluiceError
from sluicemq.protocol.wire import ShownState
from sluicemq.receipt import PushReceipt
from sluicemq_bench.measure import Programs, Watch, carry_out, counts_for, measure
from sluicemq_bench.outcome import Outcome
from sluicemq_bench.plan import Plan
from sluicemq_bench.processes import BenchFailed, Processes
from sluicemq_bench.task import Site, Task
from sluicemq_bench.usage import pids_behind

_ATTACH_TIMEOUT = 30.0
_LEAVE_TIMEOUT = 5.0
_POLL = 0.02
_PAUSE = 1.0
#: States of jobs that a run still has to work on.
_LEFT = tuple(state for state in ShownState if state is not ShownState.DONE)

# Programs of producers and workers, and whether the producers know which jobs are done.
_CASTS = {
    "push": ("produce", "", True),
    "drain": ("", "work", False),
    "both": ("produce", "work", False),
    "latency": ("produce", "work", False),
    "simulate": ("publish", "read", True),
}


def run(plan: Plan, site: Site, watch: Watch) -> Outcome:
    """Measure a broker. The queues must be empty before, and are gone after."""
    queues = site.queues(plan)
    with Client(timeout=30, endpoint=site.endpoint) as client:
        _make_sure_they_are_empty(client, queues)
        try:
            watch.phase("making queues", None)
            make(client, site.endpoint, queues)
            if plan.scenario == "drain":
                fill(plan, site, watch)
            return measured(plan, site, client, watch)
        finally:
            _clear(client, queues)


def make(client: Client, endpoint: str, queues: list[str]) -> None:
    """Make their collections and indexes, which takes MongoDB some time."""
    left = queues
    with Producer(endpoint=endpoint) as producer:
        while left:  # a broker makes some at once, and the others over time
            pushed = [(queue, producer.push(queue, b"")) for queue in left]
            left = [queue for queue, receipt in pushed if _is_refused(receipt)]
            time.sleep(_PAUSE if left else 0)
    for queue in queues:
        client.purge(queue)


def _is_refused(receipt: PushReceipt) -> bool:
    """Return whether the broker makes no more queues for now."""
    try:
        receipt.wait()
    except QueueFullError:
        return True
    return False


def measured(plan: Plan, site: Site, client: Client, watch: Watch) -> Outcome:
    """Measure a broker whose queues are filled."""
    queues = site.queues(plan)
    return measure(_programs(plan, site, client), watch, lambda: _await_workers(client, plan, queues))


def fill(plan: Plan, site: Site, watch: Watch) -> None:
    """Push the plan's backlog."""
    filling = replace(plan, door="library", jobs=plan.backlog, producers=1, window=20_000)
    watch.phase("filling", plan.backlog)
    with counts_for(filling) as (file, counts):
        task = Task("produce", site, filling, plan.backlog, 1 + filling.worker_processes, str(file))
        with Processes([task]) as process:
            carry_out([process], counts.produced, lambda _seconds, done: watch.at(done))


def _programs(plan: Plan, site: Site, client: Client) -> Programs:
    producing, working, producers_count = _CASTS[plan.scenario]
    pids = pids_behind(client, site.endpoint)
    # A REQ client knows best when its job is done: it has the answer.
    return Programs(plan, site, pids, producing, working, producers_count or plan.door == "req")


def _await_workers(client: Client, plan: Plan, queues: list[str]) -> None:
    """Wait until all workers are at the broker: rates and latencies begin then."""
    if plan.scenario in ("push", "drain"):
        return
    deadline = time.monotonic() + _ATTACH_TIMEOUT
    while time.monotonic() < deadline:
        if sum(row.get("workers", 0) for row in _found(client, queues)) >= plan.workers:
            return
        time.sleep(_POLL)
    raise BenchFailed(f"{plan.workers} workers did not get to {queues[0]!r} within {_ATTACH_TIMEOUT:g} s")


def _make_sure_they_are_empty(client: Client, queues: list[str]) -> None:
    for found in _found(client, queues):
        name = found["name"]
        if held := _held(found):
            raise BenchFailed(f"queue {name!r} holds {held} jobs: purge it, or name another with --queue")
        if found.get("workers"):
            raise BenchFailed(f"queue {name!r} has {found['workers']} workers already")


def _clear(client: Client, queues: list[str]) -> None:
    """Remove the queues, which were empty before; wait for our workers to leave."""
    deadline = time.monotonic() + _LEAVE_TIMEOUT
    with suppress(SluiceError):  # the broker may be gone
        while time.monotonic() < deadline and any(row.get("workers") for row in _found(client, queues)):
            time.sleep(_POLL)
        for queue in queues:
            client.delete(queue)


def _found(client: Client, queues: list[str]) -> list[dict[str, Any]]:
    found = []
    for queue in queues:
        with suppress(NotFoundError):  # it does not exist yet
            found.append(client.queue(queue))
    return found


def _held(found: dict[str, Any]) -> int:
    return sum(found.get(state, 0) for state in _LEFT)
