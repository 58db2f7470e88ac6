"""Checks of this machine: room on the disk, memory, and how many files a process may open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sluicemq_broker.doctor.finding import Finding, error, ok, warning
from sluicemq_broker.doctor.subject import Subject

_MIB: Final = 1 << 20
#: Bytes below which a disk is nearly full: the oplog takes 512 MiB, the journal 100 MiB.
_LITTLE_ROOM: Final = 1024 * _MIB


def disk(subject: Subject) -> Iterator[Finding]:
    """Judge the disk of the embedded MongoDB."""
    host = subject.host
    if host.folder is None or host.disk_free is None or host.disk_total is None:
        return
    yield from judged_disk(f"the disk of {host.folder}", host.disk_free, host.disk_total)


def judged_disk(which: str, free: int, total: int) -> Iterator[Finding]:
    """Judge the room on a disk with data of MongoDB."""
    shown = f"{free // _MIB} of {total // _MIB} MiB are free"
    cure = "make room, or move the data to a larger disk; purge dead letters and finished jobs, bound streams"
    if free < 100 * _MIB:
        yield error(f"{which} is full: MongoDB ends, or takes no jobs", shown, cure)
    elif free < max(_LITTLE_ROOM, min(total * 0.05, 16 * _LITTLE_ROOM)):
        yield warning(f"{which} is nearly full", shown, cure)
    else:
        yield ok(f"{which} has room", shown)


def memory(subject: Subject) -> Iterator[Finding]:
    """Judge the memory of this machine, or container."""
    host = subject.host
    if host.memory is not None and host.memory < 512 * _MIB:
        yield warning(
            f"this machine has {host.memory // _MIB} MiB of memory",
            to_do="give it 512 MiB at least, 1 GiB with an embedded MongoDB (docs/operations.md, sizing)",
        )
    elif host.memory_available is not None and host.memory_available < 128 * _MIB:
        yield warning(
            f"only {host.memory_available // _MIB} MiB of memory are left: the kernel may end the broker",
            to_do="see what takes it (ps aux --sort -rss), or give the machine more",
        )
    else:
        yield ok("there is enough memory")


def open_files(subject: Subject) -> Iterator[Finding]:
    """Judge how many files a process may open, against the connections that the configuration allows."""
    files = subject.host.open_files
    wanted = subject.config.broker.max_connections if subject.config else None
    # Open files: one for each connection and 256 beside them; ten for each queue in an embedded MongoDB.
    needed = max(4096, (wanted or 0) + 256)
    if files < needed:
        pid = subject.host.pid
        who = (
            "a process may open {} files here"
            if pid is None
            else f"the broker (pid {pid}) may open {{}} files"
        )
        yield warning(
            f"{who.format(files)}: too few for many connections or queues",
            f"{needed} are needed: one for each connection, and ten for each queue of an embedded MongoDB",
            "ulimit -n 64000, or LimitNOFILE=65536 of the service",
        )
    else:
        yield ok("enough files can be opened", "any number" if files > 1 << 40 else str(files))


CHECKS = (disk, memory, open_files)
