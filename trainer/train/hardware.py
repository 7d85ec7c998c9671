"""The hardware that a process trains on, as the card of a model has it: what its losses depend on, besides
settings, code and data.
"""

from __future__ import annotations

import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

# NVIDIA's kernel module says its release here; torch knows CUDA's alone.
_CPU = Path("/proc/cpuinfo")
_DRIVER = Path("/sys/module/nvidia/version")
MOST_TEXT = 100


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One process's device and how it computes."""

    device: str  # cpu, or cuda:0
    precision: str  # of matrix products: fp32, bf16 or fp16
    chip: str = ""  # name of the GPU, or of the processor
    instructions: str = ""  # of the processor, that torch's kernels use: DEFAULT, AVX2 or AVX512
    driver: str = ""  # of the GPU; CUDA's version is in torch's
    deterministic: bool = False  # whether torch was told to use deterministic kernels alone


def hardware_of(device: str, precision: str) -> Hardware:
    """Return the hardware of this process, which trains on `device`."""
    on_gpu = device.startswith("cuda")
    return Hardware(
        device=device,
        precision=precision,
        chip=(torch.cuda.get_device_name(device) if on_gpu else processor())[:MOST_TEXT],
        instructions=torch.backends.cpu.get_cpu_capability(),
        driver=_driver() if on_gpu else "",
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )


def processor() -> str:
    """Return the name of this machine's processor; where Linux does not say it, its kind."""
    with suppress(OSError):
        for line in _CPU.read_text(encoding="utf-8", errors="replace").splitlines():
            name, colon, value = line.partition(":")
            if colon and name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _driver() -> str:
    with suppress(OSError):
        return _DRIVER.read_text(encoding="utf-8", errors="replace").strip()[:MOST_TEXT]
    return ""
