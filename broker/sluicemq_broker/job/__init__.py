"""A job and the page on which its life is drawn."""

from sluicemq_broker.job.backoff import BOUNDS, KINDS, Backoff
from sluicemq_broker.job.job import ASKED, ERRORS_KEPT, SCHEDULED, Dedupe, Hold, Job, OnExpiry, State

__all__ = [
    "ASKED",
    "BOUNDS",
    "ERRORS_KEPT",
    "KINDS",
    "SCHEDULED",
    "Backoff",
    "Dedupe",
    "Hold",
    "Job",
    "OnExpiry",
    "State",
]
