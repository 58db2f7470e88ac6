"""Prints what an image has of Python packages: a bill of materials, CycloneDX in JSON.

Run by the Python of the image, at the end of its build. Packages of the base image are not in it: its makers
publish their own.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from typing import Any


def bill() -> dict[str, Any]:
    """Return the bill; the same packages make the same one."""
    found = {component["purl"]: component for component in map(_component, metadata.distributions())}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {"type": "container", "name": "sluicemq", "version": metadata.version("sluicemq")},
            "properties": [{"name": "python", "value": sys.version.partition(" ")[0]}],
        },
        "components": [found[purl] for purl in sorted(found)],
    }


def _component(package: metadata.Distribution) -> dict[str, Any]:
    name = re.sub(r"[-_.]+", "-", package.name).lower()
    said = package.metadata.get("License-Expression") or package.metadata.get("License") or ""
    first = said.strip().partition("\n")[0]
    return {
        "type": "library",
        "name": name,
        "version": package.version,
        "purl": f"pkg:pypi/{name}@{package.version}",
        **({"licenses": [{"license": {"name": first}}]} if first else {}),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(bill(), indent=2) + "\n")
