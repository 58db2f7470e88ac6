"""Operator of the load: pauses and resumes a queue, and fills another one and deletes it, again and again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from chaos import features
from chaos.life import Life
from sluicemq import Client, NotFoundError, Producer, SluiceError

#: Seconds between two orders, and for which a queue is paused.
_PAUSE: Final = (2.0, 6.0)
_PAUSED: Final = (0.2, 1.5)
_JOBS: Final = 20
#: Tries of an order that must be carried out.
_TRIES: Final = 100


def operator(life: Life) -> None:
    """Give orders until the end; a former life may have left a queue paused, or jobs in the other one."""
    with Client(timeout=5.0, endpoint=life.endpoints) as client:
        _until_done(life, client.resume, features.SHORT)
        while not life.over.wait(life.random.uniform(*_PAUSE)):
            with suppress(SluiceError):
                client.queues.pause(features.SHORT)
            life.over.wait(life.random.uniform(*_PAUSED))
            _until_done(life, client.resume, features.SHORT)
            with suppress(SluiceError):
                _fill(life)
                client.queues.delete(features.SCRATCH).result()
        _until_done(life, client.resume, features.SHORT)
        _until_done(life, client.delete, features.SCRATCH)


def _fill(life: Life) -> None:
    with Producer(close_timeout=5.0, endpoint=life.endpoints) as producer:
        for number in range(_JOBS):
            producer.push(features.SCRATCH, b"%d" % number)


def _until_done(life: Life, order: Callable[[str], Any], queue: str) -> None:
    """Give an order until it was carried out: of one without an answer nobody knows."""
    for _ in range(_TRIES):
        try:
            order(queue)
        except NotFoundError:
            return
        except SluiceError as error:
            life.book.note("ordered again", queue, why=error.code)
            life.over.wait(0.2)
        else:
            return
