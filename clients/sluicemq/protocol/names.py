"""Names of queues, streams, subscriptions and principals, and kinds of work: which are allowed."""

from __future__ import annotations

import re
from typing import Final

#: Bytes of a name of a queue, a stream or a subscription, at most.
LONGEST_NAME: Final = 64
QUEUE_NAME_RULE: Final = "1 to 64 of A-Z a-z 0-9 _ - and, between them, single full stops"

#: Name of who shows the token of ``[broker] http_token``, in logs and in the audit: no principal has it.
HTTP_TOKEN: Final = "http_token"  # noqa: S105 - a name
PRINCIPAL_NAME_RULE: Final = f"{QUEUE_NAME_RULE}, but not {HTTP_TOKEN}"

_LONGEST_KIND: Final = 64
KIND_RULE: Final = f"1 to {_LONGEST_KIND} visible characters"

_QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def is_queue_name(value: object) -> bool:
    """Return whether a queue may have this name: it is part of a collection's, so full stops stand alone."""
    return isinstance(value, str) and len(value) <= LONGEST_NAME and _QUEUE_NAME.fullmatch(value) is not None


def is_principal_name(value: object) -> bool:
    """Return whether a principal may have this name."""
    return is_queue_name(value) and value != HTTP_TOKEN


def is_kind(kind: object) -> bool:
    """Return whether jobs, or a hold on a subscription, may have this kind."""
    return isinstance(kind, str) and 1 <= len(kind) <= _LONGEST_KIND and kind.isprintable()
