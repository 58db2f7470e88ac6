"""Plants the faults of ``faults.toml`` one by one in a copy of the tree, and tells which the tests see.

``python tools/mutants/run.py [--model] [--share 100] [--seconds N] [NAME …]`` runs all tests that the
faults name once without any, prints a table with the seconds that each fault took, and the share that was
seen. A fault is seen when a test that its entry names fails, or does not end in time. One whose tests fail
anyway says nothing, and is named so. ``--model``: one fault of each of the eighteen kinds that a model of two
brokers must see, by that model alone; 17 are enough. Exit code 1: less than the share was seen, a fault no
longer applies, as its text is not found exactly once, or tests fail without any.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

sys.path.extend(str(Path(__file__).resolve().parents[2] / folder) for folder in ("tools", "tests"))

from mutants.planting import PACKAGES, ROOT, DoesNotFit, file_of, planted

FOLDERS = ("broker", "devices", "clients", "tests", "tools", "docs")
FILES = ("pyproject.toml", "README.md")
#: What most tests import, and what their plugins do.
IMPORTED = ("gevent", "hypothesis.strategies", "msgpack", "psutil", "pymongo", "zmq.green")
SEEN, NOT_SEEN, STALE, BROKEN = "seen", "NOT SEEN", "DOES NOT APPLY", "TESTS DO NOT RUN"
FAILS_ANYWAY, ENDLESS = "FAILS ANYWAY", "seen: no end"
#: What pytest answers: all passed, some failed. Anything else: it could not run them.
_PASSED, _FAILED = 0, 1
_OUTCOMES = {_PASSED: NOT_SEEN, _FAILED: SEEN}
#: Percent of the eighteen kinds that must be seen: 17 of them.
_OF_THE_KINDS = 94.0
#: Without faults all tests may take so many times as long as those of one fault.
_TIMES = 20
_KILLED = 10.0  # seconds that pytest has to end
_SECONDS, _MODEL_SECONDS = 120.0, 900.0
#: The end of the name of a model's long run, which is one of ``--full``.
_LONG: Final = "_for_long"
_FORK: Final = multiprocessing.get_context("fork")
_STORE: Final = """
import sys
from pathlib import Path
from sluicemq_broker.embedded.life import EmbeddedMongo
store = EmbeddedMongo(Path(sys.argv[1]))
try:
    print(store.start(), flush=True)
    sys.stdin.read()
finally:
    store.stop()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only these faults")
    parser.add_argument("--model", action="store_true", help="one of each kind, by the model of brokers")
    parser.add_argument("--share", type=float, default=100.0, help="percent that must be seen")
    parser.add_argument("--seconds", type=float, help="longest time for one fault (120; a model 900)")
    arguments = parser.parse_args()
    seconds = arguments.seconds or (_MODEL_SECONDS if arguments.model else _SECONDS)
    for module in IMPORTED:
        importlib.import_module(module)
    share = _OF_THE_KINDS if arguments.model else arguments.share
    all_faults = of_the_model(read_faults()) if arguments.model else read_faults()
    faults = [fault for fault in all_faults if not arguments.names or fault["name"] in arguments.names]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, one_mongodb(Path(folder) / "store"):
        tree = copy_tree(Path(folder) / "tree")
        failing = failing_anyway(tree, faults, seconds)
        took = time.monotonic() - began
        print(f"without faults {len(failing)} of the named tests fail; {took:.0f} s", flush=True)
        outcomes = [show(tree, fault, failing, seconds) for fault in faults]
    seen = outcomes.count(SEEN) + outcomes.count(ENDLESS)
    reached = 100 * seen / max(1, len(outcomes))
    print(f"{seen} of {len(outcomes)} seen: {reached:.1f} %; {time.monotonic() - began:.0f} s in all")
    return int(reached < share or bool(failing) or not {STALE, BROKEN}.isdisjoint(outcomes))


def read_faults() -> list[dict[str, Any]]:
    with (Path(__file__).parent / "faults.toml").open("rb") as file:
        faults: list[dict[str, Any]] = tomllib.load(file)["fault"]
    return faults


def of_the_model(faults: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One of each kind; its test is the model that must see it, and what is told of it is the kind."""
    return [
        {**fault, "tests": fault["model"], "why": f"{fault['kind']}: {fault['why']}"}
        for fault in faults
        if "kind" in fault
    ]


def copy_tree(to: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", ".*", "node_modules")
    for folder in FOLDERS:
        if (ROOT / folder).is_dir():
            shutil.copytree(ROOT / folder, to / folder, ignore=ignored)
    for file in FILES:
        shutil.copy(ROOT / file, to / file)
    return to


def packages(tree: Path) -> list[str]:
    """The folders in which our packages lie."""
    return [str(tree / folder) for folder in PACKAGES.values()]


@contextmanager
def one_mongodb(folder: Path) -> Iterator[None]:
    """For all tests, each of which has databases of its own: to start one takes longer than most of them."""
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", _STORE, folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(packages(ROOT))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as store:
        assert store.stdin
        assert store.stdout
        os.environ["TEST_MONGODB_URI"] = store.stdout.readline().strip()
        yield
        store.stdin.close()


def failing_anyway(tree: Path, faults: Iterable[dict[str, Any]], seconds: float) -> set[str]:
    """Those of the named tests that fail without any fault: found one by one, if not all of them pass."""
    named = sorted({test for fault in faults for test in fault["tests"]})
    whole = {test for test in named if "::" not in test}
    once = [test for test in named if test in whole or test.partition("::")[0] not in whole]
    if run_tests(tree, once, _TIMES * seconds, compiled=True) == NOT_SEEN:
        return set()
    failing = {test for test in named if run_tests(tree, [test], seconds) != NOT_SEEN}
    for test in sorted(failing):
        print(f"{FAILS_ANYWAY:16} {test}", flush=True)
    return failing


def show(tree: Path, fault: dict[str, Any], failing: set[str], seconds: float) -> str:
    began = time.monotonic()
    what = FAILS_ANYWAY if failing.intersection(fault["tests"]) else outcome(tree, fault, seconds)
    took = time.monotonic() - began
    print(f"{what:16} {took:4.0f} s  {fault['name']:38} {fault['why']}", flush=True)
    return what


def outcome(tree: Path, fault: dict[str, Any], seconds: float) -> str:
    """Plant it, run its tests, take it out again."""
    file = tree / file_of(fault["at"])
    try:
        sound = file.read_text()
        changed = planted(sound, fault["at"], fault["change"])
    except (OSError, DoesNotFit):
        return STALE
    was = file.stat()
    file.write_text(changed)
    try:
        return run_tests(tree, fault["tests"], seconds)
    finally:
        file.write_text(sound)
        os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))  # what is compiled of it holds again


def run_tests(tree: Path, tests: list[str], seconds: float, *, compiled: bool = False) -> str:
    """Up to the first that fails; it is seen too that they don't end in time.

    ``compiled``: keep what is compiled of the tree. Not of faults: two of one second look the same.
    """
    run = _FORK.Process(target=pytest_in, args=(tree, tests, compiled))
    run.start()
    run.join(seconds)
    if run.exitcode is not None:
        return _OUTCOMES.get(run.exitcode, BROKEN)
    _end(run)
    return ENDLESS


def _end(run: Any) -> None:
    """Whatever it has started too: a broker with a fault may compute for ever, and hear nothing."""
    started = psutil.Process(run.pid).children(recursive=True)
    run.terminate()
    run.join(_KILLED)
    run.kill()
    for process in started:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def pytest_in(tree: Path, tests: list[str], compiled: bool) -> None:  # noqa: FBT001 - by its place, above
    """In a process of its own that has imported what takes long, and nothing of what is under test."""
    os.chdir(tree)
    os.environ["PYTHONPATH"] = os.pathsep.join(packages(tree))
    sys.path[:0] = packages(tree)
    if not compiled:
        sys.dont_write_bytecode, os.environ["PYTHONDONTWRITEBYTECODE"] = True, "1"
    nobody = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nobody, stream)
    full = ["--full"] if any(test.endswith(_LONG) for test in tests) else []
    sys.exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--first-example", *full, *tests]))


if __name__ == "__main__":
    sys.exit(main())
