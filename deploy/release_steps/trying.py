"""A release as users will install it: into a fresh environment, and then a first job."""

from __future__ import annotations

import email.parser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from release_steps.programs import environment, fail, run, runs, say

EXTRAS = "embedded,otel,redis"
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
#: The newest Python for which the lowest versions have wheels; newer ones are tried with the newest alone.
LAST_WITH_LOWEST = (3, 13)
#: Seconds that a broker has to start, which on a new machine unpacks its MongoDB, and a command to end.
TIMEOUT = 120


def find_pythons() -> list[str]:
    """Return the Pythons on the PATH, and those of pyenv, that this project supports."""
    found = {name: shutil.which(name) for name in PYTHONS}
    for python in sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3.*")):
        if python.name in found and not runs(found[python.name]):
            found[python.name] = str(python)
    pythons = [path for path in found.values() if path and runs(path)]
    return pythons or fail(f"none of {', '.join(PYTHONS)} was found")


def try_release(wheels: list[Path], python: str, look_at: Callable[[Path], None]) -> None:
    """Try a Python with the lowest and the newest versions; ``look_at`` gets that of the newest ones."""
    numbers = run(python, "-c", "import sys; print(*sys.version_info[:2])").split()
    if tuple(map(int, numbers)) <= LAST_WITH_LOWEST:
        _try_with(wheels, python, "lowest", lambda _: None)
    else:
        say(f"SKIPPED: the lowest versions have no wheels for Python {'.'.join(numbers)}")
    _try_with(wheels, python, "newest", look_at)


def _try_with(wheels: list[Path], python: str, bounds: str, look_at: Callable[[Path], None]) -> None:
    """Install the wheels into a fresh environment and do a first job with it."""
    say(f"trying {python} with the {bounds} versions of what it needs")
    with environment(python) as own:
        limits = own.parents[1] / "constraints.txt"
        limits.write_text("\n".join(lowest_versions(wheels)) if bounds == "lowest" else "")
        wanted = [f"{wheels[0]}[{EXTRAS}]", *map(str, wheels[1:])]
        run(own, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "-c", str(limits), *wanted)
        run(own, "-m", "pip", "check")
        FirstJob(own.parent).run()
        look_at(own)


def audit(python: Path) -> None:
    """Fail if an environment has packages with known vulnerabilities; say so where no index knows of any."""
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([str(python), "-c", where], capture_output=True, text=True, check=True)
    with environment(sys.executable) as own:
        command = [str(own), "-m", "pip", "install", "--quiet", "pip-audit"]
        subprocess.run(command, capture_output=True, check=False)
        command = [str(own), "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"]
        command += ["--path", packages.stdout.strip()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except ValueError:
        say(f"SKIPPED: pip-audit reaches no index: {done.stderr.strip().rpartition(chr(10))[2][:200]}")
        return
    known = [package for package in found if "vulns" in package]
    if vulnerable := [package for package in known if package["vulns"]]:
        fail(
            "\n".join(f"{package['name']} {package['version']}: {package['vulns']}" for package in vulnerable)
        )
    own_names = {"sluicemq", "sluicemq-bench"}
    skipped = sorted({package["name"] for package in found if package not in known} - own_names)
    say(f"pip-audit: nothing known about {len(known)} packages" if known else "SKIPPED: pip-audit knows none")
    if known and skipped:
        say(f"pip-audit could not look at {', '.join(skipped)}")


def lowest_versions(wheels: list[Path]) -> list[str]:
    """Return the requirements of the wheels, like `pymongo>=4.19; extra == "broker"`, as `pymongo==4.19`."""
    lines = [line for wheel in wheels for line in _requirements(wheel)]
    found = [re.match(r"([\w.-]+)\s*>=\s*([\w.]+)", line) for line in lines]
    return sorted({f"{match[1]}=={match[2]}" for match in found if match})


def _requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as packed:
        name = next(file for file in packed.namelist() if file.endswith(".dist-info/METADATA"))
        metadata = email.parser.BytesParser().parsebytes(packed.read(name))
    return [str(requirement) for requirement in metadata.get_all("Requires-Dist", [])]


class FirstJob:
    """A user's first minutes with the commands of an environment: serve, push, work, kill, serve again."""

    def __init__(self, commands: Path) -> None:
        self._sluicemq = str(commands / "sluicemq")
        self._folder = Path(tempfile.mkdtemp(prefix="sluicemq-release-"))
        self._ports = str(20_000 + os.getpid() % 10_000)
        self._endpoint = f"tcp://127.0.0.1:{self._ports}"
        self._environ = os.environ | {
            "SLUICEMQ_ENDPOINT": self._endpoint,
            "LC_ALL": "C.UTF-8",
        }
        self._environ["PATH"] = f"{commands}{os.pathsep}{self._environ['PATH']}"

    def run(self) -> None:
        """Fail with what the broker said where a step does not do what it should."""
        try:
            with self._broker():
                self._expect("", "push", "mail", "hello")
                self._expect("hello", "work", "mail", "--print", "--count", "1")
                self._expect("1", "stream", "publish", "news", "local", "hello")
                self._expect("hello", "stream", "read", "news")
                self._expect_page("sluicemq_jobs_pushed_total", "metrics")
                self._expect("jobs/s", "bench", "both", "--jobs", "1000", "--endpoint", self._endpoint)
                self._expect("", "push", "mail", "kept")
            with self._broker():
                self._expect("kept", "work", "mail", "--print", "--count", "1")
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    @contextmanager
    def _broker(self) -> Iterator[None]:
        """Run a broker, which is killed at the end."""
        log = self._folder / "broker.log"
        command = [self._sluicemq, "serve", "--ports", self._ports, "--data-dir", str(self._folder / "data")]
        with log.open("ab") as output:
            broker = subprocess.Popen(
                command, cwd=self._folder, env=self._environ, stdout=output, stderr=output
            )
        try:
            self._await_answer(broker, log)
            yield
        except subprocess.CalledProcessError:
            sys.stderr.write(log.read_text(errors="replace"))
            raise
        finally:
            broker.send_signal(signal.SIGKILL)
            broker.wait()

    def _await_answer(self, broker: subprocess.Popen[bytes], log: Path) -> None:
        end = time.monotonic() + TIMEOUT
        while broker.poll() is None and time.monotonic() < end:
            if (
                subprocess.run(
                    [self._sluicemq, "ping"], env=self._environ, capture_output=True, check=False
                ).returncode
                == 0
            ):
                return
        fail(f"the broker does not answer; it said:\n{log.read_text(errors='replace')}")

    def _expect(self, text: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._sluicemq, *arguments], cwd=self._folder, env=self._environ,
            capture_output=True, text=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip
        if done.returncode or text not in done.stdout:
            fail(f"sluicemq {' '.join(arguments)} said {done.stdout!r} and not {text!r}\n{done.stderr}")

    def _expect_page(self, text: str, path: str) -> None:
        address = f"http://127.0.0.1:{int(self._ports) + 30}/{path}"
        with urllib.request.urlopen(address, timeout=TIMEOUT) as page:
            if text not in page.read().decode():
                fail(f"{address} has no {text!r}")
