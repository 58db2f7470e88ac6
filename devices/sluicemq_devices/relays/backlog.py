"""The base of STREAMER and QUEUE: messages are dealt to workers, and held while none takes them."""

from __future__ import annotations

import abc
from collections import OrderedDict, deque
from functools import partial
from itertools import islice

from sluicemq_devices.hub import Watermark, nothing
from sluicemq_devices.relays.device import HWM, HWM_BYTES, Device
from sluicemq_devices.sockets import Endpoint, Guards, RawDoor, RawLane, Switchboard, open_to_all

_RUN = 65_536  # bytes of held messages dealt at once: messages that a lane can't send wait in the lane


class HoldingDevice(Device):
    """Messages that no worker takes are held up to the marks; then the clients are not read."""

    kinds: tuple[str, str]
    """Socket types of the frontend and of the backend."""
    envelope = 0
    """Bytes of the envelope that is added to what a client sent."""

    def __init__(
        self,
        board: Switchboard,
        frontend: Endpoint,
        backend: Endpoint,
        *,
        hwm: int = HWM,
        hwm_bytes: int = HWM_BYTES,
        guard: Guards = open_to_all,
    ) -> None:
        """``guard(end)``: guard of the door at this end."""
        front, back = self.kinds
        self._board = board
        self._held: deque[bytes] = deque()
        self.mark = Watermark(hwm, hwm_bytes, full=self._pause, drained=self._resume)
        self._team: set[RawLane] = set()
        self.free: OrderedDict[RawLane, None] = OrderedDict()
        self.workers = RawDoor(
            board,
            backend,
            back,
            self.on_worker,
            max_frame=hwm_bytes + self.envelope,
            guard=guard(backend),
        )
        self.clients = RawDoor(
            board,
            frontend,
            front,
            self._client_came,
            max_frame=hwm_bytes,
            held=lambda _: Watermark(hwm, hwm_bytes, nothing, nothing),
            guard=guard(frontend),
        )
        super().__init__([self.clients], [self.workers])

    @property
    def backlog(self) -> int:
        """Messages that no worker has taken yet."""
        return self.mark.count + sum(lane.backlog for lane in self._team)

    @abc.abstractmethod
    def _client_came(self, lane: RawLane) -> None:
        """Set the callbacks of a new client."""

    def _answer(self, messages: list[bytes]) -> None:
        """Take messages of workers: PULL workers send none."""

    def take(self, messages: list[bytes]) -> None:
        """Deal messages of a client, or hold them; while messages are held no worker is free."""
        if self.free:
            self._deal(messages)
        else:
            self._hold(messages)

    def on_worker(self, lane: RawLane) -> None:
        """Deal to this worker from now on."""
        self._team.add(lane)
        lane.on(
            receive=self._answer,
            closed=partial(self.on_worker_gone, lane),
            unblocked=partial(self.on_room, lane),
        )
        self.on_room(lane)

    def on_worker_gone(self, lane: RawLane) -> None:
        """Give the messages that it has not received whole to others."""
        self._team.discard(lane)
        self.free.pop(lane, None)
        left = lane.unsent
        self._held.extendleft(reversed(left))
        self.mark.take(len(left), sum(map(len, left)))
        self._deal_held()

    def on_room(self, lane: RawLane) -> None:
        """Deal what is held to a worker whose connection takes more."""
        if lane.writable:
            self.free[lane] = None
            self._deal_held()

    def _deal_held(self) -> None:
        while self._held and self.free:
            run, size = [], 0
            while self._held and size < _RUN:
                run.append(self._held.popleft())
                size += len(run[-1])
            self._deal(run)
            self.mark.give(len(run), size)

    def _deal(self, messages: list[bytes]) -> None:
        """Give each message to the next worker in turn, as ZeroMQ's PUSH does, but many with one call.

        A worker whose connection takes no more gets its part of these messages, too: they wait in
        its lane.
        """
        free, count = self.free, len(messages)
        turn = len(free)
        lanes = list(islice(free, count))
        for at, lane in enumerate(lanes):
            lane.post(messages[at::turn])
        for lane in lanes[: count % turn]:  # those that got one more were last
            free.move_to_end(lane)
        for lane in lanes:
            if not lane.writable:
                free.pop(lane, None)

    def _hold(self, messages: list[bytes]) -> None:
        self._held.extend(messages)
        self.mark.take(len(messages), sum(map(len, messages)))

    def _pause(self) -> None:
        self.clients.pause()

    def _resume(self) -> None:
        self.clients.resume()
