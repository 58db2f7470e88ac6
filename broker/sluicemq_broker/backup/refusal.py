"""The error of backups and restores."""

from sluicemq.protocol.errors import Unavailable


class Refusal(Unavailable):
    """A backup or a restore can't be done; the text says why, and what to do."""
