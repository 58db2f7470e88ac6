"""Which process has dialed a connection of this machine: the kernel knows (Linux)."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from typing import Final

Address = tuple[str, int]

_SOCK_DIAG: Final = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY: Final = 20  # SOCK_DIAG_BY_FAMILY, in linux/sock_diag.h
_REQUEST: Final = 1  # NLM_F_REQUEST
_ALL_STATES: Final = 0xFFFFFFFF
_NO_COOKIE: Final = struct.pack("=II", 0xFFFFFFFF, 0xFFFFFFFF)
_HEADER: Final = struct.Struct("=IHHII")  # struct nlmsghdr
_FIXED: Final = struct.Struct("=BBBBI")  # the beginning of struct inet_diag_req_v2
_SOCKET: Final = struct.Struct("!HH4s12x4s12x4x")  # struct inet_diag_sockid, without its cookie
_INODE: Final = _HEADER.size + 68  # of idiag_inode in the answer, struct inet_diag_msg


class Dialers:
    """Asks the kernel about connections."""

    def __init__(self) -> None:
        self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG)

    def inode(self, dialer: Address, dialed: Address) -> int:
        """Return the inode of the socket that has dialed; 0 if it is closed."""
        names = (socket.inet_aton(dialer[0]), socket.inet_aton(dialed[0]))
        body = _FIXED.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _ALL_STATES)
        body += _SOCKET.pack(dialer[1], dialed[1], *names) + _NO_COOKIE
        self._kernel.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, 0, 0) + body)
        answer = self._kernel.recv(1 << 16)
        if _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
            return 0
        return int(struct.unpack_from("=I", answer, _INODE)[0])

    def close(self) -> None:
        """Ask no more."""
        self._kernel.close()


def sockets_of(pid: int) -> frozenset[int]:
    """Return the inodes of all sockets that a process has open."""
    found = []
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with suppress(OSError):  # closed meanwhile
                found.append(os.readlink(entry.path))  # noqa: PTH115 - there are hundreds
    return frozenset(int(link[8:-1]) for link in found if link.startswith("socket:["))
