"""The plan of a run: its scenario, its door, all numbers; defaults and rules."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

#: Scenarios, with their texts in ``sluicemq bench --help``.
SCENARIOS = {
    "push": "push jobs until the last is confirmed; nobody works",
    "drain": "fill a backlog, then work it off",
    "both": "push and work at once, until the last job is done",
    "latency": "push on a fixed schedule to idle workers; from the schedule to the worker's hands",
    "relay": "a device alone, without MongoDB: streamer, forwarder or queue",
    "stream": "streams beside queues, every figure: published, replayed, delivered to SUB sockets",
    "simulate": "rounds of one second, each with 1,000 publishes at once and 300 reads",
}

#: Producers, then workers.
DOORS = {
    "library": "Producer and Worker of this library",
    "rep": "Producer of this library, REP workers",
    "pull": "PUSH producers, PULL workers",
    "req": "REQ clients that wait for each answer, REP workers",
}

#: When a job of a PULL worker is done: ``ack`` of its device.
ACKS = {
    "received": "its ZeroMQ has it",
    "auto": "before it is sent",
    "explicit": "it says so",
}

DEVICES = ("streamer", "forwarder", "queue")

#: The smallest job holds the time at which it was due.
STAMP_BYTES = 8

#: Share of the publishes of a simulated round that is read in it: 300 of 1,000.
READ_SHARE = 0.3

ENDLESS = 1 << 62

_DOORS_OF = {
    "push": ("library", "req"),
    "drain": ("library", "rep", "pull"),
    "both": ("library", "rep", "pull", "req"),
    "latency": ("library", "rep", "pull", "req"),
    "relay": ("library",),
    "stream": ("library",),
    "simulate": ("library", "rep", "req"),
}
_JOBS = {
    "push": 50_000,
    "drain": 20_000,
    "both": 50_000,
    "latency": 1_000,
    "relay": 500_000,
    "stream": 200_000,
    "simulate": 1_000,
}
_PROCESSES = 16  # of workers, at most: hundreds would keep the machine busy
_SLOW_DOOR_JOBS = 5_000  # one job at a time for each worker or client
_RATE = 100.0
_APART = ("relay", "simulate")  # each of their workers is a process
_PREFETCH = {"latency": 1, "simulate": 1}
_NOT_OF_STREAMS = {"door", "producers", "workers", "worker_processes", "prefetch", "window"}


@dataclass(frozen=True)
class Plan:
    """One run.

    ``jobs`` of ``size`` bytes; in ``simulate`` the publishes of one of ``iterations`` rounds, in ``stream``
    the messages, beside a quarter as many jobs. ``window``: jobs that a library producer leaves unconfirmed
    (1: one by one). ``rate``: jobs a second over all producers, None for as fast as they can. ``duration``
    ends the run after these seconds in any case. ``workers`` share ``worker_processes`` evenly. With several
    ``queues``, jobs and workers are dealt in turn. ``ack``: of the device of PULL workers. ``headers``: of
    every job of a library producer: ``priority``, ``delay``, ``ttl``, ``keep_done``. ``curve``: the
    broker or relay and all its clients have keys.
    """

    scenario: str
    door: str
    ack: str
    jobs: int
    size: int
    producers: int
    workers: int
    prefetch: int
    window: int
    backlog: int
    duration: float | None
    rate: float | None
    iterations: int
    device: str
    worker_processes: int
    queues: int
    headers: dict[str, Any]
    curve: bool = False

    def described(self) -> dict[str, Any]:
        """Return the settings that counted in this run."""
        unused = {"device"} if self.scenario != "relay" else {"door", "prefetch", "window"}
        unused |= {"ack"} if self.door != "pull" else set()
        unused |= {"iterations"} if self.scenario != "simulate" else set()
        unused |= {"backlog"} if self.scenario != "drain" else set()
        unused |= {"workers", "prefetch", "worker_processes"} if self.scenario == "push" else set()
        unused |= {"worker_processes"} if self.worker_processes == self.workers else set()
        unused |= {"queues"} if self.queues == 1 else set()
        unused |= set() if self.headers else {"headers"}
        unused |= set() if self.curve else {"curve"}
        unused |= {"jobs"} if self.jobs == ENDLESS else set()
        unused |= _NOT_OF_STREAMS if self.scenario == "stream" else set()
        return {
            name: value for name, value in asdict(self).items() if name not in unused and value is not None
        }


def planned(scenario: str, **given: Any) -> Plan:
    """Return a plan with the scenario's defaults for None; ValueError says what does not fit."""
    chosen = {name: value for name, value in given.items() if value is not None}
    door = chosen.get("door", "library")
    plan = Plan(**{**_defaults(scenario, door, chosen), **chosen, "scenario": scenario, "door": door})
    _check(plan)
    return plan


def _defaults(scenario: str, door: str, chosen: dict[str, Any]) -> dict[str, Any]:
    jobs = _JOBS[scenario] if door == "library" else min(_JOBS[scenario], _SLOW_DOOR_JOBS)
    if chosen.get("duration") and scenario in ("push", "both", "latency"):
        jobs = ENDLESS
    workers = chosen.get("workers", chosen.get("queues", 1))
    return {
        "jobs": jobs,
        "size": 64 if scenario == "relay" else 200,
        "producers": 1,
        "workers": workers,
        "worker_processes": workers if scenario in _APART else min(workers, _PROCESSES),
        "queues": 1,
        "headers": {},
        "ack": next(iter(ACKS)),
        "prefetch": _PREFETCH.get(scenario, _prefetch(door, chosen.get("ack"))),
        "window": 20_000,
        "backlog": chosen.get("jobs", jobs),
        "duration": None,
        "rate": _RATE if scenario == "latency" else None,
        "iterations": 25,
        "device": "streamer",
    }


def _prefetch(door: str, ack: str | None) -> int:
    if door == "pull" and ack != "explicit":
        return 64 if ack == "auto" else 256  # their devices' default
    return 1024 if door == "library" else 100


def _check(plan: Plan) -> None:
    _check_door(plan)
    if plan.size < STAMP_BYTES:
        raise ValueError(f"a job of the bench holds a time: its size is at least {STAMP_BYTES} bytes")
    if plan.scenario == "drain" and plan.backlog < plan.jobs:
        raise ValueError(f"a backlog of {plan.backlog} does not hold the {plan.jobs} jobs to drain")
    if plan.duration is not None and plan.scenario in ("relay", "simulate", "stream"):
        raise ValueError(f"{plan.scenario} ends after its --jobs, not after a --duration")
    if plan.worker_processes > plan.workers or (
        plan.scenario in _APART and plan.worker_processes != plan.workers
    ):
        raise ValueError(
            f"{plan.workers} workers of {plan.scenario} can't share {plan.worker_processes} processes"
        )
    if plan.headers and (plan.door not in ("library", "rep") or plan.scenario == "relay"):
        raise ValueError("only the library's producers send headers")
    if plan.curve and plan.scenario == "stream":
        raise ValueError("stream has no keys")
    if plan.queues > 1 and (plan.door != "library" or plan.scenario == "relay"):
        raise ValueError("only the library's producers and workers can have several queues")
    if plan.queues > plan.workers and plan.scenario != "push":
        raise ValueError(f"{plan.workers} workers are too few for {plan.queues} queues")
    if plan.jobs < plan.producers:
        raise ValueError(f"{plan.jobs} jobs are too few for {plan.producers} producers")


def _check_door(plan: Plan) -> None:
    doors = _DOORS_OF[plan.scenario]
    if plan.door not in doors:
        raise ValueError(
            f"{plan.scenario} can't be run through the door {plan.door}, only {', '.join(doors)}"
        )
    if plan.door != "pull" and plan.ack != next(iter(ACKS)):
        raise ValueError("--ack is of PULL workers: it goes with --door pull")
