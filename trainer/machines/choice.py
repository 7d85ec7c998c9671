"""Choose the GPU profile of this machine: the one named, else that of the GPU that nvidia-smi shows, else the
CPU's.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from trainer.base import environment
from trainer.base.errors import UsageError
from trainer.machines.chips import GpuProfile, named_profile, packaged, profiles
from trainer.machines.host_memory import host_gib
from trainer.machines.memory import USABLE

QUERY = (
    "nvidia-smi",
    "--query-gpu=name,memory.total,memory.free,compute_cap,uuid,mig.mode.current",
    "--format=csv,noheader,nounits",
)
# The profile's memory may be this many times what the chip shows: a "16 GiB" T4 with ECC shows 15.0.
TOLERANCE = 1.08


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU as its driver shows it. `free_gib` is the memory that other programs leave free."""

    name: str
    memory_gib: float
    free_gib: float
    compute_capability: str = ""
    uuid: str = ""
    is_divided: bool = False  # into slices (MIG), whose memory is not this


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The chosen profile and the reason. `memory_gib` is the smaller of the profile's memory and the free
    memory.
    """

    profile: GpuProfile
    why: str
    memory_gib: float


def profile_of(device: Device) -> GpuProfile:
    """Return the profile for a device by name and memory; a slice of a chip, or an unknown chip, gets a
    derived one.
    """
    named = [
        (len(name), profile)
        for profile in profiles().values()
        for name in profile.devices
        if _begins(device.name, name)
    ]
    # The most specific name wins: a user's "RTX 4090 Laptop GPU" over "RTX 4090".
    longest = max((length for length, _ in named), default=0)
    alike = [profile for length, profile in named if length == longest]
    fitting = [profile for profile in alike if profile.memory_gib <= device.memory_gib * TOLERANCE]
    if fitting:
        return max(fitting, key=lambda profile: profile.memory_gib)
    return _share(min(alike, key=lambda profile: profile.memory_gib), device) if alike else _plain(device)


def _share(whole: GpuProfile, device: Device) -> GpuProfile:
    """Return the profile of a slice of a divided chip (MIG, vGPU)."""
    share = device.memory_gib / whole.memory_gib
    return replace(
        whole,
        chip=f"{share:.0%} of {whole.chip}",
        memory_gib=device.memory_gib,
        multiprocessors=max(1, int(whole.multiprocessors * share)),
        windows_per_second=whole.windows_per_second * share if whole.windows_per_second else None,
        peak_tflops={},
        share=share,
    )


def _plain(device: Device) -> GpuProfile:
    capability = device.compute_capability
    return GpuProfile(
        name="unknown",
        chip=device.name,
        memory_gib=device.memory_gib,
        compute_capability=capability,
        bf16=capability[:1].isdecimal() and float(capability) >= 8.0,
        multiprocessors=packaged()["t4"].multiprocessors,  # unknown: assume the smallest
    )


def choose(name: str, device: Device | None) -> Choice:
    """Choose the profile of a device (None: the CPU). Precedence: `name`, $GPU_PROFILE, the device's own.

    Raises UsageError for a profile that is unknown, larger than the device, or for a GPU if there is none.
    """
    wish, whose = wished(name)
    if wish:
        profile = named_profile(wish)
        if wish == "cpu":
            return _on_cpu(f"named by {whose}")
        if device is None:
            raise UsageError(
                f"GPU profile {wish} is for a GPU",
                why="this machine shows none",
                do="Take cpu, or leave the profile out.",
            )
        check_fits(profile, chip=device.name, memory_gib=device.memory_gib)
        why = f"named by {whose}"
    elif device is None:
        return _on_cpu("no GPU here")
    else:
        profile = profile_of(device)
        why = f"this is {device.name} with {device.memory_gib:.1f} GiB"
    if device.free_gib < USABLE * device.memory_gib:
        why += f", {device.free_gib:.1f} GiB of it free"
    return Choice(profile=profile, why=why, memory_gib=min(profile.memory_gib, device.free_gib))


def wished(name: str) -> tuple[str, str]:
    """Return the requested profile ('' if none) and its source: the job or flag, else $GPU_PROFILE."""
    return (name, "--gpu-profile") if name else (environment.gpu_profile(), "$GPU_PROFILE")


def check_fits(profile: GpuProfile, *, chip: str, memory_gib: float) -> None:
    """Raise UsageError if a profile has more memory than the chip."""
    if profile.memory_gib > memory_gib * TOLERANCE:
        other = profile_of(Device(name=chip, memory_gib=memory_gib, free_gib=memory_gib)).name
        known = other in profiles() and other != profile.name  # a slice has no profile of its own
        raise UsageError(
            f"GPU profile {profile.name} is larger than the chip",
            why=f"it is for {profile.memory_gib:.1f} GiB, {chip} has {memory_gib:.1f} GiB",
            do=f"Take {other}, or leave the profile out." if known else "Leave the profile out.",
        )


def gpus_here() -> tuple[Device, ...]:
    """Return the GPUs of nvidia-smi that CUDA_VISIBLE_DEVICES leaves visible, by number or the beginning of a
    UUID; none without a driver, and none if one is divided into slices, which only CUDA knows.
    """
    try:
        answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    gpus = read_gpus(answer.stdout)
    wish = environment.visible_gpus()
    if wish is not None:
        names = [name.strip() for name in wish.split(",")]  # "" and "-1" hide all GPUs
        gpus = tuple(gpu for name in names for gpu in _named(gpus, name))
    return () if any(gpu.is_divided for gpu in gpus) else gpus


def _named(gpus: tuple[Device, ...], name: str) -> tuple[Device, ...]:
    """Return the GPU of a number or UUID, if there is one; a slice's (MIG-...) is none of them."""
    if name.isdecimal():
        return gpus[int(name) : int(name) + 1]
    return tuple(gpu for gpu in gpus if name.startswith("GPU-") and gpu.uuid.startswith(name))


def read_gpus(listing: str) -> tuple[Device, ...]:
    """Return the devices in QUERY's output, whose memory is in MiB."""
    gpus = []
    for line in listing.splitlines():
        name, *numbers = (cell.strip() for cell in line.split(","))
        if len(numbers) == 5 and numbers[0].isdecimal():
            total = int(numbers[0]) / 1024
            gpus.append(
                Device(
                    name=name,
                    memory_gib=total,
                    free_gib=int(numbers[1]) / 1024 if numbers[1].isdecimal() else total,
                    compute_capability=numbers[2],
                    uuid=numbers[3],
                    is_divided=numbers[4] == "Enabled",
                )
            )
    return tuple(gpus)


def _begins(device: str, name: str) -> bool:
    """Return whether a device's name begins with a profile's as whole words: an L40S is not an L4."""
    return re.match(re.escape(name) + r"(?![A-Za-z0-9])", device) is not None


def _on_cpu(why: str) -> Choice:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cpuinfo = Path("/proc/cpuinfo")  # on Linux; elsewhere no bf16 is assumed
    flags = cpuinfo.read_text() if cpuinfo.exists() else ""
    bf16 = re.search(r"^flags\b.* amx_bf16\b", flags, re.MULTILINE) is not None
    profile = replace(named_profile("cpu"), memory_gib=round(host_gib() / cores, 2), bf16=bf16)
    return Choice(profile=profile, why=f"{why}: {cores} cores, a worker each", memory_gib=profile.memory_gib)
