"""Producers of the load: by the library, by plain sockets, and those that wait for results."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Final, Self

import zmq

from chaos import features
from chaos.books import (
    ANSWERED,
    CALLED,
    CANCELLED,
    CONFIRMED,
    MISSED,
    ORDERED,
    PUSHED,
    REFUSED,
    REJECT,
    ROLLBACK,
)
from chaos.features import Feature
from chaos.life import Life
from sluicemq import Client, NotFoundError, Producer, PushReceipt, SluiceError, TimeoutError

#: Keys of ordered jobs, and tenants, of each life of a producer.
_KEYS: Final = 4
_TENANTS: Final = ("ada", "ben", "cleo")
#: Seconds that a call waits for its result.
_CALL: Final = 8.0
#: Milliseconds after which a REQ socket asks again, at another broker.
_ASK_AGAIN: Final = 2500
#: Jobs of a burst that are cancelled or changed by their ids.
_ORDERS: Final = 4


def producer(life: Life) -> None:
    """Push to all queues of the library's producers; each push is booked before, and once it is confirmed."""
    receipts: queue.SimpleQueue[PushReceipt | None] = queue.SimpleQueue()
    with Producer(on_refused=lambda *_: None, endpoint=life.endpoints) as pushing:
        life.begin(_confirm, life, receipts)
        life.begin(_push_bursts, life, pushing)
        for name, number in _paced(life, features.PUSHED_BY_LIBRARY):
            id_ = life.new_id(name, number)
            options, fate = _of_job(life, name, number)
            life.book.note(PUSHED, name, id_, **fate)
            receipts.put(pushing.push(name, id_.encode(), id=id_, **options))
        receipts.put(None)
        life.wait()


def _confirm(life: Life, receipts: queue.SimpleQueue[PushReceipt | None]) -> None:
    while (receipt := receipts.get()) is not None:
        _settle_push(life, receipt, receipt.id)


def _settle_push(life: Life, receipt: PushReceipt, name: str) -> bool:
    """Book under this name what becomes of a push, and return whether it was confirmed."""
    while True:
        try:
            receipt.wait(5)
        except TimeoutError:
            continue
        except SluiceError as error:
            life.book.note(REFUSED, receipt.queue, name, code=error.code)
            return False
        life.book.note(CONFIRMED, receipt.queue, name, existed=receipt.existed, job=receipt.id)
        return True


def _of_job(life: Life, name: str, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a push, and what its line in the book says besides."""
    if name == features.ORDERS:
        key, place = f"{life.program}-{life.number}-{number % _KEYS}", number // _KEYS
        return {"group": key}, {"key": key, "place": place}
    if name == features.TENANTS:
        tenant = life.random.choice(_TENANTS)
        return {"tenant": tenant}, {"tenant": tenant}
    if name == features.DEDUPED:
        work = f"{life.number}-{number}"  # that of the other producer's job of this number
        return {"dedupe_id": work}, {"work": work}
    if name == features.FAILING:
        fate = {0: REJECT, 1: ROLLBACK}.get(number % features.FAILS_OF, "")
        return {"headers": {"fate": fate}}, {"fate": fate}
    return {}, {}


def _paced(life: Life, chosen: Mapping[str, Feature], share: float = 0.5) -> Iterator[tuple[str, int]]:
    """Yield queues, each as often as its rate says, with a number that counts its jobs, until the end.

    ``share``: this program's part of the rates.
    """
    numbers = {name: count() for name in chosen}
    names = [name for name, feature in chosen.items() for _ in range(max(1, round(4 * feature.rate)))]
    rate = sum(feature.rate for feature in chosen.values()) * life.pace * share
    next_at = time.monotonic()
    while True:
        life.random.shuffle(names)
        for name in names:
            life.wait_for_room()
            next_at = max(next_at + 1 / rate, time.monotonic() - 1.0)
            if life.over.wait(max(0.0, next_at - time.monotonic())):
                return
            yield name, next(numbers[name])


# ------------------------------------------------------------------ bursts


def _push_bursts(life: Life, pushing: Producer) -> None:
    """Push many jobs without ids at a time, and give orders about some of those that are confirmed."""
    with Client(timeout=5.0, endpoint=life.endpoints) as client:
        for burst in _bursts(life, features.BURSTS, 0.5):
            receipts = pushing.push_many(features.BURSTS, [name.encode() for name in burst])
            settled = zip(burst, receipts, strict=True)
            confirmed = [(name, receipt.id) for name, receipt in settled if _settle_push(life, receipt, name)]
            for name, job in life.random.sample(confirmed, min(_ORDERS, len(confirmed))):
                _order(life, client, name, job)


def _bursts(life: Life, queue: str, share: float) -> Iterator[list[str]]:
    """Yield payloads, booked as pushed, as often as the rate of their queue says, until the end."""
    sent, rate = 0, features.PACKED[queue].rate * life.pace * share
    while True:
        size = life.random.randint(*features.BURST_OF)
        if life.over.wait(size / rate):
            return
        life.wait_for_room()
        burst = [life.new_id(queue, number) for number in range(sent, sent + size)]
        for name in burst:
            life.book.note(PUSHED, queue, name, fate=features.fate_in_pack(name))
        yield burst
        sent += size


def _order(life: Life, client: Client, name: str, job: str) -> None:
    """Cancel a job while nobody has it, or whoever has it, or give it another priority."""
    order = life.random.choice(("cancel", "cancel running", "change"))
    life.book.note(ORDERED, features.BURSTS, name, order=order)
    try:
        if order == "change":
            client.jobs.change(features.BURSTS, job, priority=life.random.randint(0, 9))
        else:
            client.jobs.cancel(features.BURSTS, job, running=order == "cancel running")
            life.book.note(CANCELLED, features.BURSTS, name, order=order)
    except NotFoundError:
        life.book.note(MISSED, features.BURSTS, name, order=order)
    except SluiceError:  # it may have been carried out
        return


# ------------------------------------------------------------------ results


def asker(life: Life) -> None:
    """Ask for results: by futures, and by calls that have a time of their own."""
    with Producer(on_refused=lambda *_: None, endpoint=life.endpoints) as asking:
        life.begin(_call, life, asking)
        open_ones: list[Future[bytes]] = []
        for name, number in _paced(life, features.ASKED_OF_LIBRARY, 0.8):
            id_ = life.new_id(name, number)
            life.book.note(PUSHED, name, id_)
            future = asking.submit(name, id_.encode(), id=id_)
            future.add_done_callback(partial(_answered, life, name, id_))
            open_ones = [future for future in (*open_ones, future) if not future.done()]
        for unfinished in open_ones:
            unfinished.exception()
        life.wait()


def _answered(life: Life, name: str, id_: str, done: Future[bytes]) -> None:
    error = done.exception()
    if error is None:
        life.book.note(ANSWERED, name, id_, result=done.result().decode())
    else:
        life.book.note(REFUSED, name, id_, code=getattr(error, "code", repr(error)))


def _call(life: Life, asking: Producer) -> None:
    for name, number in _paced(life, {features.ANSWERS: features.ALL[features.ANSWERS]}, 0.2):
        id_ = life.new_id(name, number) + "-call"
        life.book.note(PUSHED, name, id_)
        began, outcome = time.monotonic(), "answered"
        try:
            result = asking.call(name, id_.encode(), timeout=_CALL, id=id_)
        except SluiceError as error:
            outcome = error.code
        else:
            life.book.note(ANSWERED, name, id_, result=result.decode())
        seconds = round(time.monotonic() - began, 3)
        life.book.note(CALLED, name, id_, seconds=seconds, timeout=_CALL, outcome=outcome)


# ------------------------------------------------------------------ plain sockets


def plain_producer(life: Life) -> None:
    """Push by PUSH sockets, which hear nothing, and ask by a REQ socket, which asks again by the id."""
    with zmq.Context() as context:
        life.begin(_ask, life, context)
        life.begin(_flood, life, context)
        with _Pushes(context, life) as pushes:
            chosen = {name: features.ALL[name] for name in (features.PULLED, features.RECEIVED)}
            for name, number in _paced(life, chosen, 1.0):
                id_ = life.new_id(name, number)
                life.book.note(PUSHED, name, id_)
                pushes.send(name, id_)
        life.wait()


class _Pushes:
    """A PUSH socket for each queue, connected to that door of every broker."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], life: Life) -> None:
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._life = life
        for name in (features.PULLED, features.RECEIVED):
            doors = [doors[f"{name}.frontend"] for doors in life.doors]
            self._sockets[name] = _pushing(context, 10, *doors)

    def send(self, name: str, id_: str) -> None:
        frames = [name.encode(), json.dumps({"id": id_}).encode(), id_.encode()]
        while not self._life.over.is_set():
            try:
                self._sockets[name].send_multipart(frames)
            except zmq.Again:
                continue
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for socket in self._sockets.values():
            socket.close()


def _pushing(context: zmq.Context[zmq.Socket[bytes]], most: int, *doors: str) -> zmq.Socket[bytes]:
    """Return a socket that pushes at these doors, with at most so many messages on their way to each."""
    socket = context.socket(zmq.PUSH)
    socket.immediate, socket.sndhwm, socket.linger, socket.sndtimeo = True, most, 5000, 200
    for door in doors:
        socket.connect(door)
    return socket


def _flood(life: Life, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Push many jobs without ids at a time at one broker; what it does not take at once is not sent."""
    doors = [doors[f"{features.RECEIVED}.frontend"] for doors in life.doors]
    sockets = [_pushing(context, features.BURST_OF[1], door) for door in doors]
    for burst in _bursts(life, features.FLOODS, 1.0):
        socket = life.random.choice(sockets)
        with suppress(zmq.Again):
            for name in burst:
                socket.send_multipart([features.FLOODS.encode(), name.encode()])
    for socket in sockets:
        socket.close()


def _ask(life: Life, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with context.socket(zmq.REQ) as socket:
        socket.req_relaxed = socket.req_correlate = True
        socket.immediate, socket.linger = True, 0
        socket.rcvtimeo, socket.sndtimeo = _ASK_AGAIN, 200
        for doors in life.doors:
            socket.connect(doors[f"{features.ASKED}.frontend"])
        for name, number in _paced(life, {features.ASKED: features.ALL[features.ASKED]}, 1.0):
            _ask_one(life, socket, life.new_id(name, number))


def _ask_one(life: Life, socket: zmq.Socket[bytes], id_: str) -> None:
    frames = [b"", json.dumps({"id": id_}).encode(), id_.encode()]
    life.book.note(PUSHED, features.ASKED, id_)
    deadline = float("inf")
    while time.monotonic() < deadline:
        if life.over.is_set():
            deadline = min(deadline, time.monotonic() + 20)
        try:
            socket.send_multipart(frames)
            answer = socket.recv_multipart()
        except zmq.Again:
            continue
        if answer[0] != b"ERROR":
            life.book.note(ANSWERED, features.ASKED, id_, result=answer[0].decode())
            return
        code = json.loads(answer[1])["code"]
        life.book.note(REFUSED, features.ASKED, id_, code=code)
        if code not in ("UNAVAILABLE", "UNCERTAIN"):
            return
        life.over.wait(0.2)
