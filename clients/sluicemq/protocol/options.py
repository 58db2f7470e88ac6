"""The options of a job, declared once: what each may be, what holds without it, where it is stored.

A new option is an entry of :data:`OPTIONS`, its type in :class:`JobOptions` unless the library sets it
itself, and the code that acts on it. From here come the check of headers, the keywords of
:meth:`~sluicemq.Producer.push`, the flags of ``sluicemq push``, the queue settings' defaults and words,
what is read of a job in MongoDB, and ``docs/job-options.md``. ``tests/unit/test_options.py`` names what
has been forgotten of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Required, TypedDict

from sluicemq.protocol import rules
from sluicemq.protocol.durations import TEN_YEARS
from sluicemq.protocol.rules import Rule

#: Values of ``reply``.
RESULT: Final = "result"
ACCEPTED: Final = "accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: a header on the wire, a keyword of ``push``, mostly also a flag and a queue's setting.

    ``setting`` is the key of ``[queues.NAME]`` that holds for jobs without it, ``default`` what that is
    by default (None: nothing). ``stored`` are the fields of a job's document that it makes;
    ``unless_default``: only where it is not what the queue's settings say, whose changes then hold for
    jobs that wait, too. ``metavar`` is the word for its value in the help of ``sluicemq push`` (empty:
    it has no flag of its own).
    ``names_one``: no two jobs should have the same; ``changeable``: also while a job waits.
    ``for_schedules``: jobs of a schedule may have it; ``for_moves``: it may be said anew of a job that goes
    on to another queue, or of a child.
    """

    name: str
    doc: str
    rule: Rule
    example: Any
    unit: str = ""
    setting: str = ""
    default: Any = None
    stored: tuple[str, ...] = ()
    unless_default: bool = False
    metavar: str = ""
    names_one: bool = False
    changeable: bool = False
    for_schedules: bool = True
    for_moves: bool = True


#: A span of time: seconds, a ``timedelta``, or a text such as 90s or 1h30m.
Seconds = float | timedelta | str


class JobOptions(TypedDict, total=False):
    """The options of a push by keyword, None being as the queue has it; ``id`` and ``reply`` stand apart."""

    priority: int | None
    delay: Seconds | None
    not_before: float | str | datetime | None
    ttl: Seconds | None
    max_attempts: int | None
    visibility_timeout: Seconds | None
    dedupe_id: str | None
    dedupe_window: Seconds | None
    backoff: str | dict[str, Any] | None
    keep_done: Seconds | None
    group: str | None
    tenant: str | None
    headers: dict[str, Any] | None


class NewJob(JobOptions, total=False):
    """One job of many: its payload, and what holds for it alone."""

    payload: Required[bytes]
    id: str | None


_ALL = (
    Option(
        name="id",
        doc="the job's id; pushed again with the same one it is the same job",
        rule=rules.IDENTIFIER,
        example="order-7",
        stored=("_id",),
        metavar="ID",
        names_one=True,
        for_schedules=False,
        for_moves=False,
    ),
    Option(
        name="priority",
        doc="higher first",
        rule=rules.whole(0, 255, "a whole number from 0 to 255"),
        example=7,
        setting="priority",
        default=0,
        stored=("priority",),
        metavar="N",
        changeable=True,
    ),
    Option(
        name="delay",
        doc="seconds before a new job may be delivered",
        rule=rules.duration(0, TEN_YEARS, "seconds from 0 to ten years"),
        example=60.0,
        unit="s",
        setting="delay",
        default=0.0,
        stored=("eligible_at",),
        metavar="S",
        changeable=True,
    ),
    Option(
        name="not_before",
        doc="when it may be delivered: Unix seconds, or as 2030-01-31T12:00:00Z; "
        "the later of it and the delay holds",
        rule=rules.MOMENT,
        example="2096-10-02T07:06:50Z",
        stored=("eligible_at",),
        metavar="T",
        for_schedules=False,
    ),
    Option(
        name="ttl",
        doc="seconds a job may wait for a worker",
        rule=rules.duration(0.001, TEN_YEARS, "seconds above 0, at most ten years"),
        example=3600.0,
        unit="s",
        setting="ttl",
        stored=("expires_at",),
        metavar="S",
    ),
    Option(
        name="max_attempts",
        doc="deliveries before a job is a dead letter; 0 = no end",
        rule=rules.whole(0, 1_000_000, "a whole number from 0 (for ever) to 1000000"),
        example=3,
        setting="max_attempts",
        default=5,
        stored=("max_attempts",),
        unless_default=True,
        metavar="N",
    ),
    Option(
        name="visibility_timeout",
        doc="longest time one delivery may take",
        rule=rules.duration(0.1, 30 * 86400, "seconds from 0.1 to 30 days"),
        example=90.0,
        unit="s",
        setting="visibility_timeout",
        default=1800.0,
        stored=("visibility_timeout",),
        unless_default=True,
        metavar="S",
    ),
    Option(
        name="dedupe_id",
        doc="what its piece of work is called: no other job with it is taken within the window",
        rule=rules.IDENTIFIER,
        example="invoice-2031",
        stored=("dedupe_id", "dedupe_until"),
        metavar="ID",
        names_one=True,
        for_schedules=False,
        for_moves=False,
    ),
    Option(
        name="dedupe_window",
        doc="seconds in which no other job may have a job's dedupe_id",
        rule=rules.duration(0.1, TEN_YEARS, "seconds from 0.1 to ten years"),
        example=60.0,
        unit="s",
        setting="dedupe_window",
        default=300.0,
        stored=("dedupe_until",),
        metavar="S",
        for_schedules=False,
        for_moves=False,
    ),
    Option(
        name="backoff",
        doc="how the wait grows after each failure: exponential, linear, fixed or none",
        rule=rules.BACKOFF,
        example={"kind": "linear", "base": 5.0},
        setting="backoff",
        default="exponential",
        stored=("backoff",),
        unless_default=True,
        metavar="KIND",
    ),
    Option(
        name="keep_done",
        doc="seconds a job is kept, whole, once it is done",
        rule=rules.duration(0, TEN_YEARS, "seconds from 0 to ten years"),
        example=600.0,
        unit="s",
        setting="keep_done",
        default=0.0,
        stored=("keep_done",),
        unless_default=True,
        metavar="S",
    ),
    Option(
        name="group",
        doc="what its line is called: jobs of one group run one at a time, in the order of their pushes",
        rule=rules.IDENTIFIER,
        example="customer-7",
        stored=("group", "state", "wait"),
        metavar="GROUP",
    ),
    Option(
        name="tenant",
        doc="whose job it is: a fair queue goes round its tenants; without one, its group's",
        rule=rules.IDENTIFIER,
        example="acme",
        stored=("tenant",),
        metavar="TENANT",
    ),
    Option(
        name="reply",
        doc="what REQ and DEALER are answered: the result, or that it is stored; "
        "over SMQ/1 result keeps it for who asks",
        rule=rules.one_of(RESULT, ACCEPTED),
        example=RESULT,
        default=RESULT,
        stored=("remember", "asked"),
        for_schedules=False,
        for_moves=False,
    ),
    Option(
        name="headers",
        doc="a map of your own, handed to the worker",
        rule=rules.OWN_MAP,
        example={"colour": "red"},
        stored=("headers",),
    ),
)

#: Every option by its name.
OPTIONS: Final[dict[str, Option]] = {each.name: each for each in _ALL}

#: What jobs of a schedule may say: each run has an id and a time of its own, and nobody who waits for it.
SCHEDULE_OPTIONS: Final = frozenset(each.name for each in _ALL if each.for_schedules)

#: What may be said anew of a job that goes on, or of a child: their ids, and who waits, are given.
MOVE_OPTIONS: Final = frozenset(each.name for each in _ALL if each.for_moves)

#: Keywords of ``push`` that go out as headers.
KEYWORDS: Final = frozenset(JobOptions.__annotations__)
