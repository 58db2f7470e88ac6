"""A terminal in which a test types what a page shows."""

import os
import pty
import re
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from threading import Thread
from typing import Self

from support.waiting import TIMEOUT, wait_until

#: Colours and movements of a cursor.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A shell at a terminal of its own, in a folder: lines are typed there, and it shows what they print."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._keyboard, screen = pty.openpty()
        self._shown = ""
        plain = {"TERM": "dumb", "PS1": "", "PS2": "", "VIRTUAL_ENV_DISABLE_PROMPT": "1"}
        self._shell = subprocess.Popen(
            ["setsid", "--ctty", "bash", "--norc", "--noediting", "-i"],
            cwd=folder, env=plain | {**environ}, stdin=screen, stdout=screen, stderr=screen,
        )  # fmt: skip
        os.close(screen)
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()
        self.type("stty -echo cols 100")

    def begin(self, line: str) -> None:
        """Type a line, and wait for nothing."""
        os.write(self._keyboard, f"{line}\n".encode())

    def type(self, line: str, timeout: float = TIMEOUT) -> str:
        """Type a line and return what it printed; AssertionError unless it succeeds."""
        begun, end = len(self.shown()), token_hex(8)
        self.begin(f"{line}\necho {end} $?")
        found = wait_until(lambda: re.search(rf"{end} (\d+)\n", self.shown()), timeout, line)
        shown = self.shown()[begun : found.start()]
        assert found[1] == "0", shown
        return shown

    def shown(self) -> str:
        """Return what has been printed, without colours."""
        return _ESCAPES.sub("", self._shown).replace("\r\n", "\n")

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.write(self._keyboard, b"\x03")

    def leave(self) -> None:
        """Press Ctrl-C and end the shell, when the running command has ended."""
        self.interrupt()
        self.begin("exit")
        self._shell.wait(TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End all that was started here."""
        for process in _session(self._shell.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._shell.wait(TIMEOUT)
        self._reader.join(TIMEOUT)
        os.close(self._keyboard)

    def _read(self) -> None:
        while True:
            try:
                read = os.read(self._keyboard, 65536)
            except OSError:  # closed, or the shell has ended
                return
            self._shown += read.decode(errors="replace")


def _session(leader: int) -> list[int]:
    """The processes of a terminal: those whose session has this leader."""
    running = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError):
            if os.getsid(int(process.name)) == leader:
                running.append(int(process.name))
    return running
