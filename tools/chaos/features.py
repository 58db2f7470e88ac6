"""Features of the product that the load uses: their queues, devices, limits, and how many jobs a second.

Every job is tried for ever, so a job among the dead letters was put there by its worker.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from chaos.books import REJECT, ROLLBACK

#: Seconds for which ids stay known where repeated pushes must be harmless for the whole run.
_KEPT: Final = 7200


class Feature(NamedTuple):
    """A queue of the load: its settings, and how many jobs a second are pushed at pace 1, in all."""

    settings: dict[str, Any]
    rate: float = 0.0
    #: The longest that a handler takes, in seconds.
    work: float = 0.01


#: Plain sockets: REQ and REP, PUSH and PULL workers that commit, PULL workers that say nothing.
ASKED, PULLED, RECEIVED = "asked", "pulled", "received"
#: The library: workers; claims, each of whose commits is confirmed; results.
SHORT, CLAIMED, ANSWERS = "short", "claimed", "answers"
#: Order per key, and the three kinds of limits.
ORDERS, NARROW, PACED, TENANTS = "orders", "narrow", "paced", "tenants"
#: Jobs that go on, jobs with children, jobs that are rejected.
FIRST, SECOND, PARENTS, PAGES, FAILING, FAILED = "first", "second", "parents", "pages", "failing", "failed"
#: Plain jobs without ids, which lie in packs: of the library, and of a PUSH socket; what of them is rejected.
BURSTS, FLOODS, SPOILT = "bursts", "floods", "spoilt"
#: Jobs of a route and of a schedule.
ROUTED, TICKS = "routed", "ticks"
#: Jobs of which two producers push one each for a piece of work; a queue that an operator fills and deletes.
DEDUPED, SCRATCH = "deduped", "scratch"
#: The stream, the subscription that works through it, the schedule.
STREAM, SUBSCRIPTION, SCHEDULE = "events", "worked", "tick"
#: Streams that one publisher fills in turn, and those that two publishers fill with messages of the same ids.
#: A broker writes to each of them only now and then.
SPREAD: Final = tuple(f"spread-{number}" for number in range(1, 9))
TWINS: Final = ("twins-1", "twins-2")
STREAMS: Final = (STREAM, *SPREAD, *TWINS)
#: Topics of which every second message is one; the first becomes jobs.
ROUTED_TOPIC, OTHER_TOPIC = "orders.paid", "orders.sent"

MAX_RUNNING: Final = 3
RATE: Final = 8.0
BURST: Final = 8
TENANT_MAX_RUNNING: Final = 2
CHILDREN: Final = 3
#: Of so many jobs of ``FAILING`` one is rejected, and one is rolled back at its first attempt.
FAILS_OF: Final = 5
#: Of so many jobs in packs one is rejected, and one is rolled back at its first attempt.
SPOILT_OF: Final = 100
#: Jobs of one burst: with fewer than 32 left none would be packed.
BURST_OF: Final = (32, 600)

#: What the producers of the library push.
PUSHED_BY_LIBRARY: Final[dict[str, Feature]] = {
    SHORT: Feature({}, 8),
    CLAIMED: Feature({"keep_done": _KEPT}, 3),
    ORDERS: Feature({}, 5),
    NARROW: Feature({"max_running": MAX_RUNNING}, 3, 0.1),
    PACED: Feature({"rate": RATE, "burst": BURST}, 3),
    TENANTS: Feature({"fair": True, "tenant_max_running": TENANT_MAX_RUNNING}, 4, 0.05),
    FIRST: Feature({"keep_done": _KEPT}, 3),
    FAILING: Feature({"on_dead": FAILED}, 2),
    DEDUPED: Feature({"dedupe_window": _KEPT}, 2),
}
#: What somebody asks the library about, and waits for.
ASKED_OF_LIBRARY: Final[dict[str, Feature]] = {
    ANSWERS: Feature({"remember": _KEPT}, 4),
    PARENTS: Feature({"remember": _KEPT}, 1),
}
#: What plain sockets push; ``ASKED`` is a question, which is asked again by its id.
PUSHED_BY_SOCKETS: Final[dict[str, Feature]] = {
    ASKED: Feature({"remember": _KEPT}, 4),
    PULLED: Feature({}, 4),
    RECEIVED: Feature({}, 4),
}
#: What comes in bursts. Nobody gives ids, so the books know each of these jobs by its payload.
PACKED: Final[dict[str, Feature]] = {
    BURSTS: Feature({"on_dead": SPOILT}, 80, 0.002),
    FLOODS: Feature({"on_dead": SPOILT}, 40, 0.002),
}
KNOWN_BY_PAYLOAD: Final = frozenset((*PACKED, SPOILT))
#: What comes from other queues, the stream and the schedule.
COMING: Final[dict[str, Feature]] = {
    SECOND: Feature({}),
    PAGES: Feature({}),
    FAILED: Feature({}),
    SPOILT: Feature({}),
    ROUTED: Feature({}),
    TICKS: Feature({}),
    SCRATCH: Feature({}),
}
ALL: Final[dict[str, Feature]] = {
    **PUSHED_BY_LIBRARY, **ASKED_OF_LIBRARY, **PUSHED_BY_SOCKETS, **PACKED, **COMING,
}  # fmt: skip
#: Queues of the workers of the library.
WORKED_BY_LIBRARY: Final = [name for name in ALL if name not in (*PUSHED_BY_SOCKETS, CLAIMED, SCRATCH)]
#: Messages a second of the stream, and of all the others together.
STREAM_RATE: Final = 6.0
OTHERS_RATE: Final = 6.0
#: Queues where ids stay known: a repeated push makes no second job, however late it is.
REMEMBERING: Final = frozenset(
    name for name, feature in ALL.items() if feature.settings.keys() & {"keep_done", "remember"}
)
#: States in which a job of each queue is not done yet; a dead letter that moves on is not, either.
UNFINISHED: Final = {
    name: ["ready", "reserved", "waiting", *(["dead"] if "on_dead" in feature.settings else [])]
    for name, feature in ALL.items()
}

_ENDLESS: Final = {"max_attempts": 0, "max_losses": 1_000_000, "backoff": "none", "visibility_timeout": 30.0}


def configuration() -> dict[str, Any]:
    """Return what every broker of the run is configured with; devices have a ``name``, and no addresses."""
    return {
        "queues": {"*": dict(_ENDLESS), **{name: dict(feature.settings) for name, feature in ALL.items()}},
        "devices": [
            {"name": ASKED, "kind": "queue", "queue": ASKED, "envelope": "full"},
            {"name": PULLED, "kind": "streamer", "queue": PULLED, "envelope": "full", "ack": "explicit"},
            {"name": RECEIVED, "kind": "streamer", "queue": RECEIVED, "envelope": "full"},
        ],
        "routes": [{"stream": STREAM, "topics": [ROUTED_TOPIC], "queue": ROUTED}],
        "schedules": {SCHEDULE: {"queue": TICKS, "payload": SCHEDULE, "every": 2.0, "misfire": "one"}},
    }


def fate_in_pack(payload: str) -> str:
    """Return how the first run of this job of :data:`PACKED` ends; empty: by a commit."""
    return {7: REJECT, 8: ROLLBACK}.get(int(payload.rpartition("-")[2]) % SPOILT_OF, "")


def answer_to(payload: bytes) -> bytes:
    """Return the result that a worker of ``ANSWERS`` and ``ASKED`` has to give."""
    return b"re: " + payload
