"""Builds of this project as wheels, as it is and otherwise, and the wheels of all that it needs."""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "broker", "devices", "clients", "deploy")
VERSION = "clients/sluicemq/version.py"


def copy_sources(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in SOURCES:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    return folder


def build(folder: Path, version: str, changes: Mapping[str, tuple[str, str]] | None = None) -> Path:
    """Build a wheel of this version in ``folder``; ``changes``: for a file, a text and what replaces it."""
    checkout = copy_sources(folder / "checkout")
    numbered = re.sub(r'= "[^"]+"', f'= "{version}"', (checkout / VERSION).read_text(), count=1)
    (checkout / VERSION).write_text(numbered)
    for name, (old, new) in (changes or {}).items():
        text = (checkout / name).read_text()
        assert old in text, f"{name} has no {old!r}"
        (checkout / name).write_text(text.replace(old, new))
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(checkout))
    shutil.rmtree(checkout)
    return next(folder.glob("*.whl"))


def download_requirements(folder: Path, wheel: Path, extras: str, python: str) -> None:
    # Markers are read for the Python of the tests, and Debian's 3.11.2 needs a package that 3.11.3 does not.
    needed = [f"{wheel}[{extras}]", "setuptools>=77", "wheel", "async-timeout"]
    pip("download", "--only-binary=:all:", "--python-version", python, "--dest", str(folder), *needed)


def pip(*words: str) -> None:
    """Run pip of this environment; AssertionError with its words if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words], capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
