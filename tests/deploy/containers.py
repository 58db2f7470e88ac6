"""Images, built by Buildah without a registry, and containers of them; they need root, and are long.

::

    with ImageStore(tmp_path / "store") as store:
        store.add_base("localhost/base", image("python3"))
        root = store.built("deploy/container/Containerfile", ROOT, BASE="localhost/base")
        with Container(root, store.configuration(root)) as container:
            container.execute("sluicemq", "ping")

A container is a process as the first one of its pid namespace, on a root that can't be written. It shares the
network of this machine: a test chooses free ports.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from deploy import bare_debian
from support.waiting import TIMEOUT, wait_until

#: Seconds that a build may take, which installs packages.
_BUILDING = 1800

#: Make the root of a container, $root, and become its first process. Each line of $mounts says what is
#: mounted, where, and if it may be written.
_FIRST = """
set -e
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
printf '%s' "$mounts" | while IFS='\t' read -r outside inside how; do
    mount --bind "$outside" "$root$inside"
    mount -o "remount,bind,$how" "$root$inside"
done
mount -o remount,bind,ro "$root"
exec chroot "$root" "$@"
"""


def require() -> None:
    """Skip the test by name where no image can be built."""
    bare_debian.require()
    if not shutil.which("buildah"):
        pytest.skip("an image needs this package: buildah")


class ImageStore:
    """Images in a folder; they are removed at the end."""

    def __init__(self, folder: Path) -> None:
        require()
        self._folder = folder

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        for words in (("umount", "--all"), ("rm", "--all"), ("rmi", "--all", "--force")):
            self._buildah(*words, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def add_base(self, name: str, archive: Path) -> None:
        container = self._buildah("from", "scratch").strip()
        self._buildah("add", "--quiet", container, str(archive), "/")
        self._buildah("commit", "--quiet", container, name)
        self._buildah("rm", container)

    def build(self, file: Path, context: Path, name: str, wheels: Path, **arguments: str) -> None:
        """Build an image as its users do, but packages of Python come from the folder ``wheels``."""
        arguments |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
        given = [f"--build-arg={key}={value}" for key, value in arguments.items()]
        options = ["--isolation=chroot", "--format=docker", "--pull-never", f"--volume={wheels}:/wheels:ro"]
        self._buildah("bud", *options, *given, f"--tag={name}", f"--file={file}", str(context))

    def configuration(self, name: str) -> dict[str, Any]:
        found = json.loads(self._buildah("inspect", "--type=image", name))
        return dict(found["Docker"]["config"])

    def size(self, name: str) -> int:
        """Return the bytes of an image, with those of its base."""
        return int(json.loads(self._buildah("images", "--json", name))[0]["size"].split()[0])

    def mounted(self, name: str) -> Path:
        container = self._buildah("from", "--pull-never", name).strip()
        return Path(self._buildah("mount", container).strip())

    def _buildah(self, *words: str, check: bool = True) -> str:
        roots = [f"--root={self._folder / 'root'}", f"--runroot={self._folder / 'run'}"]
        done = subprocess.run(
            ["buildah", *roots, *words], capture_output=True, text=True, timeout=_BUILDING, check=False
        )
        if check:
            assert done.returncode == 0, f"{words}: {done.stdout[-3000:]}{done.stderr[-6000:]}"
        return done.stdout


class Container:
    """A container that runs; a context, which kills it at its end.

    ``root`` and ``configuration`` are of its image. ``words`` take the place of its command, ``user`` that of
    its user. ``mounts``: files and folders of this machine, where they are inside, and if "ro" or "rw".
    """

    def __init__(
        self, root: Path, configuration: Mapping[str, Any], *words: str, user: str = "",
        env: Mapping[str, str] | None = None, mounts: Sequence[tuple[Path, str, str]] = (), log: Path,
    ) -> None:  # fmt: skip
        self.log = log
        self._root = root
        self._words = (*configuration["Entrypoint"], *(words or configuration["Cmd"]))
        self._mounts = mounts
        uid, gid = (user or configuration["User"]).split(":")
        environ = (*configuration["Env"], *(f"{name}={value}" for name, value in (env or {}).items()))
        self._dropped = [
            *("setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--no-new-privs"),
            *("--bounding-set=-all", "env", "-i", "-C", configuration["WorkingDir"], *environ),
        ]
        self._unshare: subprocess.Popen[bytes] | None = None
        self._pid = ""

    def __enter__(self) -> Self:
        for outside, inside, _ in self._mounts:
            _make_place(outside, self._root / inside.lstrip("/"))
        lines = "".join("\t".join(map(str, mount)) + "\n" for mount in self._mounts)
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _FIRST, "sh"]
        environ = os.environ | {"root": str(self._root), "mounts": lines}
        with self.log.open("ab") as log:
            self._unshare = subprocess.Popen(
                [*words, *self._dropped, *self._words],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            wait_until(lambda: self.has_ended() or self._is_inside(), what="the first process of a container")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._unshare
        if self._pid and not self.has_ended():  # "setpriv" has taken back that it dies with its parent
            os.kill(int(self._pid), signal.SIGKILL)
        self._unshare.kill()
        self._unshare.wait()

    def execute(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as ``docker exec`` does."""
        entered = ["nsenter", f"--target={self._pid}", "--mount", "--pid", "chroot", str(self._root)]
        done = subprocess.run(
            [*entered, *self._dropped, *words],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=5 * TIMEOUT, check=False,
        )  # fmt: skip
        if check:
            assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}{self.log.read_text()}"
        return done

    def stop(self, number: signal.Signals) -> int:
        """Send its first process a signal, and return its exit code."""
        assert self._unshare
        os.kill(int(self._pid), number)
        return self._unshare.wait(2 * TIMEOUT)

    def has_ended(self) -> bool:
        return self._unshare is not None and self._unshare.poll() is not None

    def _is_inside(self) -> bool:
        """Find the first process, and return True when it has left the root of this machine."""
        assert self._unshare
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children").read_text().split()
        self._pid = children[0] if children else ""
        return bool(children) and Path(f"/proc/{self._pid}/root").readlink() == self._root


def _make_place(source: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        place.mkdir(exist_ok=True)
    else:
        place.touch()
