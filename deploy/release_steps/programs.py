"""Programs that a release runs, environments that it makes for them, and its progress on stderr."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Never


@contextmanager
def environment(python: str) -> Iterator[Path]:
    """Make a fresh virtual environment; yields its Python, and removes it at the end."""
    with temporary_folder() as folder:
        run(Path(python), "-m", "venv", str(folder))
        yield folder / "bin" / "python"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder, which is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="sluicemq-release-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(program: Path | str, *arguments: str, env: dict[str, str] | None = None) -> str:
    """Run a program in an empty folder, so that nothing of this checkout is imported; returns its stdout."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [str(program), *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False
        )
    if done.returncode:
        fail(f"{program} {' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout


def runs(python: str | None) -> bool:
    """Return True if this is a Python that runs; pyenv has names on the PATH that don't."""
    if not python:
        return False
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def say(text: str) -> None:
    """Write a line of progress."""
    print(f"release: {text}", file=sys.stderr, flush=True)


def fail(text: str) -> Never:
    """End with a sentence."""
    sys.exit(f"release: {text}")
