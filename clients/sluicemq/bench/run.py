"""Carry out a plan against a broker: who acts in which scenario, what must be there before and gone after."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sluicemq.bench.crew import BenchFailed, Crew
from sluicemq.bench.measure import Cast, Watch, board_for, carry_out, measure
from sluicemq.bench.outcome import Outcome
from sluicemq.bench.plan import Plan
from sluicemq.bench.task import Site, Task
from sluicemq.bench.usage import pids_behind
from sluicemq.client import Client
from sluicemq.errors import SluiceError

_ATTACH_PATIENCE = 30.0
_LEAVE_PATIENCE = 5.0
_POLL = 0.02
_STATES = ("ready", "scheduled", "waiting", "reserved", "dead")

# Programs of producers and workers, and whether the producers say what is done.
_CASTS = {
    "push": ("produce", "", True),
    "drain": ("", "work", False),
    "both": ("produce", "work", False),
    "latency": ("produce", "work", False),
    "simulate": ("publish", "read", True),
}


def run(plan: Plan, site: Site, watch: Watch) -> Outcome:
    """Measure a broker. The queue must be empty before, and is so again after."""
    with Client(site.endpoint, timeout=30) as client:
        _make_sure_it_is_empty(client, site.queue)
        try:
            if plan.scenario == "drain":
                _fill(plan, site, watch)
            return measure(_cast(plan, site, client), watch, lambda: _await_workers(client, plan, site.queue))
        finally:
            _clear(client, site.queue)


def _cast(plan: Plan, site: Site, client: Client) -> Cast:
    producing, working, producers_count = _CASTS[plan.scenario]
    pids = pids_behind(client, site.endpoint)
    # A REQ client knows best when its job is done: then it has the answer.
    return Cast(plan, site, pids, producing, working, producers_count or plan.door == "req")


def _fill(plan: Plan, site: Site, watch: Watch) -> None:
    filling = replace(plan, door="library", jobs=plan.backlog, producers=1, window=20_000)
    watch.phase("filling", plan.backlog)
    with board_for(filling) as (file, board):
        task = Task("produce", site, filling, plan.backlog, 1 + filling.workers, str(file))
        with Crew([task]) as crew:
            carry_out([crew], board.produced, lambda _seconds, done: watch.at(done))


def _await_workers(client: Client, plan: Plan, queue: str) -> None:
    """Rates and latencies begin with all workers at the broker's door, not on their way."""
    if plan.scenario in ("push", "drain"):
        return
    patience = time.monotonic() + _ATTACH_PATIENCE
    while time.monotonic() < patience:
        if _found(client, queue).get("workers", 0) >= plan.workers:
            return
        time.sleep(_POLL)
    raise BenchFailed(f"{plan.workers} workers did not get to queue {queue!r} within {_ATTACH_PATIENCE:g} s")


def _make_sure_it_is_empty(client: Client, queue: str) -> None:
    found = _found(client, queue)
    if held := _held(found):
        raise BenchFailed(f"queue {queue!r} holds {held} jobs: purge it, or name another with --queue")
    if found.get("workers"):
        raise BenchFailed(f"queue {queue!r} has {found['workers']} workers already")


def _clear(client: Client, queue: str) -> None:
    """Leave nothing behind. It was empty, so it may go; not while our workers are on their way out."""
    patience = time.monotonic() + _LEAVE_PATIENCE
    with suppress(SluiceError):  # the broker may be gone
        while time.monotonic() < patience and _found(client, queue).get("workers"):
            time.sleep(_POLL)
        client.delete(queue)


def _found(client: Client, queue: str) -> dict[str, Any]:
    return next((each for each in client.queues() if each["name"] == queue), {})


def _held(found: dict[str, Any]) -> int:
    return sum(found.get(state, 0) for state in _STATES)
