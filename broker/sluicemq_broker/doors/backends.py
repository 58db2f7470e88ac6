"""Where workers connect with plain sockets: REP at a QUEUE, PULL at a STREAMER.

Every connection is a lane of its own, so that a job goes to the worker that is free
and to nobody else, and a worker that dies is noticed when its connection ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.config import Ack, DeviceSettings
from sluicemq_broker.doors.frontends import FRAME_FACTOR
from sluicemq_broker.doors.lane_workers import ArrivalWorker, LaneWorker, PopWorker, PullWorker, RepWorker
from sluicemq_broker.doors.services import Services
from sluicemq_broker.doors.worker_frames import commit_frames, unreadable
from sluicemq_broker.queue import Delivery, Settlement, Verdict, Worker
from sluicemq_broker.runtime import Count
from sluicemq_devices.hub import Watermark
from sluicemq_devices.sockets import Endpoint, Lane, LaneDoor

#: Unsettled jobs at one PULL worker, at most, where no number is given; with ``auto`` jobs removed at once.
#: One with room commits within a round trip, in which it gets no more than these: on a machine where it waits
#: 50 ms for its turn, 64 would be 1,300 jobs/s. To one without room far fewer are sent.
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
        self.unsettled = 0
        self.unsettled_bytes = 0
        self._workers: set[LaneWorker] = set()
        self.max_frame = FRAME_FACTOR * services.settings.max_job_bytes
        self._services = services
        self.commit_doors: list[LaneDoor] = []
        self.doors = [self._lanes(endpoint) for endpoint in settings.backends]

    @property
    def prefetch(self) -> int:
        """Unsettled jobs at one worker, at most; of those that pop, jobs removed at once for one."""
        return self.settings.prefetch or PREFETCH[self.settings.ack]

    @property
    def connections(self) -> int:
        """How many are open."""
        return sum(door.connections for door in self._all())

    @property
    def beats(self) -> bool:
        """True if workers are told from dead ones by heartbeats.

        Not those that pop: one that doesn't read for a while answers none, and would lose what lies
        on its way for nothing.
        """
        return self.kind == "DEALER" or self.settings.ack != Ack.AUTO

    @property
    def room(self) -> int:
        """How many more deliveries the device's high-water marks allow."""
        return 0 if self.unsettled_bytes >= self.settings.hwm_bytes else self.settings.hwm - self.unsettled

    def came(self, worker: LaneWorker) -> None:
        """A worker has connected: it is offered again when the marks have room again."""
        self._workers.add(worker)

    def left(self, worker: LaneWorker) -> None:
        """Its connection has ended."""
        self._workers.discard(worker)

    def posted(self, count: int) -> None:
        """So many jobs were given to a worker of this device."""
        self.sent += count

    def took(self, deliveries: Sequence[Delivery]) -> None:
        """These are under way at a worker of this device."""
        self.posted(len(deliveries))
        self.unsettled += len(deliveries)
        self.unsettled_bytes += sum([each.job.size for each in deliveries])

    def freed(self, delivery: Delivery) -> None:
        """It has ended; workers that the marks had turned away are offered again."""
        was_full = self.room <= 0
        self.unsettled -= 1
        self.unsettled_bytes -= delivery.job.size
        if was_full and self.room > 0:
            for worker in list(self._workers):
                self.queue.offer(worker)

    def start(self) -> None:
        """Open the doors."""
        for door in self._all():
            door.start()

    def stop(self) -> None:
        """Close the doors; verdicts that were sent before are still taken."""
        for door in self._all():
            door.stop()

    def _all(self) -> list[LaneDoor]:
        return [*self.doors, *self.commit_doors]

    def _lanes(self, endpoint: Endpoint) -> LaneDoor:
        return LaneDoor(
            self._services.board,
            endpoint,
            self.kind,
            lambda lane: self.queue.attach(self._worker(lane)),
            max_frame=self.max_frame,
            heartbeat=self._services.settings.heartbeat if self.beats else None,
            silence=self._services.settings.silence if self.beats else None,
        )

    def _worker(self, lane: Lane) -> Worker:
        raise NotImplementedError


class RepBackend(Backend):
    """DEALER lanes for REP workers: one job at a time each, answered on the same connection."""

    kind = "DEALER"
    prefetch = 1

    def _worker(self, lane: Lane) -> Worker:
        return RepWorker(self, lane)


class PullBackend(Backend):
    """PUSH lanes for PULL workers, and with ``ack = "explicit"`` the door where they commit."""

    kind = "PUSH"

    def __init__(self, settings: DeviceSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.commit_doors = [
            LaneDoor(services.board, endpoint, "PULL", self._listen, max_frame=self.max_frame)
            for endpoint in settings.commits
        ]
        self._mark = Watermark(settings.hwm, settings.hwm_bytes, self._close_gates, self._open_gates)

    def _close_gates(self) -> None:
        for door in self.commit_doors:
            door.pause()

    def _open_gates(self) -> None:
        for door in self.commit_doors:
            door.resume()

    def _worker(self, lane: Lane) -> Worker:
        return _WORKERS[self.settings.ack](self, lane)

    def _listen(self, lane: Lane) -> None:
        lane.on(receive=partial(self._verdicts, lane))

    def _verdicts(self, lane: Lane, messages: list[list[bytes]]) -> None:
        verdicts = [verdict for frames in messages if (verdict := self._verdict(lane, frames))]
        size = sum(each.size for each in verdicts)
        self._mark.take(len(verdicts), size)
        self.queue.settle(verdicts, Settlement(lambda _: self._mark.give(len(verdicts), size)))

    def _verdict(self, lane: Lane, frames: list[bytes]) -> Verdict | None:
        """What a worker says; if it can't be read, the job whose receipt it names, if any, is given back."""
        try:
            return commit_frames(frames)
        except SluiceError as error:
            lane.blame()
            self.counters.notice(
                Count.BAD_VERDICTS, f"at the commit door of queue {self.queue.name}: {error}"
            )
            return unreadable(frames[1], error) if len(frames) > 1 else None
