"""The memory of a machine, or of the container or service that has less."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicemq_broker.runtime import HostMemory, host_memory

MIB = 2**20
MEMORY = 64_000 * MIB


def machine(root: Path, groups: str, limits: dict[str, str]) -> HostMemory:
    files = {
        "proc/meminfo": f"MemTotal: {MEMORY // 1024} kB\nMemAvailable: {MEMORY // 2048} kB\n",
        "proc/self/cgroup": groups,
        **{f"sys/fs/cgroup/{name}": text for name, text in limits.items()},
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return host_memory(root)


@pytest.mark.parametrize(
    ("groups", "limits", "total"),
    [
        ("0::/\n", {}, 64_000),
        ("0::/\n", {"memory.max": "max\n"}, 64_000),
        ("0::/\n", {"memory.max": f"{512 * MIB}\n"}, 512),
        ("0::/system.slice/sluicemq.service\n", {"system.slice/sluicemq.service/memory.max": f"{MIB}"}, 1),
        (
            "0::/a.slice/b.service\n",
            {"a.slice/b.service/memory.max": "max", "a.slice/memory.max": f"{MIB}"},
            1,
        ),
        ("5:cpu:/\n4:memory:/docker/abc\n", {"memory/memory.limit_in_bytes": f"{2 * MIB}"}, 2),
        ("4:memory:/docker/abc\n", {"memory/memory.limit_in_bytes": f"{2**63 - 4096}"}, 64_000),
        ("4:cpu,memory:/x\n", {"memory/x/memory.limit_in_bytes": f"{3 * MIB}"}, 3),
    ],
)
def test_the_least_limit_around_this_process_counts(
    tmp_path: Path, groups: str, limits: dict[str, str], total: int
) -> None:
    found = machine(tmp_path, groups, limits)
    assert found.total == total * MIB
    assert found.available == min(total, 32_000) * MIB


def test_a_machine_without_these_files_has_its_memory(tmp_path: Path) -> None:
    assert host_memory(tmp_path).total > MIB
