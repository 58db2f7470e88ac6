"""The verb RESULT: a session asks for what became of a job, and waits for it up to a deadline."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final

import gevent

from sluicemq.protocol.errors import QueueFull, Timeout
from sluicemq_broker.doors.refusals import refusal
from sluicemq_broker.queue import Outcome, Queue
from sluicemq_broker.queues import Queues
from sluicemq_broker.runtime import Batcher
from sluicemq_devices.hub import nothing

#: Results that one session may wait for at once.
MOST_ASKED: Final = 10_000
#: Questions of all sessions that are looked up at once, about: as many as one statement takes. A session that
#: asks thousands has its share of them, and some at least.
LOOKED_UP_AT_ONCE: Final = 960
_LEAST: Final = 16
_STALE: Final = 1000  # deadlines of questions answered before, kept until there are more of them than others


class LookUps:
    """The questions of all sessions that are looked up: each session has as many at once as any other."""

    def __init__(self) -> None:
        self.sessions = 0
        """Sessions of which any is looked up."""

    @property
    def each(self) -> int:
        """How many one session may have."""
        return max(_LEAST, LOOKED_UP_AT_ONCE // max(1, self.sessions))


class Results:
    """The questions of one session. ``reply`` gets a request's number and its outcome, once.

    ``later`` runs what has to ask MongoDB whether there is such a queue; ``now``: monotonic seconds. A few
    questions are looked up at once, the others after them. One timer in all, for the earliest deadline; it
    exists only while a question waits for a job.
    """

    def __init__(
        self,
        queues: Queues,
        later: Batcher[Callable[[], None]],
        reply: Callable[[int, Outcome], None],
        now: Callable[[], float],
        look_ups: LookUps,
        drained: Callable[[], None] = nothing,
    ) -> None:
        """``drained`` is called when all questions are looked up."""
        self._queues = queues
        self._later = later
        self._reply = reply
        self._now = now
        self._look_ups = look_ups
        self._drained = drained
        self._gone = False
        self._asked: set[_Asked] = set()
        self._looked_up: set[_Asked] = (
            set()
        )  # of these, those of which MongoDB has not said yet what it knows
        self._next: deque[_Asked] = deque()  # those that are looked up after them
        self._deadlines: list[tuple[float, int, _Asked]] = []
        self._count = 0
        self._timer: gevent.Greenlet[..., None] | None = None
        self._due = 0.0

    @property
    def waiting(self) -> int:
        """Questions that are looked up after others."""
        return len(self._next)

    def ask(self, number: int, name: str, job_id: str, wait: float) -> None:
        """Reply with the result of a job, once it has one; up to ``wait`` seconds from now."""
        if len(self._asked) >= MOST_ASKED:
            raise QueueFull(f"{MOST_ASKED} questions of this session wait for results: ask again later")
        until = self._now() + wait
        queue = self._queues.known(name)
        if queue:
            self._ask(number, queue, job_id, until)
        else:
            self._later.add(partial(self._ask_unknown, number, name, job_id, until))

    def forget(self) -> None:
        """The session has gone."""
        self._gone = True
        for asked in self._asked.difference(self._next):
            asked.forget()
        self._asked.clear()
        self._look_ups.sessions -= bool(self._looked_up)
        self._looked_up.clear()
        self._next.clear()
        self._deadlines.clear()
        self._stop_timer()

    def answered(self, asked: _Asked, outcome: Outcome) -> None:
        """What became of the job."""
        self._asked.discard(asked)
        self._has_been_looked_up(asked)
        self._reply(asked.number, outcome)
        if len(self._deadlines) > 2 * len(self._asked) + _STALE:
            self._deadlines = [each for each in self._deadlines if each[2] in self._asked]
            heapify(self._deadlines)

    def on_its_way(self, asked: _Asked) -> None:
        """The job has not ended, so the deadline counts."""
        self._has_been_looked_up(asked)
        self._count += 1
        heappush(self._deadlines, (asked.deadline, self._count, asked))
        self._set_timer()

    def _ask(self, number: int, queue: Queue, job_id: str, until: float) -> None:
        asked = _Asked(self, number, queue, job_id, until)
        self._asked.add(asked)
        if len(self._looked_up) < self._look_ups.each:
            self._look_up(asked)
        else:
            self._next.append(asked)

    def _look_up(self, asked: _Asked) -> None:
        self._look_ups.sessions += not self._looked_up
        self._looked_up.add(asked)
        asked.queue.results.find(asked.job_id, asked.answer, asked.on_its_way)

    def _has_been_looked_up(self, asked: _Asked) -> None:
        """Look up the next one."""
        if asked not in self._looked_up:
            return
        self._looked_up.discard(asked)
        self._look_ups.sessions -= not self._looked_up
        while self._next and len(self._looked_up) < self._look_ups.each:
            self._look_up(self._next.popleft())
        if not self._looked_up:
            self._drained()

    def _ask_unknown(self, number: int, name: str, job_id: str, until: float) -> None:
        """Another broker may have made the queue."""
        try:
            queue = self._queues.get(name)
            if not self._gone:
                self._ask(number, queue, job_id, until)
        except Exception as error:  # noqa: BLE001 - the client must have an answer
            self._reply(number, refusal(error))

    def _set_timer(self) -> None:
        due = self._deadlines[0][0]
        if self._timer is None or due < self._due:
            self._stop_timer()
            self._due = due
            self._timer = gevent.spawn_later(max(0.0, due - self._now()), self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.kill(block=False)
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        now = self._now()
        while self._deadlines and self._deadlines[0][0] <= now:
            asked = heappop(self._deadlines)[2]
            if asked in self._asked:
                asked.forget()
                so_far = f" ({asked.progress})" if asked.progress else ""
                self.answered(asked, Timeout(f"job {asked.job_id} has not ended yet{so_far}: ask again"))
        if self._deadlines:
            self._set_timer()


class _Asked:
    """One question: which request, which job, how long."""

    __slots__ = ("deadline", "job_id", "number", "progress", "queue", "results")

    def __init__(self, results: Results, number: int, queue: Queue, job_id: str, deadline: float) -> None:
        self.results = results
        self.number = number
        self.queue = queue
        self.job_id = job_id
        self.deadline = deadline
        self.progress = ""

    def answer(self, outcome: Outcome) -> None:
        """The job has ended, or is not there."""
        self.results.answered(self, outcome)

    def on_its_way(self, progress: str) -> None:
        """It has not ended yet."""
        self.progress = progress
        self.results.on_its_way(self)

    def forget(self) -> None:
        """Nobody asks any more."""
        self.queue.results.stop(self.job_id, self.answer)
