"""Plan the hosts of an installation: from a load and measured costs to brokers, cores, disk and oplog.

``docs/scaling.md`` says where each figure is from. Nothing here knows a broker, or measures.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Final

DAY: Final = 86_400.0

#: Microseconds of a broker's core for a job by its door, and with CURVE how many times that.
IN_BROKER: Final = {"library": 9.5, "rep": 37.0, "pull": 37.0, "req": 37.0}
WITH_CURVE: Final = {"library": 1.07, "rep": 1.33, "pull": 1.33, "req": 1.33}
#: Microseconds of mongod's cores for a job that is inserted reserved, and for one that is claimed.
RESERVED: Final = 22.0
CLAIMED: Final = 43.0
#: Microseconds of mongod's cores for a statement at rest.
STATEMENT: Final = 200.0

#: Bytes of a job on disk beside its payload, compressed, and in the indexes.
STORED: Final = 160
INDEXED: Final = 50
#: Bytes of a job's entries in the oplog beside its payload, if it is inserted reserved, or claimed.
OPLOG_RESERVED: Final = 695
OPLOG_CLAIMED: Final = 930
#: Bytes that a node's disk is given beside the oplog, for each byte of a payload: journal and collection.
WRITTEN_OF_PAYLOAD: Final = 1.2
#: Bytes of a message of a stream beside its payload, on disk and in the oplog.
STREAMED: Final = 25
#: Bytes of disk of a mongod without jobs: its journal, its log, its own files.
AT_REST: Final = 1_000_000_000

#: A broker's memory: at rest, and three times the default of ``hwm_bytes``.
BROKER_BYTES: Final = 50_000_000 + 3 * 64 * 1024 * 1024

#: Brokers beyond which each looks at its queues less often.
_CROWD = 8
#: Statements a second of a broker for a queue with workers: looks and sweeps, alone or in a crowd.
_LOOKS = {False: 1.3, True: 0.68}


@dataclass(frozen=True)
class Load:
    """The load that is asked for.

    ``rate`` and ``average``: jobs a second at the peak, and over days. ``claimed``: the share of jobs that
    a broker claims, because they waited or were pushed at another broker. ``outage``: seconds for which all
    workers may be away at the peak. ``dead``: the share of jobs that become dead letters. ``stream_…``:
    messages a second of all streams, their bytes, and how long they are kept.
    """

    rate: float
    average: float
    size: int = 200
    door: str = "library"
    curve: bool = False
    claimed: float = 1.0
    queues: int = 10
    job_seconds: float = 0.0
    outage: float = 3600.0
    keep_done: float = 0.0
    dead: float = 0.001
    keep_dead: float = 90 * DAY
    stream_rate: float = 0.0
    stream_size: int = 200
    stream_keep: float = 7 * DAY


@dataclass(frozen=True)
class Costs:
    """Microseconds of CPU of a job: in a broker; in mongod if it is inserted reserved; if it is claimed."""

    broker: float
    reserved: float = RESERVED
    claimed: float = CLAIMED
    source: str = "docs/performance.md"

    def as_json(self) -> dict[str, Any]:
        """Return the costs by their names, and where they were measured."""
        return asdict(self)

    def described(self) -> str:
        """Return the costs in a sentence."""
        return (
            f"CPU of a job by {self.source}: broker {self.broker:.3g} us, "
            f"MongoDB {self.reserved:.3g} us, claimed {self.claimed:.3g} us"
        )


@dataclass(frozen=True)
class Hosts:
    """The hosts that there may be: cores of a MongoDB node, and which part of cores and disks is used.

    ``oplog``: seconds that the oplog reaches back at the average rate.
    """

    cores: int = 8
    nodes: int = 3
    use: float = 0.5
    oplog: float = DAY


@dataclass(frozen=True)
class Capacity:
    """The hosts that a load needs; bytes are those of one MongoDB node."""

    brokers: int
    broker_bytes: int
    replica_sets: int
    nodes: int
    node_cores: int
    jobs_waiting: int
    jobs_kept: int
    jobs_at_work: int
    disk_bytes: int
    oplog_bytes: int
    replicated_bytes_per_s: int
    written_bytes_per_s: int
    full_first: str

    def as_json(self) -> dict[str, Any]:
        """Return all figures, with units in the names."""
        return asdict(self)


def costs_of(load: Load) -> Costs:
    """Return the documented costs of a job at the load's door."""
    return Costs(IN_BROKER[load.door] * (WITH_CURVE[load.door] if load.curve else 1.0))


def planned(load: Load, costs: Costs, hosts: Hosts) -> Capacity:
    """Return the least capacity that carries the load, with one broker more, so that one may fail."""
    in_brokers = load.rate * costs.broker / 1e6
    brokers = max(1, math.ceil(in_brokers / hosts.use)) + 1
    in_mongod = load.rate * _mean(load, costs.reserved, costs.claimed) / 1e6 + _duties(brokers, load.queues)
    cores = math.ceil(in_mongod / hosts.use)
    sets = max(1, math.ceil(cores / hosts.cores))
    waiting = round(load.rate * load.outage)
    kept = round(load.average * (load.keep_done + load.dead * load.keep_dead))
    oplog = _oplog(load, load.average, load.stream_rate) * hosts.oplog
    streams = load.stream_rate * load.stream_keep * (load.stream_size + STREAMED)
    data = (waiting + kept) * (load.size + STORED + INDEXED) + streams
    return Capacity(
        brokers=brokers,
        broker_bytes=BROKER_BYTES,
        replica_sets=sets,
        nodes=sets * hosts.nodes,
        node_cores=max(1, math.ceil(cores / sets)),
        jobs_waiting=waiting,
        jobs_kept=kept,
        jobs_at_work=math.ceil(load.rate * load.job_seconds),
        disk_bytes=math.ceil((data / hosts.use + oplog) / sets + AT_REST),
        oplog_bytes=math.ceil(oplog / sets),
        replicated_bytes_per_s=math.ceil(_oplog(load, load.rate, load.stream_rate) / sets),
        written_bytes_per_s=math.ceil(_written(load) / sets),
        full_first="the brokers"
        if in_brokers / (brokers - 1) > in_mongod / (sets * hosts.cores)
        else "MongoDB",
    )


def _mean(load: Load, reserved: float, claimed: float) -> float:
    return claimed * load.claimed + reserved * (1 - load.claimed)


def _duties(brokers: int, queues: int) -> float:
    """Return the cores of mongod for what brokers ask at rest."""
    return brokers * queues * _LOOKS[brokers > _CROWD] * STATEMENT / 1e6


def _oplog(load: Load, rate: float, stream_rate: float) -> float:
    """Return the bytes a second that go into the oplog, and to each secondary."""
    job = load.size + _mean(load, OPLOG_RESERVED, OPLOG_CLAIMED)
    return rate * job + stream_rate * (load.stream_size + STREAMED)


def _written(load: Load) -> float:
    """Return the bytes a second that are written to a node's disk at the peak."""
    payloads = load.rate * load.size + load.stream_rate * load.stream_size
    return _oplog(load, load.rate, load.stream_rate) + WRITTEN_OF_PAYLOAD * payloads
