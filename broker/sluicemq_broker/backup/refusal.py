"""The error of backups and restores."""

from sluicemq.protocol.errors import UnavailableError


class Refusal(UnavailableError):
    """A backup or a restore can't be done; the text says why, and what to do."""
