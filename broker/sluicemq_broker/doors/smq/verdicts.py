"""The verbs SETTLE, EXTEND and PROGRESS, about the jobs of a session's workers."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from sluicemq.protocol import wire
from sluicemq.protocol.durations import TEN_YEARS
from sluicemq.protocol.errors import BadFramesError, LeaseLostError, SluiceError
from sluicemq_broker.doors.requests import MOST_UNREAD
from sluicemq_broker.doors.smq.fields import (
    Fields,
    check_count,
    listed,
    progress_entry,
    take,
    verdict_entry,
)
from sluicemq_broker.doors.worker_frames import charge_jobs, unreadable
from sluicemq_broker.queue import Queue, Settlement, Verdict
from sluicemq_broker.runtime import Count

if TYPE_CHECKING:
    from sluicemq_broker.doors.smq.sessions import Session
    from sluicemq_broker.doors.smq.workers import SessionWorker

#: Refusals, by the positions of what is refused.
Problems = dict[int, SluiceError]


class Verdicts:
    """Verdicts, more time and progress for the jobs of one session.

    A request is answered with what is refused, once all else is durable.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def settle(self, number: int, fields: Fields) -> None:
        """End deliveries."""
        (entries,) = take(fields, list)
        check_count(entries, "a SETTLE", "verdicts")
        whole = Settlement(partial(self._answer, number))
        found = self._by_queue(entries, whole)
        for queue, verdicts in found.items():
            charge_jobs(self._session.caller, verdicts.values())
            whole.expect(1)
            part = Settlement(partial(whole.join, list(verdicts)))
            queue.settling.settle(list(verdicts.values()), part)
        whole.close()

    def extend(self, number: int, fields: Fields) -> None:
        """Give deliveries more time."""
        receipts, seconds = take(fields, list, int | float)
        if not 0 < seconds <= TEN_YEARS:
            raise BadFramesError(f"{seconds} is no number of seconds above 0")
        check_count(receipts, "an EXTEND", "receipts")
        if not all(isinstance(receipt, bytes) for receipt in receipts):
            raise BadFramesError("a receipt is bin, as DELIVER gave it")
        workers = self._workers(receipts)
        problems: Problems = {}
        for at, receipt in enumerate(receipts):
            worker = workers.get(receipt)
            if not (worker and worker.queue.settling.extend(receipt, worker, seconds)):
                problems[at] = _void()
        self._answer(number, problems)

    def commit_in(self, number: int, fields: Fields) -> None:
        """Answer how a job is ended within a transaction of the client's own; MongoDB may be asked before."""
        receipt, size = take(fields, bytes, int)
        if size < 0:
            raise BadFramesError(f"{size} is no number of bytes")
        requests = self._session.requests
        requests.later.add(partial(requests.answer, number, partial(self._statements, receipt, size)))
        if len(requests.later) > MOST_UNREAD:
            self._session.pause_reading()

    def _statements(self, receipt: bytes, size: int) -> bytes:
        worker = self._workers([receipt]).get(receipt)
        statements = worker.queue.settling.statements_of_end(receipt, worker, size) if worker else None
        if statements is None:
            raise _void()
        return statements

    def progress(self, number: int, fields: Fields) -> None:
        """Note how far jobs are."""
        (entries,) = take(fields, list)
        check_count(entries, "a PROGRESS", "jobs")
        reports = [progress_entry(entry) for entry in entries]
        workers = self._workers([receipt for receipt, *_ in reports])
        problems: Problems = {}
        for at, (receipt, done, total, note) in enumerate(reports):
            worker = workers.get(receipt)
            if not (worker and worker.queue.progress.report(receipt, worker, done, total, note)):
                problems[at] = _void()
        self._answer(number, problems)

    def _answer(self, number: int, problems: Problems) -> None:
        self._session.send(wire.OK, number, listed(problems))

    def _by_queue(self, entries: list[Any], whole: Settlement) -> dict[Queue, dict[int, Verdict]]:
        """Return the verdicts of each queue by their positions.

        An unreadable one is refused, and rolls back the job of its receipt.
        """
        verdicts: dict[int, Verdict] = {}
        counters = self._session.counters
        workers = self._workers([receipt for entry in entries if (receipt := _receipt_of(entry))])
        for at, entry in enumerate(entries):
            try:
                verdicts[at] = verdict_entry(entry, in_full=_receipt_of(entry) in workers)
            except BadFramesError as error:
                counters.notice(Count.BAD_VERDICTS, f"from {self._session.name}: {error}")
                whole.refuse(at, error.with_traceback(None))
                if receipt := _receipt_of(entry):
                    verdicts[at] = unreadable(receipt, error)
        queues = {worker.queue for worker in workers.values()}
        if len(queues) == 1 and len(workers) == len(verdicts):  # nearly always
            return {queues.pop(): verdicts}
        groups: dict[Queue, dict[int, Verdict]] = {}
        for at, verdict in verdicts.items():
            worker = workers.get(verdict.receipt)
            if worker:
                groups.setdefault(worker.queue, {})[at] = verdict
            elif at not in whole.problems:
                counters.add(Count.LATE_VERDICTS)
                whole.refuse(at, _void())
        return groups

    def _workers(self, receipts: Collection[bytes]) -> dict[bytes, SessionWorker]:
        """Return the worker that has each delivery; a client that names none is read after all others."""
        workers = self._session.assignments.with_receipts(receipts)
        if receipts and not workers:
            self._session.lane.blame(malformed=False)
        return workers


def _receipt_of(entry: Any) -> bytes | None:
    return entry[0] if isinstance(entry, list) and entry and isinstance(entry[0], bytes) else None


def _void() -> LeaseLostError:
    return LeaseLostError("this receipt is void: the delivery has ended")
