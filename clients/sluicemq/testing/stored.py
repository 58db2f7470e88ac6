"""Jobs as a broker in memory keeps them."""

from __future__ import annotations

from typing import Any, Final

from sluicemq_broker.job import ERRORS_KEPT, SCHEDULED, ChildEnd, Job, State

#: Attributes of a job that are shown as they are.
_SHOWN: Final = (
    *("id", "priority", "attempts", "max_attempts", "visibility_timeout", "created_at", "eligible_at"),
    *("expires_at", "group", "tenant", "seq"),
)


class Children:
    """The children for which a job waits: how many, how many are not done, and its result then.

    ``room``: bytes that they may still return to a job that joins them; None: it is done with the last one.
    """

    __slots__ = ("ends", "left", "result", "room", "total")

    def __init__(self, total: int, result: bytes, room: int | None) -> None:
        self.total = self.left = total
        self.result = result
        self.room = room
        self.ends: list[ChildEnd] = []

    def count_down(self, end: ChildEnd) -> bool:
        """Note that one is done; True: it was the last one."""
        if self.room is not None:
            noted, size = end.within(self.room)
            self.room -= size
            self.ends.append(noted)
        self.left -= 1
        return self.left == 0


class StoredJob:
    """One job, its state and what became of it; times are Unix seconds of the broker's clock."""

    __slots__ = (
        "children", "ended_at", "errors", "expired", "forwarded_to", "job", "progress", "remove_at", "result",
        "state", "worker",
    )  # fmt: skip

    def __init__(self, job: Job) -> None:
        self.job = job
        self.state = State.READY if job.group is None else State.WAITING
        self.errors: list[dict[str, Any]] = []
        self.result: bytes | None = None
        self.ended_at: float | None = None
        self.remove_at: float | None = None
        self.children: Children | None = None
        self.forwarded_to: str | None = None
        self.progress: dict[str, Any] | None = None
        self.worker = ""
        self.expired = False

    @property
    def ended(self) -> bool:
        """Return whether it is done or a dead letter."""
        return self.state in (State.DONE, State.DEAD)

    @property
    def order(self) -> tuple[int, float, int]:
        """Return its place among the jobs that are due."""
        return -self.job.priority, self.job.eligible_at, self.job.seq

    @property
    def reason(self) -> str:
        """Return why it failed last."""
        return self.errors[-1]["reason"] if self.errors else ""

    def failed(self, reason: str, worker: str, now: float) -> None:
        """Note a failure."""
        error = {"at": now, "attempt": self.job.attempts, "reason": reason, "worker": worker or None}
        self.errors = [*self.errors, error][-ERRORS_KEPT:]

    def shown_state(self, now: float) -> str:
        """Return the state in which it is shown."""
        later = self.state is State.READY and self.job.eligible_at > now
        return SCHEDULED if later else self.state.value

    def row(self, now: float, first: int | None = None) -> dict[str, Any]:
        """Return it as SHOW and PEEK answer it; ``first``: bytes of its payload and result."""
        job, result = self.job, self.result or b""
        found = {name: getattr(job, name) for name in _SHOWN} | {
            "state": self.shown_state(now),
            "payload": job.payload[:first],
            "payload_bytes": len(job.payload) if first is not None and first < len(job.payload) else None,
            "result": result[:first] if self.state is State.DONE else None,
            "ended_at": self.ended_at,
            "remove_at": self.remove_at,
            "keep_done": job.keep_done or None,
            "unanswered": job.unanswered or None,
            "worker": self.worker if self.state is State.RESERVED else None,
            "done_by": self.worker if self.state is State.DONE else None,
            "dedupe_id": job.dedupe.id if job.dedupe else None,
            "headers": dict(job.headers) if job.headers else None,
            "errors": self.errors or None,
            "progress": self.progress,
            "children": {"total": self.children.total, "left": self.children.left} if self.children else None,
            "parent": {"queue": job.parent.queue, "id": job.parent.id} if job.parent else None,
            "forwarded_to": self.forwarded_to,
        }
        return {key: value for key, value in found.items() if value is not None}
