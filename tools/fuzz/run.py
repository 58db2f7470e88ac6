"""Looks for cases that do what they must not, for minutes: ``./deploy/test fuzz``.

``[--minutes N] [--cases N] [--target T ...] [--seed S] [--without-atheris] [--keep]``, or ``--replay FILE``
of one target. Each target has its share of the time and a process of its own, as many at one time as there
are processors. Where there is atheris (libFuzzer), it is led by what was covered; else cases are made of the
corpus at random. The exit code is 1 if there is a finding; its bytes are in ``fuzz-findings/``.
``--keep`` adds to the corpus what has covered new lines.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import importlib.util
import itertools
import mmap
import multiprocessing
import os
import secrets
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, Final

from fuzz import corpus, targets
from fuzz.attempts import Finding, Target, attempt, peak_bytes, shrunk, watched
from fuzz.mutations import mutated

FINDINGS: Final = Path("fuzz-findings")
#: Bytes that a process may grow by: what a case leaves behind must not pile up.
_MOST_GROWTH: Final = 512 << 20
#: Cases after which it is looked at, and what the growth is counted from.
_LOOK: Final = 1024
_MOST_FINDINGS: Final = 10  # of one target, each at another place
_LONGEST: Final = 4096  # bytes of a case
_INSTRUMENTED: Final = ("sluicemq", "sluicemq_broker", "sluicemq_devices")
_HEAD: Final = struct.Struct("QQ")
#: Seconds beyond its share that a process has to import what it tests, and to end.
_BESIDE: Final = 180.0


def main() -> int:
    options = _options()
    if options.child:
        return _Child(options).run()
    names = [*targets.load()]
    if unknown := set(options.target) - set(names):
        sys.exit(f"no target {', '.join(unknown)}; there are {', '.join(names)}")
    chosen = options.target or names
    if options.replay:
        return _replay(chosen, options.replay)
    return _Hunt(options, chosen).run()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./deploy/test fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="of wall time, for all targets in all")
    parser.add_argument("--cases", type=int, default=0, help="of each target, instead of a time")
    parser.add_argument("--target", action="append", default=[])
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    parser.add_argument("--without-atheris", action="store_true")
    parser.add_argument("--replay", type=Path, metavar="FILE")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument(
        "--child", nargs=4, metavar=("FILE", "TARGET", "SECONDS", "FOLDER"), help=argparse.SUPPRESS
    )
    return parser.parse_args()


def _replay(chosen: list[str], file: Path) -> int:
    """Run one case; return 1 if it is still a finding."""
    data = file.read_bytes()
    for name in chosen:
        with watched():
            found = attempt(targets.load()[name], data)
        print(f"{name}: {found.report if found else 'nothing wrong'}")
        if found:
            return 1
    return 0


class _Hunt:
    """All processes of one run."""

    def __init__(self, options: argparse.Namespace, names: list[str]) -> None:
        self._options = options
        self._names = names
        self._at_once = min(len(names), os.cpu_count() or 1)
        self._share = options.minutes * 60.0 * self._at_once / len(names)
        self._atheris = not options.without_atheris and importlib.util.find_spec("atheris") is not None

    def run(self) -> int:
        how = "led by atheris" if self._atheris else "at random, as there is no atheris"
        print(f"{len(self._names)} targets, {self._at_once} at a time, {how}, seed {self._options.seed}")
        began = time.monotonic()
        folders = tempfile.TemporaryDirectory(prefix="sluicemq-fuzz-")
        with folders as folder, ThreadPoolExecutor(self._at_once) as pool:
            results = list(pool.map(lambda name: self._one(name, Path(folder, name)), self._names))
        took = time.monotonic() - began
        cases, findings = sum(result[0] for result in results), sum(result[1] for result in results)
        print(f"{cases} cases in {took:.0f} s, {cases / took:.0f} a second, {findings} findings")
        return 1 if findings else 0

    def _one(self, name: str, folder: Path) -> tuple[int, int]:
        """Run the process of one target; return the number of its cases and findings."""
        for part in ("seeds", "found", "findings"):
            (folder / part).mkdir(parents=True)
        for case, data in corpus.read(name).items():
            (folder / "seeds" / case).write_bytes(data)
        began = time.monotonic()
        ended = self._run_child(name, folder)
        took = time.monotonic() - began
        with closing(_Diary(folder)) as diary:
            cases, last = diary.read()
        if ended:
            (folder / "findings" / "last.txt").write_text(f"its process did not end well: {ended}\n")
            (folder / "findings" / "last.case").write_bytes(last)
        found = self._report(name, folder)
        print(f"{name:26} {cases:9} cases {cases / took:8.0f}/s {found or ''}", flush=True)
        if self._options.keep:
            keep(name, folder / "found")
        return cases, found

    def _run_child(self, name: str, folder: Path) -> str:
        """Return what the process said if it did not end as it should."""
        options = self._options
        file = targets.load()[name].run.__module__.rpartition(".")[2]
        command = [sys.executable, "-m", "fuzz.run", "--child", file, name, str(self._share), str(folder)]
        command += ["--seed", str(options.seed), "--cases", str(options.cases)]
        command += [] if self._atheris else ["--without-atheris"]
        limit = None if options.cases else self._share + _BESIDE
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired as late:
            return f"it hangs\n{(late.stderr or b'').decode(errors='replace')[-1000:]}"
        return (
            ""
            if done.returncode == 0
            else f"exit code {done.returncode}\n{(done.stdout + done.stderr)[-4000:]}"
        )

    def _report(self, name: str, folder: Path) -> int:
        """Say what was found, and how to run it again; return how much."""
        found = sorted((folder / "findings").glob("*.case"))
        for case in found:
            FINDINGS.mkdir(exist_ok=True)
            kept = FINDINGS / f"{name}-{case.name}"
            shutil.copyfile(case, kept)
            print(f"FINDING {name}: {case.read_bytes()[:200]!r}\n{case.with_suffix('.txt').read_text()}")
            print(f"again: ./deploy/test fuzz --target {name} --replay {kept}\n", flush=True)
        return len(found)


class _Diary:
    """The number of cases of a target and the last one, in a file: they outlive the process that writes."""

    def __init__(self, folder: Path) -> None:
        file = folder / "diary"
        if not file.exists():
            file.write_bytes(bytes(_HEAD.size + 16 * _LONGEST))
        with file.open("r+b") as opened:
            self._memory = mmap.mmap(opened.fileno(), 0)
        self.close = self._memory.close

    def note(self, number: int, data: bytes) -> None:
        data = data[: 16 * _LONGEST]
        _HEAD.pack_into(self._memory, 0, number, len(data))
        self._memory[_HEAD.size : _HEAD.size + len(data)] = data

    def read(self) -> tuple[int, bytes]:
        number, size = _HEAD.unpack_from(self._memory)
        return number, self._memory[_HEAD.size : _HEAD.size + size]


class _Child:
    """The process of one target."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._from, self._name, seconds, folder = options.child
        self._seconds = float(seconds)
        self._folder = Path(folder)
        self._options = options
        self._places: set[tuple[str, ...]] = set()
        self._cases = self._first_peak = 0
        self._diary = _Diary(self._folder)
        self._target: Target

    def run(self) -> int:
        with watched():
            (self._at_random if self._options.without_atheris else self._led)()
        return 0

    def _at_random(self) -> None:
        self._target = targets.load([self._from])[self._name]
        until = time.monotonic() + self._seconds
        seeds = list(corpus.read(self._name).values())
        for seed in itertools.chain(seeds, mutated(seeds, Random(self._options.seed))):
            if self._cases >= self._options.cases if self._options.cases else time.monotonic() > until:
                break
            self._try(seed)

    def _led(self) -> None:
        """Let atheris make the cases; it ends the process."""
        atheris: Any = importlib.import_module("atheris")

        with atheris.instrument_imports(include=[*_INSTRUMENTED]):
            self._target = targets.load([self._from])[self._name]
        end = (
            f"-runs={self._options.cases}" if self._options.cases else f"-max_total_time={int(self._seconds)}"
        )
        folders = [str(self._folder / name) for name in ("found", "seeds")]
        limits = [end, f"-seed={self._options.seed % 2**31 or 1}", f"-max_len={_LONGEST}", "-timeout=120"]
        limits += ["-rss_limit_mb=2048", f"-artifact_prefix={self._folder}/", "-verbosity=0"]
        atheris.Setup([self._name, *limits, *folders], self._try)
        atheris.Fuzz()

    def _try(self, data: bytes) -> None:
        self._cases += 1
        self._diary.note(self._cases, data)
        if self._cases % _LOOK == 0:
            self._check_growth(data)
        found = attempt(self._target, data)
        if found and found.place not in self._places and len(self._places) < _MOST_FINDINGS:
            self._places.add(found.place)
            self._note(shrunk(found, self._target))

    def _check_growth(self, data: bytes) -> None:
        peak = peak_bytes()
        self._first_peak = self._first_peak or peak
        if peak - self._first_peak > _MOST_GROWTH:
            self._note(
                Finding(self._name, data, MemoryError(f"it has grown by {peak - self._first_peak} bytes"))
            )
            sys.exit("it grows")

    def _note(self, finding: Finding) -> None:
        name = hashlib.sha256(finding.data).hexdigest()[:12]
        (self._folder / "findings" / f"{name}.txt").write_text(finding.report)
        (self._folder / "findings" / f"{name}.case").write_bytes(finding.data)


# ---------------------------------------------------------------------- corpus


def keep(name: str, found: Path, most_bytes: int = 7_000) -> None:
    """Add to a target's corpus the found cases that run lines which no other case runs."""
    known = corpus.read(name)
    cases = sorted({*known.values(), *(file.read_bytes() for file in found.iterdir())}, key=len)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        useful = pool.apply(_useful, (name, list(corpus.named(known).values()), cases))
    room, taken = most_bytes, []
    for case in useful:
        room -= len(repr(case))
        if room > 0:
            taken.append(case)
    corpus.write(name, corpus.named(known) | corpus.numbered(taken))


def _useful(name: str, first: list[bytes], cases: list[bytes]) -> list[bytes]:
    """Return the cases that run steps from line to line which those before them don't."""
    which = targets.load()[name]
    covered: set[Any] = set()
    useful = []
    with watched():
        for number, case in enumerate([*first, *cases]):
            steps = _steps(which, case)
            if number >= len(first) and steps - covered:
                useful.append(case)
            covered |= steps
    return useful


def _steps(which: Target, data: bytes) -> set[Any]:
    """Run a case; return its steps from one line of ours to another."""
    steps: set[Any] = set()

    def trace(frame: Any, event: str, _value: Any) -> Any:
        code = frame.f_code
        if "sluicemq" not in code.co_filename:
            return None
        last = 0

        def lines(frame: Any, event: str, _value: Any) -> Any:
            nonlocal last
            if event == "line":
                steps.add((code, last, frame.f_lineno))
                last = frame.f_lineno
            return lines

        del event
        return lines

    sys.settrace(trace)
    try:
        with contextlib.suppress(BaseException):
            attempt(which, data)
    finally:
        sys.settrace(None)
    return steps


if __name__ == "__main__":
    sys.exit(main())
