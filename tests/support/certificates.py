"""Certificates for tests: an authority of its own, and files of what it has signed.

::

    authority = Authority(tmp_path)
    door = authority.certificate("localhost", "127.0.0.1")
    ssl.create_default_context(cafile=authority.file).wrap_socket(...)
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import trustme


class Certificate(NamedTuple):
    """Files of one certificate: the chain, its key, and both in one file, as MongoDB reads them."""

    chain: Path
    key: Path
    both: Path
    subject: str


class Authority:
    """A certificate authority; ``file`` is its certificate. All files are in ``folder``."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._authority = trustme.CA(organization_name=name)
        self._folder = folder
        self.file = folder / f"{name}.pem"
        self._authority.cert_pem.write_to_path(self.file)

    def certificate(
        self, *hosts: str, name: str = "server", unit: str = "tests", days: float = 30.0
    ) -> Certificate:
        """Sign a certificate for these hosts; ``days``: how long it is valid, below 0 for an expired one.

        ``name`` is its common name and that of its files, ``unit`` its organizational unit.
        """
        now = datetime.now(UTC)
        begin, end = now - timedelta(days=max(1.0, 2 - days)), now + timedelta(days=days)
        made = self._authority.issue_cert(
            *hosts,
            common_name=name,
            organization_name="sluicemq",
            organization_unit_name=unit,
            not_before=begin,
            not_after=end,
        )
        chain, key, both = (self._folder / f"{name}{suffix}" for suffix in (".crt", ".key", ".pem"))
        made.cert_chain_pems[0].write_to_path(chain)
        made.private_key_pem.write_to_path(key)
        made.private_key_and_cert_chain_pem.write_to_path(both)
        for file in (chain, key, both):
            file.chmod(0o600)
        return Certificate(chain, key, both, subject=f"CN={name},OU={unit},O=sluicemq")
