"""One life of a program of the load: where the brokers are, its book, and SIGTERM, which asks it to end."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from chaos.books import STOPPED, Book

#: The file in the folder of a run by which the programs find the brokers.
PLACES: Final = "places.json"
#: The file that is there while producers of the library should push nothing more: too much is not done yet.
HOLD: Final = "hold"


class Life:
    """What a program needs, from its start to its end.

    ``endpoints``: the doors for the library, as one text; ``doors``: of each broker, its doors for plain
    sockets, by ``"DEVICE.END"``; ``pace``: by which all rates are multiplied.
    """

    def __init__(self, program: str, number: int, folder: Path) -> None:
        places = json.loads((folder / PLACES).read_text())
        self.program, self.number = program, number
        self.endpoints = _from(places["endpoints"], program)
        self.doors: list[dict[str, str]] = places["doors"]
        self.pace: float = places["pace"]
        self.random = Random(f"{places['seed']} {program} {number}")
        self.over = threading.Event()
        self._hold = folder / HOLD
        self._threads: list[threading.Thread] = []
        self._failed = False
        signal.signal(signal.SIGTERM, lambda *_: self.over.set())
        self.book = Book(folder / "books", program)

    def new_id(self, queue: str, count: int) -> str:
        """Return an id that no other program, and no other life of this one, gives."""
        return f"{queue}-{self.program}-{self.number}-{count}"

    def wait_for_room(self) -> None:
        """Wait while too much is not done yet: then a slow machine has no more to do than it can."""
        while self._hold.exists() and not self.over.wait(0.2):
            pass

    def begin(self, target: Callable[..., Any], *arguments: Any) -> None:
        """Run something beside, until :attr:`over`; its error ends the whole program."""
        thread = threading.Thread(target=self._guarded, args=(target, *arguments), name=target.__name__)
        self._threads.append(thread)
        thread.start()

    def wait(self) -> None:
        """Wait until SIGTERM, and for what runs beside."""
        self.over.wait()
        for thread in self._threads:
            thread.join()

    def end(self) -> int:
        """Note that it has ended by itself, and return its exit code."""
        self.book.note(STOPPED)
        return int(self._failed)

    def _guarded(self, target: Callable[..., Any], *arguments: Any) -> None:
        try:
            target(*arguments)
        except BaseException:
            self._failed = True
            self.over.set()
            sys.excepthook(*sys.exc_info())
            raise


def _from(endpoints: list[str], program: str) -> str:
    """Return all endpoints as one text, which begins with another one for each program."""
    first = sum(program.encode()) % len(endpoints)
    return ",".join(endpoints[first:] + endpoints[:first])
