"""Cores of a worker on a machine with several NUMA nodes: those near its GPU, or all of one node.

Memory is allocated on the node of the core that touches it first, so a worker is placed before it allocates.
On a machine with one node nothing is set: two runs would compete for the same cores, and the kernel spreads
them better. Linux only. Sources: https://docs.kernel.org/admin-guide/mm/numaperf.html, and local_cpulist in
https://docs.kernel.org/PCI/sysfs-pci.html (read 2026-11-21). `root` is the folder of sysfs; tests use their
own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path

SYSFS = Path("/sys")


def cores_near_gpu(pci_bus_id: str, allowed: Collection[int], *, root: Path = SYSFS) -> frozenset[int]:
    """Return the allowed cores of a GPU's node; empty if there is only one node or it is unknown.

    `pci_bus_id` as sysfs writes it, such as 0000:17:00.0.
    """
    near = _cores(root / "bus" / "pci" / "devices" / pci_bus_id / "local_cpulist") & set(allowed)
    return frozenset() if near == set(allowed) else frozenset(near)


def cores_of_worker(number: int, allowed: Collection[int], *, root: Path = SYSFS) -> frozenset[int]:
    """Return the allowed cores of a CPU worker's node; empty if there is only one node or it is unknown.

    Each worker goes to the node with the most cores that have no worker yet.
    """
    nodes = _nodes(allowed, root)
    if len(nodes) < 2:
        return frozenset()
    free = [len(cores) for cores in nodes]
    for _ in range(number + 1):
        chosen = free.index(max(free))
        free[chosen] -= 1
    return nodes[chosen]


def allowed_cores() -> frozenset[int]:
    """Return the cores that this process may use; empty if the system does not report them."""
    return frozenset(os.sched_getaffinity(0)) if sys.platform == "linux" else frozenset()


def stay_on(cores: Collection[int]) -> None:
    """Pin this thread, and those that it starts, to these cores. Does nothing if `cores` is empty."""
    if cores and sys.platform == "linux":
        os.sched_setaffinity(0, cores)


def core_list(cores: Collection[int]) -> str:
    """Return cores as the kernel writes them, such as 0-3,8."""
    ranges: list[list[int]] = []
    for core in sorted(cores):
        if ranges and core == ranges[-1][1] + 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ranges)


def _nodes(allowed: Collection[int], root: Path) -> list[frozenset[int]]:
    """Return the allowed cores of each node that has some, in the order of the nodes' numbers."""
    lists = (root / "devices" / "system" / "node").glob("node[0-9]*/cpulist")
    in_order = sorted(lists, key=lambda path: int(path.parent.name.removeprefix("node")))
    nodes = [frozenset(_cores(path) & set(allowed)) for path in in_order]
    return [cores for cores in nodes if cores]


def _cores(path: Path) -> set[int]:
    """Read a list of cores, such as 0-3,8; empty if the file is missing or malformed."""
    try:
        parts = [part.split("-") for part in path.read_text(encoding="ascii").strip().split(",") if part]
        return {core for part in parts for core in range(int(part[0]), int(part[-1]) + 1)}
    except (OSError, ValueError):
        return set()
