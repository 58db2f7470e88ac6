"""A bare Debian in a folder, for tests of what is installed on a host; they need root, and are long.

::

    with BareDebian(image(), tmp_path / "host") as host:
        host.run("apt-get", "install", "-y", "python3-venv")

Its processes live in namespaces of their own, and end with it, whatever happens. It shares the network of
this machine: a test chooses free ports.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from support.waiting import TIMEOUT

SUITE = "bookworm"
#: Programs, and the packages of Debian that have them.
PROGRAMS = {"mmdebstrap": "mmdebstrap", "unshare": "util-linux", "nsenter": "util-linux", "tar": "tar"}
#: Seconds after which the image is made again, as packages of Debian have newer versions by then.
_OLD = 7 * 24 * 3600.0
#: Seconds that mmdebstrap may take: it downloads 60 MB, and unpacks them.
_MAKING = 1800

#: The first process of a host: mounts, says its pid as others see it, and collects processes that ended. It
#: ends, and all with it, when nobody holds its stdin any more.
_FIRST = """
import os, select, subprocess, sys
root = sys.argv[1]
pid = os.readlink("/proc/self")
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "--bind", root, root], check=True)
subprocess.run(["mount", "--rbind", "/dev", root + "/dev"], check=True)
subprocess.run(["mount", "-t", "proc", "proc", root + "/proc"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", root + "/run"], check=True)
print(pid, flush=True)
while not select.select([0], [], [], 0.1)[0]:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass
"""


def require() -> None:
    """Skip the test by name where a bare Debian can't be made."""
    if os.geteuid() != 0:
        pytest.skip("a bare Debian needs root")
    if missing := [package for name, package in PROGRAMS.items() if not shutil.which(name)]:
        pytest.skip(f"a bare Debian needs these packages: {' '.join(missing)}")
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False).returncode:
        pytest.skip("a bare Debian needs mount and pid namespaces")


def image(*packages: str) -> Path:
    """Return an archive of Debian's smallest root, with these packages beside.

    It is made once, and kept for a week for all sessions.
    """
    require()
    folder = Path(tempfile.gettempdir()) / f"sluicemq-test-debian-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    assert folder.stat().st_uid == os.getuid(), f"{folder} is somebody else's"
    made = folder / f"{'+'.join((SUITE, *packages))}.tar"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() or time.time() - made.stat().st_mtime > _OLD:
            part = made.with_suffix(".part.tar")
            words = ["mmdebstrap", "--quiet", "--variant=minbase"]
            words += [f"--include={','.join(packages)}"] if packages else []
            words += [SUITE, str(part)]
            subprocess.run(words, check=True, timeout=_MAKING)
            part.rename(made)
    return made


class BareDebian:
    """A host whose root is :attr:`root`; made of ``image``, and removed at the end."""

    def __init__(self, image: Path, root: Path) -> None:
        self.root = root
        self._image = image
        self._first: subprocess.Popen[str] | None = None
        self._pid = ""

    def __enter__(self) -> Self:
        self.root.mkdir(parents=True)
        try:
            unpack = ["tar", "-xf", str(self._image), "-C", str(self.root), "--exclude=./dev/*"]
            subprocess.run(unpack, check=True, timeout=_MAKING)
            shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._first:
            self._first.communicate()  # closes its stdin
        shutil.rmtree(self.root, ignore_errors=True)

    def run(
        self, *words: str | Path, env: Mapping[str, str] | None = None, check: bool = True,
        timeout: float = 10 * TIMEOUT, given: str | None = None,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run a command there as root, with ``given`` as its stdin; ``check``: it must succeed."""
        done = subprocess.run(
            self._entered(words, env), input=given, stdin=None if given is not None else subprocess.DEVNULL,
            capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        if check:
            assert done.returncode == 0, (
                f"{words}: {done.returncode}\n{done.stdout[-5000:]}{done.stderr[-9000:]}"
            )
        return done

    def start(
        self, *words: str | Path, env: Mapping[str, str] | None = None, **more: Any
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(self._entered(words, env), text=True, **more)

    def path(self, inside: str) -> Path:
        """Return where a file of the host is for this process."""
        return self.root / inside.lstrip("/")

    def _entered(self, words: tuple[str | Path, ...], env: Mapping[str, str] | None) -> list[str]:
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        environ = {"PATH": path, "HOME": "/root", "LANG": "C.UTF-8", **(env or {})}
        inside = ["env", "-i", *(f"{name}={value}" for name, value in environ.items()), *map(str, words)]
        return ["nsenter", "--target", self._pid, "--mount", "--pid", "chroot", str(self.root), *inside]

    def _begin(self) -> None:
        words = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            sys.executable,
            "-c",
            _FIRST,
            str(self.root),
        ]
        pipe = subprocess.PIPE
        self._first = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        assert self._first.stdout
        self._pid = self._first.stdout.readline().strip()
        assert self._pid, "the first process of the bare Debian did not start"
