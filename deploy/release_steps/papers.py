"""Files of a release beside what is installed: its notes, a list of all that it needs, and checksums."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from release_steps.building import digest
from release_steps.programs import environment, fail, run, say

SOURCE = "https://github.com/sluicemq/sluicemq"
NOTES, SUMS = "RELEASE_NOTES.md", "SHA256SUMS"


def section(changelog: str, version: str) -> str:
    """Return what CHANGELOG.md says of a version; fails unless it has a dated section for it."""
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n"
    found = re.search(heading + r"(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    if not found or not found[1].strip():
        fail(f"CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD' with a text")
    return found[1].strip()


def write_notes(checkout: Path, dist: Path, version: str) -> None:
    """Write the notes of a release: its section of CHANGELOG.md, with links into its own tree."""
    tree = f"{SOURCE}/blob/v{version}/"
    text = re.sub(r"\]\((?!\w+:|#)", f"]({tree}", section((checkout / "CHANGELOG.md").read_text(), version))
    (dist / NOTES).write_text(
        f"# SluiceMQ {version}\n\n{text}\n\n"
        f"Before an upgrade: [how it goes]({tree}docs/operations.md#upgrades), "
        f"[what is supported]({tree}docs/support.md). "
        f"To check a download: `sha256sum --check --ignore-missing {SUMS}`, "
        f"`gh attestation verify FILE --repo {SOURCE.removeprefix('https://github.com/')}`.\n"
    )


def write_bill(python: Path, checkout: Path, dist: Path, version: str) -> None:
    """Write what an environment has (a software bill of materials) as CycloneDX JSON."""
    file = dist / f"sluicemq-{version}.cdx.json"
    with environment(sys.executable) as own:
        run(own, "-m", "pip", "install", "--quiet", "cyclonedx-bom>=7")
        run(
            own, "-m", "cyclonedx_py", "environment", str(python), "--pyproject",
            str(checkout / "pyproject.toml"), "--output-reproducible", "--output-format", "JSON",
            "--output-file", str(file), env=dict(os.environ),
        )  # fmt: skip
    bill = complete(json.loads(file.read_text()), version)
    file.write_text(json.dumps(bill, indent=2, sort_keys=True) + "\n")
    say(f"{file.name} has {len(bill['components'])} packages")


def complete(bill: dict[str, Any], version: str) -> dict[str, Any]:
    """Return a bill in which all packages have their address on the index, and none a folder from here."""
    own = bill["metadata"]["component"]
    own["version"] = version  # it is not in pyproject.toml
    for part in (own, *bill["components"]):
        part.setdefault("purl", f"pkg:pypi/{part['name']}@{part['version']}")
        references = part.get("externalReferences", [])
        part["externalReferences"] = [one for one in references if not one["url"].startswith("file:")]
    return bill


def write_sums(dist: Path) -> None:
    """Write the SHA-256 of each file, as `sha256sum --check` reads it."""
    files = sorted(file for file in dist.iterdir() if file.name != SUMS)
    (dist / SUMS).write_text("".join(f"{digest(file)}  {file.name}\n" for file in files))
