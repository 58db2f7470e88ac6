"""Hosts for ``deploy/install``: a bare Debian with a checkout, and a stand-in for systemd."""

import shutil
from pathlib import Path
from typing import Final

from deploy.bare_debian import BareDebian
from deploy.builds import copy_sources
from support.ports import free_port

STAND_IN: Final = Path(__file__).with_name("systemctl")
ENVIRONMENT: Final = {
    "SYSTEMCTL": "/stand-in/systemctl", "JOURNALCTL": "/stand-in/journalctl",
    "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "SLUICEMQ_INSTALL_WAIT": "120",
}  # fmt: skip
CONFIGURATION: Final = "/etc/sluicemq/sluicemq.toml"


class Host:
    """One host; pip finds in ``wheels`` what it installs."""

    def __init__(self, debian: BareDebian) -> None:
        self.debian = debian
        self.port = free_port()
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        self.wheels = debian.path("/wheels")
        self.wheels.mkdir()
        copy_sources(debian.path("/src"))
        debian.path("/stand-in").mkdir()
        for name in ("systemctl", "journalctl"):
            shutil.copy(STAND_IN, debian.path(f"/stand-in/{name}"))

    def deploy(self, script: str, *words: str, code: int = 0) -> str:
        """Run a script of ``deploy/``, and return what it says."""
        done = self.debian.run(f"/src/deploy/{script}", *words, env=ENVIRONMENT, check=False, timeout=900)
        assert done.returncode == code, done.stdout + done.stderr + self.log()
        return done.stdout + done.stderr

    def take_port(self) -> None:
        """Let the configuration that is there name the free port."""
        file = self.debian.path(CONFIGURATION)
        file.write_text(file.read_text().replace("#ports = 5550", f"ports = {self.port}"))

    def systemctl(self, *words: str) -> None:
        self.debian.run("/stand-in/systemctl", *words)

    def sluicemq(self, *words: str) -> str:
        """Run a command at the broker, and return what it says."""
        return self.debian.run("sluicemq", *words, env={"SLUICEMQ_ENDPOINT": self.endpoint}).stdout

    def log(self) -> str:
        log = self.debian.path("/run/stand-in/sluicemq.log")
        inside = self.debian.run("cat", "/run/stand-in/sluicemq.log", check=False).stdout
        return inside or (log.read_text() if log.exists() else "")
