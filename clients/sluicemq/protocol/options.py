"""Options of a job, declared once: their values, defaults, and fields in MongoDB.

A new option is an entry of :data:`OPTIONS`, its type in :class:`JobOptions` (unless the library sets it), and
the code that acts on it. The check of headers, the keywords of :meth:`~sluicemq.Producer.push`, the flags of
``sluicemq push``, the defaults and words of queue settings, the fields read from MongoDB and
``docs/job-options.md`` come from here. ``tests/unit/test_options.py`` names what is still missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Required, TypedDict

from sluicemq.protocol import rules
from sluicemq.protocol.durations import TEN_YEARS, Duration
from sluicemq.protocol.rules import Rule

#: Values of ``reply``.
RESULT: Final = "result"
ACCEPTED: Final = "accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: a header on the wire, a keyword of ``push``, mostly also a flag and a queue's setting.

    ``setting``: the key of ``[queues.NAME]`` that counts for jobs without the option. ``default``: the value
    of that setting by default (None: nothing). ``stored``: the fields of a job's document.
    ``bound``: the key of ``[queues.NAME]`` that it can only lower.
    ``unless_default``: they are stored only if they differ from the queue's settings, so that a change of
    those counts for waiting jobs. ``metavar``: the word for its value in the help of ``sluicemq push``
    (empty: it has no flag). ``names_one``: two jobs should not share a value. ``changeable``: also while a
    job waits. ``for_schedules``: jobs of a schedule may have it. ``for_moves``: a job that is forwarded, or a
    child, may get another value.
    """

    name: str
    doc: str
    rule: Rule
    example: Any
    unit: str = ""
    setting: str = ""
    bound: str = ""
    default: Any = None
    stored: tuple[str, ...] = ()
    unless_default: bool = False
    metavar: str = ""
    names_one: bool = False
    changeable: bool = False
    for_schedules: bool = True
    for_moves: bool = True


class JobOptions(TypedDict, total=False):
    """Options of a push by keyword; None means the queue's setting. ``id`` is apart."""

    priority: int | None
    delay: Duration | None
    not_before: float | str | datetime | None
    ttl: Duration | None
    max_attempts: int | None
    visibility_timeout: Duration | None
    soft_time_limit: Duration | None
    hard_time_limit: Duration | None
    dedupe_id: str | None
    dedupe_window: Duration | None
    backoff: str | dict[str, Any] | None
    keep_done: Duration | None
    group: str | None
    tenant: str | None
    kind: str | None
    reply: str | None
    headers: dict[str, Any] | None


class NewJob(JobOptions, total=False):
    """One job of many: its payload, and options of this job alone."""

    payload: Required[bytes]
    id: str | None


_ALL = (
    Option(
        name="id",
        doc="the job's id; a second push with it makes no second job",
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
        default=13,  # with the default backoff, 4,095 s from the first failure to the last: over an hour
        stored=("max_attempts",),
        unless_default=True,
        metavar="N",
    ),
    Option(
        name="visibility_timeout",
        doc="longest time one delivery may take",
        rule=rules.TIME_LIMIT,
        example=90.0,
        unit="s",
        setting="visibility_timeout",
        default=1800.0,
        stored=("visibility_timeout",),
        unless_default=True,
        metavar="S",
    ),
    Option(
        name="soft_time_limit",
        doc="seconds after which its handler is interrupted; the smallest of it, its queue's and its kind's "
        "holds",
        rule=rules.TIME_LIMIT,
        example=20.0,
        unit="s",
        bound="soft_time_limit",
        stored=("soft_time_limit",),
        metavar="S",
    ),
    Option(
        name="hard_time_limit",
        doc="seconds after which its attempt has failed, whatever its worker does, which is replaced if it "
        "does not end; the smallest holds",
        rule=rules.TIME_LIMIT,
        example=30.0,
        unit="s",
        bound="hard_time_limit",
        stored=("hard_time_limit",),
        metavar="S",
    ),
    Option(
        name="dedupe_id",
        doc="id of its piece of work: within the window no other job with it is taken",
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
        doc="seconds for which a done job is kept, with all its fields",
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
        doc="jobs of one group run one at a time, in the order of their pushes",
        rule=rules.IDENTIFIER,
        example="customer-7",
        stored=("group", "state", "wait"),
        metavar="GROUP",
    ),
    Option(
        name="tenant",
        doc="a fair queue serves its tenants in turn; without a tenant the group counts",
        rule=rules.IDENTIFIER,
        example="acme",
        stored=("tenant",),
        metavar="TENANT",
    ),
    Option(
        name="kind",
        doc="what sort of work it is: counts, rates and failures are shown by kind; "
        "without it a text under that name in the job's own headers counts, as tasks have it",
        rule=rules.KIND,
        example="send_mail",
        stored=("kind",),
        metavar="NAME",
    ),
    Option(
        name="reply",
        doc="what REQ and DEALER get: the result, or a confirmation that it is stored; "
        "over SMQ/1, result keeps the result for later",
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
OPTIONS: Final[dict[str, Option]] = {option.name: option for option in _ALL}

#: Options of a schedule's jobs: each run has its own id and time, and nobody waits for its result.
SCHEDULE_OPTIONS: Final = frozenset(option.name for option in _ALL if option.for_schedules)

#: Options that a forwarded job or a child may get: ids are given, and so is who waits for the result.
MOVE_OPTIONS: Final = frozenset(option.name for option in _ALL if option.for_moves)

#: Keywords of ``push`` that go out as headers.
KEYWORDS: Final = frozenset(JobOptions.__annotations__)
