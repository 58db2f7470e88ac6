"""Makes jobs of payloads and headers; checks headers, with errors that name the header and what it may be."""

from __future__ import annotations

import itertools
import reprlib
import secrets
from collections.abc import Mapping
from typing import Any, Final

from sluicemq.protocol import job_headers
from sluicemq.protocol.errors import BadHeadersError, TooLargeError
from sluicemq.protocol.options import OPTIONS
from sluicemq.protocol.rules import rfc3339
from sluicemq_broker.config import QueueSettings
from sluicemq_broker.job import Backoff, Dedupe, Job
from sluicemq_broker.security import Caller
from sluicemq_broker.store import ServerClock, stored_size

_RULES: Final = {option.name: option.rule for option in OPTIONS.values()}


class _Brief(reprlib.Repr):
    """Shows values in error messages, cut short where they are long, wide or deep.

    str() of a thousand nested lists raises; six lists in each of six, six levels deep, take 0.1 s.
    """

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 64
        self.maxlevel = self.maxdict = 2
        self.maxlist = 4

    def repr_bytes(self, value: bytes, _level: int) -> str:
        """Return the first bytes of a value, so that no long text is made of all of them."""
        return repr(value[:32])


_BRIEF = _Brief()


def check_headers(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the headers with each value in the form that is used: "1h30m" becomes 5400.0 seconds.

    Raises :class:`TooLarge` for too many bytes, before anything looks at them; :class:`BadHeaders` for the
    first header with a wrong value, and says what it may be.
    """
    if headers and (size := _packed_size(headers)):
        job_headers.check_bytes(size)
    return {key: _read(key, value) for key, value in headers.items()}


class JobMaker:
    """Makes the jobs that producers send; a job without an id gets one, and these ids sort by time."""

    def __init__(self, clock: ServerClock, max_job_bytes: int) -> None:
        self._clock = clock
        self._max_job_bytes = max_job_bytes
        self._name = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    def new_id(self) -> str:
        """Return an id that no other broker gives, and that sorts by time."""
        return f"{int(self._clock.now() * 1000):012x}-{self._name}-{next(self._numbers):x}"

    def make(
        self,
        caller: Caller,
        settings: QueueSettings,
        payload: bytes,
        headers: Mapping[str, Any],
        job_id: str | None = None,
    ) -> Job:
        """Return a caller's job with these headers, and its queue's settings for all others.

        ``job_id`` wins over an id in the headers, the caller's tenant over theirs. Raises :class:`BadHeaders`
        and :class:`TooLarge`.
        """
        size = self._bounded(len(payload))
        if job_id is not None:
            _read("id", job_id)
        if headers:
            job = self._with_headers(settings, payload, headers, job_id, size)
        else:
            job = self._plain(settings, payload, job_id)
        if job.expires_at is not None:
            job.check_due()
        if caller.principal.marks_jobs:
            job.belong_to(caller.name, caller.tenant)
        return job

    def _with_headers(
        self,
        settings: QueueSettings,
        payload: bytes,
        headers: Mapping[str, Any],
        job_id: str | None,
        size: int,
    ) -> Job:
        headers = check_headers(headers)
        if own := headers.get("headers"):
            size = self._bounded(size + _stored_size(own))
        now = self._clock.now()
        ttl = headers.get("ttl", settings.ttl)
        return Job(
            job_id or headers.get("id") or self.new_id(),
            payload,
            headers.get("headers"),
            priority=headers.get("priority", settings.priority),
            eligible_at=_eligible_at(headers, now, settings.delay),
            expires_at=None if ttl is None else now + ttl,
            max_attempts=headers.get("max_attempts", settings.max_attempts),
            visibility_timeout=headers.get("visibility_timeout", settings.visibility_timeout),
            dedupe=_dedupe(headers, settings.dedupe_window),
            backoff=_backoff(headers["backoff"], settings.retries) if "backoff" in headers else None,
            keep_done=headers.get("keep_done", settings.keep_done),
            group=headers.get("group"),
            tenant=headers.get("tenant"),
            kind=headers.get("kind") or _own_kind(own),
            soft_time_limit=headers.get("soft_time_limit"),
            hard_time_limit=headers.get("hard_time_limit"),
            size=size,
        )

    def _plain(self, settings: QueueSettings, payload: bytes, job_id: str | None) -> Job:
        return Job(
            job_id or self.new_id(),
            payload,
            priority=settings.priority,
            eligible_at=self._clock.now() + settings.delay if settings.delay else 0.0,
            expires_at=None if settings.ttl is None else self._clock.now() + settings.ttl,
            max_attempts=settings.max_attempts,
            visibility_timeout=settings.visibility_timeout,
            keep_done=settings.keep_done,
        )

    def _bounded(self, size: int) -> int:
        if size > self._max_job_bytes:
            raise TooLargeError(f"the job has {size} bytes, max_job_bytes is {self._max_job_bytes}")
        return size


def _packed_size(headers: Mapping[str, Any]) -> int:
    """Return the bytes of headers on the wire; 0 if they can't be packed: their rules will say why."""
    try:
        return len(job_headers.encode(headers))
    except (ValueError, TypeError, RecursionError, OverflowError):
        return 0


def _stored_size(own: Mapping[str, Any]) -> int:
    try:
        return stored_size(own)
    except ValueError as error:
        raise _wrong("headers", own, _RULES["headers"].expected) from error


def _eligible_at(headers: Mapping[str, Any], now: float, delay: float) -> float:
    not_before = headers.get("not_before")
    if isinstance(not_before, str):
        not_before = rfc3339(not_before)
    delay = headers.get("delay", delay)
    due = max(not_before or 0.0, now + delay if delay else 0.0)
    return int(due * 1000) / 1000


def _own_kind(own: Mapping[str, Any] | None) -> str | None:
    """Return the kind in a job's own headers, where tasks have it; None for what can't be one."""
    kind = own.get("kind") if own else None
    return kind if isinstance(kind, str) and OPTIONS["kind"].rule.holds(kind) else None


def _dedupe(headers: Mapping[str, Any], window: float) -> Dedupe | None:
    if "dedupe_id" in headers:
        return Dedupe(headers["dedupe_id"], headers.get("dedupe_window", window))
    if "dedupe_window" in headers:
        raise BadHeadersError("header 'dedupe_window' needs a 'dedupe_id'")
    return None


def _backoff(header: str | Mapping[str, Any], defaults: Backoff) -> Backoff | None:
    """Return the queue's rule with the header's changes; None if it changes nothing."""
    said = {"kind": header} if isinstance(header, str) else header
    numbers: dict[str, Any] = {name: value for name, value in said.items() if name != "kind"}
    own = defaults._replace(kind=said.get("kind", defaults.kind), **numbers)
    return None if own == defaults else own


def _read(key: Any, value: Any) -> Any:
    rule = _RULES.get(key) if isinstance(key, str) else None
    if rule is None:
        known = ", ".join(sorted(_RULES))
        raise BadHeadersError(
            f"unknown header {_BRIEF.repr(key)}; known are {known}; your own go under 'headers'"
        )
    try:
        return rule.read(value)
    except ValueError as error:
        raise _wrong(key, value, error) from error


def _wrong(key: str, value: Any, expected: object) -> BadHeadersError:
    return BadHeadersError(f"header {key!r} is {_BRIEF.repr(value)}, expected {expected}")
