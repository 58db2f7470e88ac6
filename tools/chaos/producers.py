"""Producers of the load: by the library, by plain sockets, and those that wait for results."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import Any, Final, Self

import zmq

from chaos import features
from chaos.books import ANSWERED, CALLED, CONFIRMED, PUSHED, REFUSED, REJECT, ROLLBACK
from chaos.features import Feature
from chaos.life import Life
from sluicemq import Producer, PushReceipt, SluiceError, TimeoutError

#: Keys of ordered jobs, and tenants, of each life of a producer.
_KEYS: Final = 4
_TENANTS: Final = ("ada", "ben", "cleo")
#: Seconds that a call waits for its result.
_CALL: Final = 8.0
#: Milliseconds after which a REQ socket asks again, at another broker.
_ASK_AGAIN: Final = 2500


def producer(life: Life) -> None:
    """Push to all queues of the library's producers; each push is booked before, and once it is confirmed."""
    receipts: queue.SimpleQueue[PushReceipt | None] = queue.SimpleQueue()
    with Producer(on_refused=lambda *_: None, endpoint=life.endpoints) as pushing:
        life.begin(_confirm, life, receipts)
        for name, number in _paced(life, features.PUSHED_BY_LIBRARY):
            id_ = life.new_id(name, number)
            options, fate = _of_job(life, name, number)
            life.book.note(PUSHED, name, id_, **fate)
            receipts.put(pushing.push(name, id_.encode(), id=id_, **options))
        receipts.put(None)
        life.wait()


def _confirm(life: Life, receipts: queue.SimpleQueue[PushReceipt | None]) -> None:
    while (receipt := receipts.get()) is not None:
        confirmed = False
        while not confirmed:
            try:
                receipt.wait(5)
            except TimeoutError:
                continue
            except SluiceError as error:
                life.book.note(REFUSED, receipt.queue, receipt.id, code=error.code)
                break
            confirmed = True
            life.book.note(CONFIRMED, receipt.queue, receipt.id, existed=receipt.existed)


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
            socket = self._sockets[name] = context.socket(zmq.PUSH)
            socket.immediate, socket.sndhwm, socket.linger, socket.sndtimeo = True, 10, 5000, 200
            for doors in life.doors:
                socket.connect(doors[f"{name}.frontend"])

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
