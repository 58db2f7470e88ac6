"""A job and the page on which its life is drawn."""

from sluicemq_broker.job.backoff import Backoff
from sluicemq_broker.job.failure import NOT_DESCRIBED, TRACEBACKS_KEPT, Failure
from sluicemq_broker.job.job import (
    ERRORS_KEPT,
    FIRST,
    NOT_RESERVED,
    RESULT_WANTED_FOR,
    SCHEDULED,
    ChildEnd,
    Dedupe,
    Job,
    OnExpiry,
    Pack,
    Parent,
    Reservation,
    State,
)
from sluicemq_broker.job.round_robin import RoundRobin
from sluicemq_broker.job.staged_order import StagedOrder
from sluicemq_broker.job.timetable import MOST_RUNS, Misfire, Timetable, plan
