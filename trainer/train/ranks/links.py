"""Check every rank's device and link, and the bandwidth of an all-reduce, before the first step.

Eight GPUs with one link at a tenth of its rate train at a tenth of the speed for the same price, so a broken
link ends the run before training. `measure` asks the devices; `faults`, a pure function, judges. CPUs (gloo)
are measured but not judged.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import pynvml
import torch

from trainer.base.errors import TrainingFailed
from trainer.machines.memory import GIB
from trainer.train.machine_file import MachineFacts
from trainer.train.ranks.group import Ranks

POOR = 0.25  # share of the median copy rate below which a GPU's link is broken
# Share of the expected all-reduce rate below which it is broken; the expectation is an estimate.
POOR_OF_EXPECTED = 0.15
GPU_BYTES, CPU_BYTES = 256 << 20, 4 << 20
REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class DeviceSeen:
    """One rank's device. None: unknown, or a CPU."""

    name: str
    memory_gib: float | None = None
    pcie_lanes: int | None = None  # in use
    pcie_lanes_most: int | None = None  # of device and slot
    nvlinks: int | None = None  # up
    host_gb_per_s: float | None = None  # of a copy from pinned host memory


@dataclass(frozen=True, kw_only=True)
class Links:
    """All devices, and the all-reduce between them."""

    devices: tuple[DeviceSeen, ...]
    bus_gb_per_s: float
    expected_gb_per_s: float | None  # None: unknown

    def to_event(self) -> dict[str, Any]:
        """Return the `links` event."""
        speeds = {"bus_gb_per_s": round(self.bus_gb_per_s, 3), "expected_gb_per_s": self.expected_gb_per_s}
        return {"event": "links", **speeds, "devices": [asdict(device) for device in self.devices]}


def check_links(ranks: Ranks, machine: MachineFacts) -> Links:
    """Return the devices and links. Raises TrainingFailed, on every rank, if a device is missing or its link
    is broken.
    """
    links = measure(ranks, machine)
    if problems := faults(links, machine, on_gpu=ranks.device.type == "cuda"):
        raise TrainingFailed(
            "the GPUs of this machine are not as expected",
            why="; ".join(problems),
            do="Nothing was trained. Launch again, on another machine.",
        )
    return links


def measure(ranks: Ranks, machine: MachineFacts) -> Links:
    """Return every rank's device and the bandwidth of an all-reduce; the result is the same on every rank."""
    texts = ranks.texts(json.dumps(asdict(device_seen(ranks.device))))
    on_gpu = ranks.device.type == "cuda"
    return Links(
        devices=tuple(DeviceSeen(**json.loads(text)) for text in texts),
        bus_gb_per_s=bus_bandwidth(ranks, num_bytes=GPU_BYTES if on_gpu else CPU_BYTES),
        expected_gb_per_s=(machine.bus_gb_per_s or None) if on_gpu else None,
    )


def faults(links: Links, machine: MachineFacts, *, on_gpu: bool) -> list[str]:
    """Return the faults of a machine's devices and links, as phrases; none on CPUs."""
    if not on_gpu:
        return []
    found = []
    if machine.gpus and len(links.devices) != machine.gpus:
        found.append(f"{machine.gpus} GPUs expected and {len(links.devices)} found")
    names = {device.name for device in links.devices}
    if len(names) > 1:
        found.append(f"GPUs of {len(names)} kinds: {', '.join(sorted(names))}")
    copies = sorted(device.host_gb_per_s for device in links.devices if device.host_gb_per_s)
    usual = copies[len(copies) // 2] if copies else 0.0
    nvlinks = max((device.nvlinks or 0 for device in links.devices), default=0)
    for number, device in enumerate(links.devices):
        if device.pcie_lanes and device.pcie_lanes_most and device.pcie_lanes * 2 < device.pcie_lanes_most:
            found.append(f"GPU {number} has {device.pcie_lanes} of {device.pcie_lanes_most} PCIe lanes")
        if device.host_gb_per_s is not None and device.host_gb_per_s < POOR * usual:
            found.append(f"GPU {number} copies {device.host_gb_per_s:.1f} GB/s, the others {usual:.1f}")
        if device.nvlinks is not None and device.nvlinks < nvlinks:
            found.append(f"GPU {number} has {device.nvlinks} NVLinks up, others {nvlinks}")
    if links.expected_gb_per_s and links.bus_gb_per_s < POOR_OF_EXPECTED * links.expected_gb_per_s:
        expected = f"where about {links.expected_gb_per_s:g} are expected"
        found.append(f"an all-reduce reaches {links.bus_gb_per_s:.1f} GB/s {expected}")
    return found


def bus_bandwidth(ranks: Ranks, *, num_bytes: int) -> float:
    """Return the bus bandwidth of an all-reduce in GB/s: the load of each rank's link, comparable between
    numbers of ranks.

    2 (n - 1) / n x bytes / seconds, by nccl-tests' definition, with the slowest rank's time, the best of
    REPEATS.
    """
    buffer = torch.zeros(num_bytes // 4, device=ranks.device)
    best = float("inf")
    for _ in range(1 + REPEATS):  # the first one connects
        ranks.any(False)  # start together
        began = time.perf_counter()
        ranks.sum_(buffer)
        if ranks.device.type == "cuda":
            torch.cuda.synchronize(ranks.device)
        best = min(best, ranks.most(time.perf_counter() - began))
    return 2 * (ranks.count - 1) / ranks.count * num_bytes / best / 1e9


def device_seen(device: torch.device) -> DeviceSeen:
    """Return the name, memory and links of this process's device."""
    if device.type != "cuda":
        return DeviceSeen(name="cpu")
    gpu = torch.cuda.get_device_properties(device)
    return DeviceSeen(
        name=gpu.name,
        memory_gib=round(gpu.total_memory / GIB, 1),
        host_gb_per_s=round(_copy_bandwidth(device), 2),
        **_links_of(str(getattr(gpu, "uuid", ""))),
    )


def _copy_bandwidth(device: torch.device) -> float:
    """Return the bandwidth of a copy from pinned host memory in GB/s, the best of REPEATS."""
    there = torch.empty(64 << 20, dtype=torch.uint8).pin_memory()
    best = float("inf")
    for _ in range(1 + REPEATS):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        there.to(device)
        torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return there.nbytes / best / 1e9


def _links_of(uuid: str) -> dict[str, int]:
    """Return a GPU's PCIe lanes and NVLinks from NVML, without those that the driver does not report."""
    seen: dict[str, int] = {}
    with suppress(pynvml.NVMLError):  # a virtual GPU, or an old driver; it needs no `nvmlShutdown`
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        seen["pcie_lanes"] = pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle)
        seen["pcie_lanes_most"] = pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
        seen["nvlinks"] = _nvlinks_up(handle)
    return seen


def _nvlinks_up(handle: Any) -> int:
    up = 0
    with suppress(pynvml.NVMLError):  # no more links
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            up += pynvml.nvmlDeviceGetNvLinkState(handle, link) == pynvml.NVML_FEATURE_ENABLED
    return up
