"""Programs of the load that publish to the stream, read it, and work through it by a subscription."""

from __future__ import annotations

import queue
import time
from pathlib import Path
from typing import Final

from chaos import books, features
from chaos.books import BATCH, PUBLISHED, READ, REFUSED, STORED
from chaos.life import Life
from sluicemq import BadStream, Gap, Published, Publisher, Reader, SluiceError, Subscription, Timeout

_PAUSE: Final = 0.2


def publisher(life: Life) -> None:
    """Publish at the stream's rate; each message is booked before, and with its number once it is stored."""
    receipts: queue.SimpleQueue[tuple[str, Published] | None] = queue.SimpleQueue()
    with Publisher(life.endpoints, on_refused=lambda *_: None) as publishing:
        life.begin(_confirm, life, receipts)
        number = 0
        while not life.over.wait(life.random.uniform(0.0, 2.0) / (features.STREAM_RATE * life.pace)):
            id_ = life.new_id(features.STREAM, number)
            topic = features.OTHER_TOPIC if number % 2 else features.ROUTED_TOPIC
            life.book.note(PUBLISHED, features.STREAM, id_, topic=topic)
            receipts.put((id_, publishing.publish(features.STREAM, topic, id_.encode())))
            number += 1
        receipts.put(None)
        life.wait()


def _confirm(life: Life, receipts: queue.SimpleQueue[tuple[str, Published] | None]) -> None:
    while (next_one := receipts.get()) is not None:
        id_, receipt = next_one
        while True:
            try:
                number = receipt.wait(5)
            except Timeout:
                continue
            except SluiceError as error:
                life.book.note(REFUSED, features.STREAM, id_, code=error.code)
                break
            life.book.note(STORED, features.STREAM, id_, sequence=number)
            break


def reader(life: Life, folder: Path) -> None:
    """Read the stream, each life from where the former one has ended, and stand by for the subscription."""
    with Subscription(life.endpoints, features.STREAM, features.SUBSCRIPTION, _Batches(life)):
        position = last_read(folder / "books", life.program)
        while not life.over.is_set():
            position = _follow(life, position)
        life.wait()


def _follow(life: Life, position: int) -> int:
    """Read until the end, or an error after which one reads on."""
    with Reader(life.endpoints, features.STREAM, after=position, follow=True) as reading:
        try:
            while not life.over.is_set():
                message = reading.read(_PAUSE)
                if message is not None:
                    payload = message.payload.decode()
                    life.book.note(READ, features.STREAM, payload, sequence=message.sequence)
        except BadStream:  # nobody has published yet
            time.sleep(_PAUSE)
        except Gap:
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
