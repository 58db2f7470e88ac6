"""The doors where workers connect with plain sockets: REP at a QUEUE, PULL at a STREAMER.

Every connection is a lane of its own: a job goes to one worker that is free, and a worker that dies is
noticed when its connection ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from sluicemq.protocol.errors import SluiceError
from sluicemq.protocol.permissions import Action
from sluicemq_broker.config import Ack, DeviceSettings
from sluicemq_broker.doors.door_group import DoorGroup
from sluicemq_broker.doors.frames import FRAME_FACTOR
from sluicemq_broker.doors.lane_workers import ArrivalWorker, LaneWorker, PopWorker, PullWorker, RepWorker
from sluicemq_broker.doors.services import Services
from sluicemq_broker.doors.worker_frames import charge_jobs, commit_frames, unreadable
from sluicemq_broker.queue import Marks, Settlement, Verdict, Worker
from sluicemq_broker.runtime import Count
from sluicemq_broker.security import may_stay
from sluicemq_devices.hub import Watermark
from sluicemq_devices.sockets import Endpoint, Lane, LaneDoor

#: Unsettled jobs at one PULL worker where no prefetch is set; with ``auto`` jobs removed in one statement.
#: A worker commits within a round trip and gets no more jobs in it: on a machine where it waits 50 ms for its
#: turn, 64 would be 1,300 jobs/s. A worker that does not read gets far fewer.
PREFETCH: Final[Mapping[str, int]] = {Ack.RECEIVED: 256, Ack.AUTO: 64, Ack.EXPLICIT: 1}
_WORKERS: Final[Mapping[str, type[LaneWorker]]] = {
    Ack.RECEIVED: ArrivalWorker,
    Ack.AUTO: PopWorker,
    Ack.EXPLICIT: PullWorker,
}


class Backend:
    """The doors of one device where workers connect."""

    kind: str

    def __init__(self, settings: DeviceSettings, services: Services) -> None:
        self.queue = services.queues.open(settings.queue)
        self.settings = settings
        self.counters = services.counters
        self.now = services.timer.now
        self.sent = 0
        self.marks = Marks(settings.hwm, settings.hwm_bytes)
        self.max_frame = FRAME_FACTOR * services.settings.max_job_bytes
        self._services = services
        self.doors = DoorGroup(self._door(endpoint) for endpoint in settings.backends)
        self.commit_doors = DoorGroup(())

    @property
    def prefetch(self) -> int:
        """Unsettled jobs at one worker at most; for popping workers, jobs removed in one statement."""
        return self.settings.prefetch or PREFETCH[self.settings.ack]

    @property
    def connections(self) -> int:
        """Open connections."""
        return self.doors.connections + self.commit_doors.connections

    @property
    def has_heartbeats(self) -> bool:
        """True if heartbeats tell dead workers from live ones.

        A popping worker that doesn't read for a while answers none, and would lose the jobs on its way.
        """
        return self.kind == "DEALER" or self.settings.ack != Ack.AUTO

    def start(self) -> None:
        """Open the doors."""
        self.doors.start()
        self.commit_doors.start()

    def stop(self) -> None:
        """Close the doors; verdicts that were sent before are still read."""
        self.doors.stop()
        self.commit_doors.stop()

    def _door(self, endpoint: Endpoint) -> LaneDoor:
        settings = self._services.settings
        return LaneDoor(
            self._services.board,
            endpoint,
            self.kind,
            self._attach,
            max_frame=self.max_frame,
            heartbeat=settings.heartbeat if self.has_heartbeats else None,
            silence=settings.silence if self.has_heartbeats else None,
            guard=self._services.security.guard(endpoint, self.settings),
        )

    def _attach(self, lane: Lane) -> None:
        if may_stay(lane, Action.WORK, self.queue.name):
            self.queue.attach(self._worker(lane))

    def _worker(self, lane: Lane) -> Worker:
        raise NotImplementedError


class RepBackend(Backend):
    """DEALER doors for REP workers: one job at a time for each, answered on its connection."""

    kind = "DEALER"
    prefetch = 1

    def _worker(self, lane: Lane) -> Worker:
        return RepWorker(self, lane)


class PullBackend(Backend):
    """PUSH doors for PULL workers, and with ``ack = "explicit"`` the doors where they commit."""

    kind = "PUSH"

    def __init__(self, settings: DeviceSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.commit_doors = DoorGroup(
            LaneDoor(
                services.board,
                endpoint,
                "PULL",
                self._open_commits,
                max_frame=self.max_frame,
                guard=services.security.guard(endpoint, settings),
            )
            for endpoint in settings.commits
        )
        self._mark = Watermark(
            settings.hwm, settings.hwm_bytes, self.commit_doors.pause, self.commit_doors.resume
        )

    def _worker(self, lane: Lane) -> Worker:
        return _WORKERS[self.settings.ack](self, lane)

    def _open_commits(self, lane: Lane) -> None:
        if may_stay(lane, Action.WORK, self.queue.name):
            lane.on(receive=partial(self._verdicts, lane))

    def _verdicts(self, lane: Lane, messages: list[list[bytes]]) -> None:
        read = (verdict for frames in messages if (verdict := self._verdict(lane, frames)))
        verdicts = [verdict for verdict in read if self._commits_here(lane, verdict.receipt)]
        if verdicts and not any(self.queue.deliveries.has_receipt(verdict.receipt) for verdict in verdicts):
            lane.blame(malformed=False)
        size = sum(verdict.size for verdict in verdicts)
        self._mark.take(len(verdicts), size)
        charge_jobs(lane.who, verdicts)
        durable = Settlement(lambda _: self._mark.give(len(verdicts), size), lane.who)
        self.queue.settling.settle(verdicts, durable)

    def _verdict(self, lane: Lane, frames: list[bytes]) -> Verdict | None:
        """Read a verdict; an unreadable one with a receipt rolls that job back."""
        try:
            return commit_frames(frames, self.queue.deliveries.has_receipt)
        except SluiceError as error:
            lane.blame()
            self.counters.notice(
                Count.BAD_VERDICTS, f"at the commit door of queue {self.queue.name}: {error}"
            )
            return unreadable(frames[1], error) if len(frames) > 1 else None

    def _commits_here(self, lane: Lane, receipt: bytes) -> bool:
        """Return False for the receipt of a worker that answers on its own connection: it is made up."""
        worker = self.queue.deliveries.worker_of(receipt)
        if worker is None or isinstance(worker, PullWorker):
            return True
        lane.blame()
        text = f"at the commit door of queue {self.queue.name}: its worker {worker.name} answers elsewhere"
        self.counters.notice(Count.BAD_VERDICTS, text)
        return False
