"""Print the failpoints that scripts meet: ``python tests/tools/met_failpoints.py [SCRIPT …]``.

For a new statement of the store: write a script (``tests/faults/scripts.py``), see here what it meets, and
name that in ``tests/faults/failpoints.toml``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.killed_at import Lane
from faults.replica_set import ReplicaSet
from faults.scripts import CONFIG, SCENARIOS


def main(names: list[str]) -> None:
    """Run each script once, at a broker that survives it."""
    with ReplicaSet() as mongod, Lane(mongod.uri, CONFIG) as lane, tempfile.TemporaryDirectory() as folder:
        for name in names:
            print(f"{name}:")
            for each in sorted(lane.trace(SCENARIOS[name], Path(folder) / name)):
                print(f"    {each}")


if __name__ == "__main__":
    main(sys.argv[1:] or list(SCENARIOS))
