"""The link between a machine's GPUs, and the rate at which gradients should travel over all of them.

    bus rate    2 (n - 1) / n x bytes / seconds of an all-reduce over n GPUs: NCCL's `busbw`
                (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md)

instances.csv has the link and NVLink's nominal rate. NVLink: 230 of 600 GB/s nominal reach an A100's bus.
PCIe: 5 to 10 GB/s on an A10G, whose gradients go through host memory; others by the generation of their PCIe.
Published figures as read on 2026-11-20 and estimates from them: none is measured by us.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.machines.instances import InstanceType

NVLINK_SHARE = 230 / 600
# GB/s by the beginning of the compute capability of AWS's PCIe types: Turing has PCIe 3, Ampere and Ada 4,
# Blackwell 5.
PCIE_GB_PER_S = {"7": 4.0, "8": 7.0, "12": 14.0}
PCIE, ALONE = "PCIe", "none"
NAMES = {"nvlink": "NVLink", "nvswitch": "NVSwitch", "pcie": PCIE}


@dataclass(frozen=True, kw_only=True)
class Link:
    """The link between a machine's GPUs; `bus_gb_per_s` is 0 for one GPU."""

    name: str
    bus_gb_per_s: float

    @property
    def is_pcie(self) -> bool:
        """Return whether gradients go through host memory."""
        return self.name == PCIE


def link_of(machine: InstanceType) -> Link:
    """Return the link between the GPUs of a type."""
    name = NAMES.get(machine.gpu_interconnect, ALONE)
    if machine.num_workers == 1 or name == ALONE:
        return Link(name=ALONE, bus_gb_per_s=0.0)
    if machine.nvlink_gb_per_s:
        return Link(name=name, bus_gb_per_s=NVLINK_SHARE * machine.nvlink_gb_per_s)
    return Link(name=name, bus_gb_per_s=PCIE_GB_PER_S[machine.compute_capability.split(".")[0]])
