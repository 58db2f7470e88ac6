"""Programs of the load that publish to the stream, read it, and work through it by a subscription."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from chaos import books, features
from chaos.books import BATCH, PUBLISHED, READ, REFUSED, STORED
from chaos.life import Life
from sluicemq import (
    BadStreamError,
    GapError,
    Publisher,
    PublishReceipt,
    Reader,
    SluiceError,
    Start,
    Subscription,
    TimeoutError,
)

_PAUSE: Final = 0.2


class _Message(NamedTuple):
    """A message whose confirmation is awaited."""

    stream: str
    id: str
    receipt: PublishReceipt


def publisher(life: Life) -> None:
    """Publish at the stream's rate; each message is booked before, and with its number once it is stored."""
    receipts: queue.SimpleQueue[_Message | None] = queue.SimpleQueue()
    with Publisher(on_refused=lambda *_: None, endpoint=life.endpoints) as publishing:
        life.begin(_confirm, life, receipts)
        for number in _paced(life, features.STREAM_RATE):
            topic = features.OTHER_TOPIC if number % 2 else features.ROUTED_TOPIC
            id_ = _booked(life, features.STREAM, number, topic)
            receipts.put(
                _Message(features.STREAM, id_, publishing.publish(features.STREAM, topic, id_.encode()))
            )
        receipts.put(None)
        life.wait()


def many_publisher(life: Life) -> None:
    """Publish to many streams in turn; to some of them each message twice: two connections, one id."""
    receipts: queue.SimpleQueue[_Message | None] = queue.SimpleQueue()
    streams = (*features.SPREAD, *features.TWINS)
    with (
        Publisher(on_refused=lambda *_: None, endpoint=life.endpoints) as first,
        Publisher(on_refused=lambda *_: None, endpoint=life.endpoints) as second,
    ):
        life.begin(_confirm, life, receipts)
        for number in _paced(life, features.OTHERS_RATE):
            stream = streams[number % len(streams)]
            id_ = _booked(life, stream, number, features.OTHER_TOPIC)
            twins = [(first, id_), (second, id_)] if stream in features.TWINS else [(first, None)]
            for publishing, own in twins:
                receipt = publishing.publish(stream, features.OTHER_TOPIC, id_.encode(), id=own)
                receipts.put(_Message(stream, id_, receipt))
        receipts.put(None)
        life.wait()


def _paced(life: Life, rate: float) -> Iterator[int]:
    """Yield numbers, so many a second on average, until the end."""
    for number in count():
        if life.over.wait(life.random.uniform(0.0, 2.0) / (rate * life.pace)):
            return
        yield number


def _booked(life: Life, stream: str, number: int, topic: str) -> str:
    """Return the id of a message, which is in the book."""
    id_ = life.new_id(stream, number)
    life.book.note(PUBLISHED, stream, id_, topic=topic)
    return id_


def _confirm(life: Life, receipts: queue.SimpleQueue[_Message | None]) -> None:
    while (next_one := receipts.get()) is not None:
        stream, id_, receipt = next_one
        while True:
            try:
                number = receipt.wait(5)
            except TimeoutError:
                continue
            except SluiceError as error:
                life.book.note(REFUSED, stream, id_, code=error.code)
                break
            life.book.note(STORED, stream, id_, sequence=number)
            break


def reader(life: Life, folder: Path) -> None:
    """Read the stream, each life from where the former one has ended, and stand by for the subscription."""
    with Subscription(features.STREAM, features.SUBSCRIPTION, _Batches(life), endpoint=life.endpoints):
        position = last_read(folder / "books", life.program)
        while not life.over.is_set():
            position = _follow(life, position)
        life.wait()


def _follow(life: Life, position: int) -> int:
    """Read until the end, or an error after which one reads on."""
    with Reader(
        features.STREAM, start=Start.at(position + 1), follow=True, endpoint=life.endpoints
    ) as reading:
        try:
            while not life.over.is_set():
                message = reading.read(_PAUSE)
                if message is not None:
                    payload = message.payload.decode()
                    life.book.note(READ, features.STREAM, payload, sequence=message.sequence)
        except BadStreamError:  # nobody has published yet
            time.sleep(_PAUSE)
        except GapError:
            raise
        return reading.position


def last_read(folder: Path, program: str) -> int:
    """Return the number of the message that this program has read last."""
    numbers = [
        fact.about["sequence"] for fact in books.read(folder) if (fact.what, fact.program) == (READ, program)
    ]
    return max(numbers, default=0)


class _Batches:
    """Books what it is given."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def __call__(self, batch: object) -> None:
        first, last, fence = (getattr(batch, name) for name in ("first", "last", "fence"))
        self._life.book.note(BATCH, features.STREAM, first=first, last=last, fence=fence)
