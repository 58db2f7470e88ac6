"""Sdists and wheels: built twice, in different places, and the same bytes each time.

A time that a file has comes from ``SOURCE_DATE_EPOCH``, which is the time of the last commit. A wheel takes
it from there by itself, an sdist does not: :func:`normalize` writes it once more.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from release_steps.programs import environment, fail, run, say, temporary_folder

#: The projects, and their folders: the broker with its library, and the bench.
PROJECTS = {"sluicemq": ".", "sluicemq-bench": "bench"}


def build(checkout: Path, dist: Path) -> None:
    """Build sdist and wheel of each project into ``dist``; fails if a second build has other bytes."""
    os.umask(0o022)  # modes of files are packed, too
    epoch = source_date(checkout)
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
    if changed := _git(checkout, "status", "--porcelain", "--untracked-files=no"):
        say(f"not committed, and built all the same: {len(changed.splitlines())} files")
    with environment(sys.executable) as python, temporary_folder() as again:
        run(python, "-m", "pip", "install", "--quiet", "build")
        for name, project in PROJECTS.items():
            say(f"building sdist and wheel of {name}, twice")
            for folder in (dist, again / "dist"):
                _build_once(python, checkout, project, folder, epoch)
        if different := differences(dist, again / "dist"):
            fail(f"a second build has other bytes: {', '.join(different)}")


def source_date(checkout: Path) -> int:
    """Return the time of the last commit, in seconds, or what ``SOURCE_DATE_EPOCH`` says already."""
    if said := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(said)
    return int(_git(checkout, "log", "-1", "--format=%ct"))


def copy_sources(checkout: Path, folder: Path) -> None:
    """Copy the files that git knows; what earlier builds have left in the checkout is not packed so."""
    for name in _git(checkout, "ls-files", "-z").split("\0"):
        if name and (checkout / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkout / name, folder / name)


def normalize(sdist: Path, epoch: int) -> None:
    """Write an sdist again: its files in order of their names, with this time, of nobody."""
    with tarfile.open(sdist) as packed:
        members = sorted(packed.getmembers(), key=lambda member: member.name)
        contents = {member.name: file.read() for member in members if (file := packed.extractfile(member))}
    with (
        sdist.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=epoch, fileobj=raw) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as packed,
    ):
        for member in members:
            _add(packed, member, contents.get(member.name), epoch)


def differences(one: Path, other: Path) -> list[str]:
    """Return the names of files that only one of two folders has, or that differ."""
    left, right = ({file.name: digest(file) for file in folder.iterdir()} for folder in (one, other))
    return sorted(name for name in left | right if left.get(name) != right.get(name))


def digest(file: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _build_once(python: Path, checkout: Path, project: str, dist: Path, epoch: int) -> None:
    """Build an sdist of a copy of the sources, and the wheel of that sdist."""
    with temporary_folder() as folder:
        copy_sources(checkout, folder / "sources")
        run(python, "-m", "build", "--sdist", "--outdir", str(folder), str(folder / "sources" / project))
        [sdist] = folder.glob("*.tar.gz")
        normalize(sdist, epoch)
        shutil.unpack_archive(sdist, folder / "unpacked")
        [unpacked] = (folder / "unpacked").iterdir()
        dist.mkdir(parents=True, exist_ok=True)
        run(python, "-m", "build", "--wheel", "--outdir", str(dist), str(unpacked))
        shutil.move(sdist, dist / sdist.name)


def _add(packed: tarfile.TarFile, member: tarfile.TarInfo, content: bytes | None, epoch: int) -> None:
    plain = tarfile.TarInfo(member.name)
    plain.type, plain.mtime, plain.linkname = member.type, epoch, member.linkname
    plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    if content is None:
        packed.addfile(plain)
    else:
        plain.size = len(content)
        packed.addfile(plain, io.BytesIO(content))


def _git(checkout: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else fail(f"git {' '.join(arguments)}: {done.stderr}")
