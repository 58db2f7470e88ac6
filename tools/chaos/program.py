"""Runs one program of the load: ``python -m chaos.program NAME NUMBER FOLDER``; NUMBER counts its lives."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from chaos.life import Life
from chaos.operators import operator
from chaos.producers import asker, plain_producer, producer
from chaos.streamers import many_publisher, publisher, reader
from chaos.workers import plain_worker, worker


def main() -> int:
    """Do what a program of this name does, until SIGTERM."""
    name, number, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    life = Life(name, number, folder)
    match name.rpartition("-")[0]:
        case "producer":
            producer(life)
        case "asker":
            asker(life)
        case "plain-producer":
            plain_producer(life)
        case "worker":
            worker(life)
        case "plain-worker":
            plain_worker(life)
        case "operator":
            operator(life)
        case "publisher":
            publisher(life)
        case "many-publisher":
            many_publisher(life)
        case "reader":
            reader(life, folder)
        case unknown:
            raise ValueError(f"no program of the load is called {unknown!r}")
    return life.end()


if __name__ == "__main__":
    sys.exit(main())
