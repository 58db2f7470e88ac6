"""The first day: README's first blocks, typed as they stand in a checkout, where nothing else is."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from support.ports import free_ports
from support.samples import block
from support.terminal import Terminal
from support.waiting import TIMEOUT, wait_until

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
BEGINNING, *_OTHERS = BLOCKS.findall((ROOT / "README.md").read_text())
#: What is typed beside the broker: it begins with the environment that ``deploy/run`` has made.
SECOND_TERMINAL = next(block for block in _OTHERS if block.startswith(". .venv/bin/activate\n"))
#: Where README says that the project is.
ADDRESS = "https://github.com/sluicemq/sluicemq"
#: What a machine has on its PATH that never saw SluiceMQ, and with it a Python.
PATH = os.pathsep.join([str(Path(sys.executable).resolve().parent), "/usr/local/bin", "/usr/bin", "/bin"])
#: How pip and npm reach an index from here.
_OF_THE_MACHINE = ("pip_", "npm_config_", "http_proxy", "https_proxy", "ssl_cert_", "node_extra_ca")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A bare one, in which git finds the project as it lies here where README says that it is.

    The doors are elsewhere than on a first day: a broker may run on this machine.
    """
    home, upstream = tmp_path / "home", tmp_path / "upstream"
    home.mkdir()
    (home / ".gitconfig").write_text(
        f'[url "{upstream}"]\n\tinsteadOf = {ADDRESS}\n[user]\n\tname = "A"\n\temail = "a@example.com"\n'
    )
    ports = free_ports()
    environ = {name: value for name, value in os.environ.items() if name.lower().startswith(_OF_THE_MACHINE)}
    environ |= {
        "HOME": str(home),
        "NPM_CONFIG_USERCONFIG": str(Path.home() / ".npmrc"),
        "PATH": PATH,
        "SLUICEMQ_PORTS": str(ports),
        "SLUICEMQ_ENDPOINT": f"tcp://127.0.0.1:{ports}",
    }
    left_out = shutil.ignore_patterns(".*", "*.egg-info", "build", "__pycache__", "node_modules")
    shutil.copytree(ROOT, upstream, ignore=left_out)
    for words in ("init -q", "add -A", "commit -q -m all"):
        subprocess.run(["git", *words.split()], cwd=upstream, env=environ, check=True)
    assert not shutil.which("sluicemq", path=PATH)
    return environ


@pytest.fixture
def checkout(tmp_path: Path, environ: dict[str, str]) -> Path:
    """What README's first line gives."""
    with Terminal(tmp_path, environ) as terminal:
        terminal.type(BEGINNING.splitlines()[0] + " && pwd")
    return tmp_path / "sluicemq"


def install_from_here(checkout: Path) -> None:
    """Set up ``.venv`` with what is installed for the tests, so that nothing is downloaded."""
    venv.create(checkout / ".venv", symlinks=True)
    place = sysconfig.get_path("purelib", vars={"base": str(checkout / ".venv")})
    # As a folder of packages, not only of modules: at a desk it has the project by a .pth of its own.
    Path(place, "tests.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})")
    script = checkout / ".venv" / "bin" / "sluicemq"
    script.write_text(
        f"#!{checkout}/.venv/bin/python\nimport sys\nfrom sluicemq.cli import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    stamps = """
        . deploy/setup.sh
        wanted_sum embedded >.venv/wanted.stamp
        sources_sum >.venv/sources.stamp
        """
    subprocess.run(["bash", "-c", stamps], cwd=checkout, check=True)


@pytest.mark.parametrize(
    "downloads",
    [
        pytest.param(False, id="with what is here"),
        pytest.param(True, id="whole", marks=[pytest.mark.full, pytest.mark.timeout(900)]),
    ],
)
def test_the_first_commands_work(checkout: Path, environ: dict[str, str], *, downloads: bool) -> None:
    if not downloads:
        install_from_here(checkout)
    _, run = (line.partition("#")[0].strip() for line in BEGINNING.splitlines())
    with Terminal(checkout, environ) as first, Terminal(checkout, environ) as second:
        # When the broker is started
        first.begin(run)
        wait_until(lambda: "ready (pid " in first.shown(), 900 if downloads else TIMEOUT, "the broker")
        # Then it has said where everything is
        assert f"data in {environ['HOME']}/.local/share/sluicemq" in first.shown()
        for door in ("library, commands", "dashboard", "PUSH producers", "REP workers", "subscribers"):
            assert door in first.shown()
        # And the program that is typed in a second terminal pushes a job, and works on it
        (checkout / "hello.py").write_text(block("readme"))
        *lines, work = SECOND_TERMINAL.splitlines()
        for line in lines:
            second.type(line)
        second.begin(work)
        wait_until(lambda: "b'hello'" in second.shown(), what="the first job")
        second.leave()
        # And the tests run beside it
        if downloads:
            with Terminal(checkout, environ) as third:
                third.type(
                    "./deploy/test tests/unit/test_state_names.py tests/integration/test_deploy.py", 600
                )
        first.leave()
        assert "broker: stopped" in first.shown()


def test_what_the_first_start_does_is_said_before_it_is(checkout: Path, environ: dict[str, str]) -> None:
    # Given a Python that makes no virtual environment
    python = checkout / "python"
    python.write_text('#!/bin/sh\ncase "$*" in *"-m venv"*) exit 7;; esac\nexec python3 "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["deploy/run"], cwd=checkout, env=environ | {"PYTHON": str(python)}, capture_output=True, text=True,
        timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 7
    first, second = done.stderr.splitlines()[:2]
    assert first == (
        f"SluiceMQ sets itself up in {checkout}/.venv; the first time that downloads about 100 MB"
    )
    assert second.startswith("making .venv with Python 3")


@pytest.mark.parametrize("code", [0, 1])
def test_each_package_is_named_and_pips_words_only_if_it_failed(tmp_path: Path, code: int) -> None:
    pip = tmp_path / "bin" / "pip"
    pip.parent.mkdir()
    said = """Collecting gevent>=24.11
  Downloading https://index/gevent-25.9.1-cp311-manylinux.whl (2.1 MB)
  Using cached pymongo-4.15.0.tar.gz (1 MB)
Installing collected packages: gevent, pymongo
ERROR: no space"""
    pip.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\nexit {code}\n")
    pip.chmod(0o755)
    script = f". {ROOT}/deploy/setup.sh; set -euo pipefail; pip_install {tmp_path} all; echo done >&2"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    progress = ["  gevent-25.9.1-cp311-manylinux (2.1 MB)", "  pymongo-4.15.0 (1 MB)", "  installing them"]
    failed = [*said.splitlines(), "deploy: pip could not install what is needed; its words are above"]
    assert done.stderr.splitlines() == progress + (failed if code else ["done"])
    assert done.returncode == code
